"""Answers as models write them, each labelled from the text of a rule before any code read it.

(completion, strict, flexible), rule by rule in the order in which the rules apply.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cli.evals.answers import read_answer
from disagg_cli.evals.numerals import canonical

REASONING = [
    (None, None, None),
    (" \n", None, None),
    ("<think>first 9*2=18, the answer is 18, let me re-check", None, None),
    ("<think>shots said #### 6 and #### 5</think>#### 18", "18", "18"),
    ("<THINK>5</THINK>18", None, "18"),
    ("5</thinking>18", None, "18"),
    ("<reasoning>5</reasoning>18", None, "18"),
    ("5</thought>#### 18", "18", "18"),
    ("\\boxed{18}</think>\nSo 20", None, "20"),
    ("#### 18\n<think>#### 20", "18", "18"),
    ("draft 5 <think>#### 7", None, "5"),
    ("<think>5</think>", None, None),
    ("<|channel|>analysis<|message|>#### 18", None, None),
    ("<|channel|>analysis<|message|>1<|end|><|channel|>commentary<|message|>2", None, None),
    ("<|channel|>final<|message|>18<|return|>20", None, "18"),
    ("<|channel|>final<|message|>1<|end|><|channel|>final<|message|>#### 18", "18", "18"),
]
RUN_ON = [
    ("no\n#### 9\n\nProblem: one more: 40*3=120\n#### 120", "9", "9"),
    ("#### 9\nUser: more?\n#### 120", "9", "9"),
    ("#### 9\nHuman: more?\n#### 120", "9", "9"),
    ("9 apples\nAssistant: 120", None, "9"),
    ("9 apples\n  **Question:** 120", None, "9"),
    ("#### 18\r\n\r\nQuestion: 5\r\n", "18", "18"),
    ("### Question: 9 apples\n#### 9", "9", "9"),
    ("Answer\nQuestion: what is 18", None, "18"),
    ("Q: 2+2?\nA: 4\nQ: 3+3?\nA: 6", None, "4"),
    ("18 people asked Question: 20", None, "20"),
    ("No question: 5\nquestion: 6", None, "6"),
    ("18<|eot_id|>77", None, "18"),
    ("18<|endoftext|>77", None, "18"),
    ("18</s>77", None, "18"),
    ("18<eos>77", None, "18"),
    ("18 [INST] 77", None, "18"),
    ("18<end_of_turn>\n77", None, "18"),
    ("18<\uff5cend\u2581of\u2581sentence\uff5c>77", None, "18"),
    ("<|im_start|>assistant\n18<|im_end|>77", None, "18"),
]
MARKER = [
    ("It fell from 4 to -6.\n#### -10", "-10", "-10"),
    ("#### 007", "7", "7"),
    ("#### $18", None, "18"),
    ("##### 18\nThat is 20 more", "18", "18"),
    ("###### 18", "18", "18"),
    ("#### +18 of 20", None, "18"),
    ("#### \u221210", None, "-10"),
    ("#### \u201310", None, "-10"),
    ("#### \uff11\uff18", None, "18"),
    ("#### 1e3", "1", "1000"),
    ("#### 3/4", "3", "0.75"),
    ("#### 12-9", "12", "12"),
    ("#### -$5", None, "-5"),
    ("#### $-5", None, "-5"),
    ("####-10", None, "-10"),
    ("#### **18**", None, "18"),
    ("**####** 18", None, "18"),
    ("####  18", None, "18"),
    ("####\t18", None, "18"),
    ("#### 18.0.", "18", "18"),
    ("#### 18..", "18", "18"),
    ("#### 18,000,", "18000", "18000"),
    ("#### .5", "0.5", "0.5"),
    ("#### -0", "0", "0"),
    ("#### 1,080.50 dollars", "1080.5", "1080.5"),
    ("#### 1\u2009080 of 3", "1", "1080"),
    ("#### 18%", "18", "18"),
    ("#### \u20ac18", None, "18"),
    ("#### \u00a3 18 of 20", None, "18"),
    ("#### \\$18 of 20", None, "18"),
    ("#### ?\n#### 18", "18", "18"),
    ("#### see below\nthe total is 18", None, "18"),
    ("18 apples.\n\n#### \n", None, "18"),
    ("#### 5 #### 6", "5", "5"),
    ("#### " + "9" * 31, None, None),
]
BOX = [
    ("\\boxed{1{,}080}", None, "1080"),
    ("\\boxed{1,080\\text{ dollars}} for 2", None, "1080"),
    ("\\boxed{\\frac{36}{2}}", None, "18"),
    ("\\boxed{\\frac12} of 20", None, "0.5"),
    ("\\boxed{\\frac{1,080}{60}} of 20", None, "18"),
    ("\\boxed{\\frac{-1}{2}}", None, "-0.5"),
    ("$\\frac{1.5}{3}$", None, "0.5"),
    ("\\boxed{18", None, "18"),
    ("\\boxed{12} then \\boxed{18", None, "12"),
    ("\\boxed{A} then \\boxed{18} and \\boxed{B} of 20", None, "18"),
    ("\\fbox{18} of 20", None, "18"),
    ("\\boxed{3 \\times 6 = 18} of 20", None, "18"),
    ("\\boxed{a=b=18} of 3", None, "18"),
    ("\\boxed{\\text{18}} of 20", None, "18"),
    ("\\boxed{\\$18.00} of 20", None, "18"),
    ("\\boxed{-5} of 20", None, "-5"),
    ("\\boxed{18 \\text{ m}^2} of 3", None, "18"),
    ("\\boxed{\\{18\\}} of 3", None, "18"),
    ("\\boxed 18 of 3", None, "3"),
    ("\\[\\boxed{18}\\]\n#### 20", "20", "20"),
    ("The answer is \\boxed{18} not 20", None, "18"),
]
PHRASE = [
    ("The answer is 42", None, "42"),
    ("The answer is 18. I used 3 steps and 2 facts.", None, "18"),
    ("The answer is not 12 but 15", None, "15"),
    ("The answer is 12? The answer is not 13, of 15", None, "12"),
    ("**Answer**: 18 (9 eggs at $2 each)", None, "18"),
    ("The **answer** is 18, from 9 and 2", None, "18"),
    ("**Final Answer:** $1,080 (12 * 90)", None, "1080"),
    ("ANSWER: 18 of 20", None, "18"),
    ("Answer : 18 of 20", None, "18"),
    ("answer is: **18** of 20", None, "18"),
    ("The answer is -5, of 20", None, "-5"),
    ("The answer is +18 (of 20)", None, "18"),
    ("answer:-5 of 20", None, "-5"),
    ("The answer is $-5 of 20", None, "-5"),
    ("The answer is `18` of 20", None, "18"),
    ("The final answer is $18$ of 20.", None, "18"),
    ("The answer is \u20ac18 of 20", None, "18"),
    ("The answer is 9 * 2 = 18 dollars for 3", None, "18"),
    ("answer: 2 + 3 = 5 = 5 apples of 7", None, "5"),
    ("The answer is 18 and the answer is 20. 3 steps", None, "20"),
    ("The answers: 18 of 20", None, "20"),
    ("The answer is unclear; 18 or 20", None, "20"),
    ("The answer is\n18 of 20", None, "20"),
]
NUMBER = [
    ("He needs 18...", None, "18"),
    ("The floor is 18 m\u00b2.", None, "18"),
    ("18 cm^2 of 20 cm^{2}", None, "20"),
    ("12-9", None, "9"),
    ("x-5", None, "5"),
    ("(2)-3", None, "3"),
    ("[2]-3", None, "3"),
    ("a -5", None, "-5"),
    ("=-5", None, "-5"),
    ("5-$10", None, "10"),
    ("5\u201310", None, "10"),
    ("\u22124", None, "-4"),
    ("\u20b91,080", None, "1080"),
    ("18\u20ac", None, "18"),
    ("12,15", None, "15"),
    ("1,080,12", None, "12"),
    ("1,2345", None, "2345"),
    ("1234,567", None, "567"),
    ("9/1.5 = 6 so 9/1.5", None, "6"),
    ("3 / 4", None, "0.75"),
    ("1,080/60", None, "18"),
    ("5/0", None, None),
    ("1.5E+3", None, "1500"),
    ("1e-2", None, "0.01"),
    ("1e31", None, None),
    ("v2.5.3", None, "3"),
    ("2^{10}=1024", None, "1024"),
    ("1,\\!080", None, "1080"),
    ("\u0661\u0668", None, None),
    ("3\u00bd", None, "3"),
    ("18 then " + "9" * 40, None, None),
    ("<<16-3-4=9>>9 and <<9*2=18>>18", None, "18"),
    ("| total | 18 |", None, "18"),
]
CASES = {"reasoning": REASONING, "run-on": RUN_ON, "marker": MARKER, "box": BOX, "phrase": PHRASE, "number": NUMBER}


@pytest.mark.parametrize(
    ("completion", "strict", "flexible"),
    [pytest.param(*case, id=f"{rule}-{row}") for rule, cases in CASES.items() for row, case in enumerate(cases)],
)
def test_labelled_by_the_rule(completion, strict, flexible):
    answer = read_answer(completion)
    assert (canonical(answer.strict), canonical(answer.flexible)) == (strict, flexible)


WRITINGS = [
    "{0}",
    "{0:,}",
    "{0}.00",
    "{0:,}.0",
    "${0:,}",
    "{0}%",
    "**{0}**",
    "{0} dollars",
    "{0}.",
    "{0:,}...",
    "{0}/1",
]
ENDINGS = [
    ("3 * 4 = 12.\n#### {}", ""),
    ("####{}", "\n\nQuestion: what is 5?\nAnswer: 5"),
    ("<think>so 5</think>\n#### {}", "<|im_end|>5"),
    ("It is \\boxed{{{}}}", ", in 5 steps"),
    ("**Answer:** {}", " (5 * 7)"),
    ("So the final answer is {}", ", not 5"),
    ("There were 5, so there are {}", ""),
    ("5 + 5 = {}", ""),
]


@settings(deadline=None, max_examples=300)
@given(st.integers(-(10**9), 10**9), st.sampled_from(WRITINGS), st.sampled_from(ENDINGS))
def test_any_number_in_any_writing(number, writing, ending):
    before, after = ending
    assert read_answer(before.format(writing.format(number)) + after).flexible == number
