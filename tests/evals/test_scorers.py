"""Other harnesses' rules, with their errors."""

import pytest

from disagg_cli.evals.scorers import SCORERS

# completion, gold, then right or not by: sglang few_shot and vLLM, sglang run_eval, lm-eval strict, lm-eval flexible
TABLE = [
    ("It fell from 4 to -6.\n#### -10", -10, (True, True, True, True)),
    ("It went up, not down.\n#### 10", -10, (True, False, False, False)),
    ("#### 18.00", 18, (False, True, False, False)),
    ("#### 3.18", 18, (True, False, False, False)),
    ("#### $18", 18, (True, True, False, True)),
    ("####18", 18, (True, True, False, True)),
    ("#### 007", 7, (False, False, False, False)),
    ("So she pays 72 in total, altogether.", 72, (True, True, False, True)),
    ("He needs 18...", 18, (True, True, False, False)),
    ("The cost is $29.00.", 29, (False, True, False, False)),
    ("She has 12,15 as a list", 15, (False, False, False, False)),
    ("\uff11\uff18", 18, (False, False, False, False)),
    ("He eats 3/4 of the 4 pies, which is 3/4", 4, (True, True, False, True)),
    ("st 9*2=18, the answer is 18, let me re-check", 18, (True, True, False, True)),
    ("Loss of -$5, so -$5", -5, (True, False, False, True)),
    ("#### 1,080", 1080, (True, True, True, True)),
    ("no number", 1, (False, False, False, False)),
]
NAMES = ("last-digits", "sglang-run-eval", "lm-eval-strict", "lm-eval-flexible")


@pytest.mark.parametrize(("completion", "gold", "right"), TABLE)
def test_what_others_make_of_it(completion, gold, right):
    read = tuple(SCORERS[name](completion, f"worked\n#### {gold}").right for name in NAMES)
    assert read == right


def test_our_own():
    assert SCORERS["flexible"]("The cost is $29.00.", "#### 29").right
    assert not SCORERS["strict"]("The cost is $29.00.", "#### 29").right


@pytest.mark.parametrize("name", SCORERS)
@pytest.mark.parametrize("text", ["", "9" * 5000, "1e999999999", "-", ".", "#### ,", "$,.", "\u0661\u0662"])
def test_nothing_raises(name, text):
    assert not SCORERS[name](text, "#### 18").right
