"""One plan on every release, and what was found by executing the releases' connectors whole (0.5.13 to 0.5.23)."""

from dataclasses import replace

import pytest
from packaging.version import Version

from disagg_cli.connector.case import Case, Outcome, case_of
from disagg_cli.connector.classes import CLASSES
from disagg_cli.connector.releases import find_release, known_releases
from disagg_cli.connector.verdict import judge_case, judge_releases, wrong_decode_ranks
from disagg_cli.kv.layout import LayoutKind
from disagg_cli.kv.models import layout_for
from disagg_cli.kv.parallelism import Parallelism


def case(p, d, t, **fields):
    return Case(prefill_tp=p, decode_tp=d, kv_heads=t, **fields)


def spans(made):
    """The outcome of each release, where it changes."""
    outcomes = {name: verdict.outcome.value for name, verdict in judge_releases(made).items()}
    changes, previous = [], None
    for name, outcome in outcomes.items():
        if outcome != previous:
            changes.append((name, outcome))
        previous = outcome
    return changes


def test_the_seeds_case():
    assert spans(case(4, 1, 8)) == [("0.5.6", "early_done"), ("0.5.7", "hang"), ("0.5.12.post1", "ok")]


def test_one_prefill_rank_and_two_heads_on_four_decode_ranks():
    assert spans(case(1, 4, 2)) == [
        ("0.5.6", "zero_division"),
        ("0.5.11", "wrong_bytes"),
        ("0.5.12", "hang"),
        ("0.5.12.post1", "wrong_bytes"),
        ("0.5.13", "not_found"),
        ("0.5.17", "ok"),
    ]
    assert wrong_decode_ranks(find_release("0.5.11"), case(1, 4, 2)) == (1, 2)


@pytest.mark.parametrize("made", [one.case for one in CLASSES], ids=lambda made: str(made.size))
def test_a_row_says_what_each_release_says_alone(made):
    row = judge_releases(made)
    assert row == {release.name: judge_case(release, made) for release in known_releases()}


STAGES = {
    "equal TP": (case(4, 4, 8, pp=2), ["hang", "runtime_error", "runtime_error", "runtime_error"]),
    "cut heads": (case(4, 2, 8, pp=2), ["hang", "ok", "ok", "ok"]),
    "cut heads, ragged": (case(4, 2, 8, pp=2, stage_layers=(2, 3)), ["hang"] + ["wrong_bytes"] * 3),
    "latent": (case(4, 2, 1, pp=2, kind=LayoutKind.MLA), ["hang", "runtime_error", "runtime_error", "ok"]),
    "windows": (case(4, 4, 8, pp=2, kind=LayoutKind.SWA), ["hang"] + ["runtime_error"] * 3),
    "hybrid, equal TP": (case(4, 4, 8, pp=2, kind=LayoutKind.HYBRID), ["runtime_error", "ok", "ok", "ok"]),
    "hybrid, cut heads": (case(4, 2, 8, pp=2, kind=LayoutKind.HYBRID), ["runtime_error", "empty_transfer", "ok", "ok"]),
}


@pytest.mark.parametrize("name", STAGES)
def test_two_prefill_stages_and_a_decode_of_one(name):
    made, expected = STAGES[name]
    releases = ("0.5.16", "0.5.17", "0.5.19", "0.5.21")
    assert [judge_case(find_release(release), made).outcome for release in releases] == expected


def test_as_many_decode_stages_have_no_such_trouble():
    assert judge_case(find_release("0.5.23"), case(4, 4, 8, pp=2, decode_pp=2)).ok


def test_windows_and_stages_do_not_mix_with_different_tp_even_then():
    made = case(4, 2, 8, pp=2, decode_pp=2, kind=LayoutKind.SWA)
    assert judge_case(find_release("0.5.23"), made).outcome is Outcome.RUNTIME_ERROR


@pytest.mark.parametrize("release", [release.name for release in known_releases()])
def test_mamba2_is_never_right_between_different_tp(release):
    made = case(4, 2, 8, kind=LayoutKind.HYBRID, cut_whole=True)
    assert not judge_case(find_release(release), made).ok
    equal = judge_case(find_release(release), replace(made, decode_tp=4))
    assert equal.ok is (Version(release) >= Version("0.5.9"))


@pytest.mark.parametrize(
    ("release", "cut", "whole"),
    [("0.5.10", "wrong_bytes", "wrong_bytes"), ("0.5.13", "not_found", "ok"), ("0.5.23", "not_found", "ok")],
)
def test_k_and_v_of_different_size_cannot_be_cut_and_at_first_not_sent_either(release, cut, whole):
    assert judge_case(find_release(release), case(2, 4, 8, asymmetric=True)).outcome == cut
    assert judge_case(find_release(release), case(4, 4, 8, asymmetric=True)).outcome == whole


def test_a_decode_with_stages_is_served_from_0_5_6_post1_on():
    assert spans(case(4, 4, 8, pp=2, decode_pp=2))[:2] == [("0.5.6", "runtime_error"), ("0.5.6.post1", "ok")]


def test_a_hybrids_stages_look_for_layers_that_are_not_there():
    found = spans(case(4, 4, 8, pp=2, kind=LayoutKind.HYBRID))
    assert found == [("0.5.6", "runtime_error"), ("0.5.17", "ok")]


@pytest.mark.parametrize(
    ("p", "d", "t", "windows", "ok"),
    [(4, 1, 4, 8, True), (1, 8, 4, 8, False), (8, 4, 4, 8, False), (8, 16, 4, 8, True)],
)
def test_window_layers_with_other_heads_must_split_as_the_rest_does(p, d, t, windows, ok):
    made = case(p, d, t, kind=LayoutKind.SWA, window_heads=windows)
    refused = judge_case(find_release("0.5.23"), made).outcome is Outcome.RUNTIME_ERROR
    assert refused is not ok or p > t


@pytest.mark.parametrize(
    ("release", "outcome"), [("0.5.6", "wrong_bytes"), ("0.5.8", "wrong_bytes"), ("0.5.9", "ok"), ("0.5.12", "ok")]
)
def test_extra_state_before_0_5_9_is_missing_without_a_word(release, outcome):
    assert judge_case(find_release(release), case(4, 4, 8, kind=LayoutKind.SWA)).outcome == outcome


def test_sparse_attention_is_state_too_and_finishes_on_0_5_12():
    made = case_of(layout_for("deepseek-ai/DeepSeek-V3.2"), Parallelism(tp=8), Parallelism(tp=4))
    assert judge_case(find_release("0.5.12"), made).ok
    assert not judge_case(find_release("0.5.8"), made).ok


@pytest.mark.parametrize(
    ("release", "outcome"), [("0.5.16", "unsupported"), ("0.5.17", "early_done"), ("0.5.23", "ok")]
)
def test_several_kinds_of_state_are_all_waited_for_only_from_0_5_23_on(release, outcome):
    made = case_of(layout_for("deepseek-ai/DeepSeek-V4-Pro"), Parallelism(tp=8), Parallelism(tp=8))
    assert judge_case(find_release(release), made).outcome == outcome


@pytest.mark.parametrize(("release", "outcome"), [("0.5.16", "unsupported"), ("0.5.17", "ok")])
def test_a_latent_beside_linear_attention(release, outcome):
    made = case_of(layout_for("moonshotai/Kimi-K3"), Parallelism(tp=8), Parallelism(tp=4))
    assert judge_case(find_release(release), made).outcome == outcome
