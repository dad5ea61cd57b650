"""What differences of log-probabilities say of a pair."""

import math

import pytest

from disagg_cli.probe.parity import (
    LATE_S,
    LONGEST,
    LONGEST_ON_CPU,
    Comparison,
    Measured,
    prompts_for,
    tolerance_of,
)
from disagg_cli.probe.parity import judge as judge_measured


def prompt(tokens, *differences, seconds=1.0):
    return Comparison(prompt_tokens=tokens, seconds=seconds, differences=differences)


def judge(comparisons, tolerance, **more):
    return judge_measured("p", "d", Measured(comparisons=tuple(comparisons), **more), tolerance)


def test_rounding_is_right():
    found = judge([prompt(15, 1e-6, 2e-5), prompt(56, 0.0, 4e-6)], 0.005)
    assert found.ok
    assert (found.max_difference, found.wrong_prompts) == (0.00002, ())
    assert found.sentence().startswith("KV right, differences of 2e-05 at most")


def test_the_first_wrong_token_and_the_prompts_are_named():
    found = judge([prompt(15, 0.0, 0.0, 0.0), prompt(56, 0.0, 0.0, 7.5), prompt(517, 0.0, 3.0, 8.0)], 0.005)
    assert not found.ok
    assert (found.first_wrong, found.wrong_prompts) == (1, (56, 517))
    assert found.sentence().startswith("KV WRONG from token 1 on")


def test_a_log_probability_that_is_no_number_is_wrong():
    found = judge([prompt(15, 0.0, math.nan)], 2.0)
    assert (found.first_wrong, found.max_difference) == (1, None)
    assert "differences that are no numbers" in found.sentence()


def test_wrong_and_late_is_wrong():
    assert judge([prompt(15, 0.0, 9.0, seconds=LATE_S + 1)], 0.005).sentence().startswith("KV WRONG")


def test_one_late_prompt_is_noise_and_all_late_are_a_fault():
    late = LATE_S + 1
    assert judge([prompt(15, 0.0, seconds=late), prompt(56, 0.0)], 0.005).ok
    assert judge([prompt(15, 0.0, seconds=late), prompt(56, 0.0, seconds=late)], 0.005).late


def test_what_came_instead_of_an_answer():
    found = judge([], 0.005, error="no answer within 5 s")
    assert (found.ok, found.sentence()) == (False, "no answer within 5 s")


@pytest.mark.parametrize(
    ("dtype", "floor", "tolerance"),
    [
        ("float32", 0.0, 0.005),  # decode's kernels may round more than prefill's own
        ("float32", 0.001, 0.02),
        ("bfloat16", 0.01, 0.5),
        ("fp8_e4m3", 0.06, 1.2),
        ("bfloat16", 1.0, 2.0),  # so loud a floor must not hide two swapped heads
    ],
)
def test_the_tolerance_follows_the_noise_floor_within_bounds(dtype, floor, tolerance):
    assert tolerance_of(dtype, floor) == pytest.approx(tolerance)


def prompts(page, chunk, longest_chunk=LONGEST, **room):
    found = prompts_for(page, chunk, longest_chunk=longest_chunk, **room)
    return found.lengths, found.uncrossed_chunk


def test_prompts_lie_at_the_edges_of_pages_and_chunks():
    assert prompts(1, 512) == ((1, 40, 517), None)
    assert prompts(64, 16384) == ((63, 224, 16416), None)
    assert prompts(16, None) == ((15, 56), None)
    assert prompts(16, -1) == ((15, 56), None)  # chunking is off


def test_a_chunk_that_no_prompt_crosses_is_said():
    assert prompts(64, 16384, LONGEST_ON_CPU) == ((63, 224), 16384)
    assert prompts(1, 512, room=500) == ((1, 40), 512)  # its context ends before
    told = judge([prompt(15, 0.0)], 0.005, uncrossed_chunk=16384).sentence()
    assert told.endswith("; no prompt crosses the prefill chunk of 16384 tokens")


def test_a_slow_server_is_not_a_late_transfer():
    slow = [prompt(15, 0.0, seconds=LATE_S + 8)]
    assert judge(slow, 0.005, alone_s=0.5).sentence() == (
        "KV LATE: the fastest answer took 18.0 s, 0.5 s of which without a transfer (limit 10 s more)"
    )
    assert judge(slow, 0.005, alone_s=9.0).ok
