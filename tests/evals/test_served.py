"""Prometheus text."""

from disagg_cli.evals.served import Counters, parse_metrics

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
