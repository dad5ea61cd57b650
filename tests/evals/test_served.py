"""Addresses, and Prometheus text."""

import pytest

from disagg_cli.errors import UsageError
from disagg_cli.evals.served import Counters, _compared, base_url, parse_metrics

TEXT = """# HELP sglang:num_requests_total Requests.
# TYPE sglang:num_requests_total counter
sglang:num_requests_total{model_name="m",tp_rank="0"} 3.0
sglang:num_requests_total{model_name="m",tp_rank="1"} 4.0
sglang:num_decode_transfer_queue_reqs{model_name="m"} 1.0
sglang:gen_throughput{model_name="m"} 12.5
process_cpu_seconds_total 5
"""


def test_summed_over_labels():
    assert parse_metrics(TEXT) == {"sglang:num_requests_total": 7.0, "sglang:num_decode_transfer_queue_reqs": 1.0}


def test_what_is_left_in_a_queue():
    counters = Counters(worker="w", deltas={}, queues={"a": 0.0, "b": 2.0})
    assert counters.leaked == {"b": 2.0}


def test_labels_may_hold_braces_and_values_may_be_no_number():
    text = 'sglang:num_requests_total{model_name="a}b"} 3.0\nsglang:num_decode_transfer_queue_reqs NaN\n'
    assert parse_metrics(text) == {"sglang:num_requests_total": 3.0}


REQUESTS = "sglang:num_requests_total"


def test_what_a_run_did_to_a_counter():
    counters = _compared("w", {REQUESTS: 5.0}, {REQUESTS: 9.0})
    assert (counters.deltas, list(counters.notes())) == ({REQUESTS: 4.0}, [])


def test_a_worker_that_was_started_again_counts_from_zero():
    counters = _compared("w", {REQUESTS: 50.0}, {REQUESTS: 9.0})
    assert (counters.deltas, counters.restarted) == ({REQUESTS: 9.0}, True)
    assert list(counters.notes()) == ["w was started again during the run: its counters began anew"]


@pytest.mark.parametrize(
    ("before", "after", "note"),
    [
        ({}, {}, "w tells no metrics (it needs --enable-metrics): its queues were not looked at"),
        ({REQUESTS: 1.0}, {}, "w told metrics before the run, and tells none after it"),
        (
            {},
            {"sglang:num_decode_prealloc_queue_reqs": 2.0},
            "w still has 2 requests in num_decode_prealloc_queue_reqs",
        ),
    ],
)
def test_what_a_person_must_know_of_a_worker(before, after, note):
    (told,) = _compared("w", before, after).notes()
    assert told.startswith(note)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("https://h/", "https://h"),
        ("http://[::1]:3/path/", "http://[::1]:3/path"),
        ("http://h:1/v1", "http://h:1"),
        ("http://h:1/v1/completions", "http://h:1"),
        ("http://h:1/v1/chat/completions/", "http://h:1"),
        ("http://h:1/generate", "http://h:1"),
        (" http://h:1\n", "http://h:1"),
    ],
)
def test_a_servers_address(given, url):
    assert base_url(given) == url


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "localhost:8000",
        "ftp://h",
        "http://",
        "http:///x",
        "http://h:99999",
        "http://h:x",
        "http://h?a=1",
        "http://h#a",
    ],
)
def test_no_address(wrong):
    with pytest.raises(UsageError, match="not a"):
        base_url(wrong)


def test_an_address_with_a_password_is_refused_and_not_shown():
    with pytest.raises(UsageError, match="has a user or password") as caught:
        base_url("http://me:s3cret@h:1")
    assert "s3cret" not in f"{caught.value.what} {caught.value.fix}"
