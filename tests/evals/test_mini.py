"""The built-in word problems: correct, in GSM8K's form, plain ASCII."""

import re
from importlib.resources import files

import pytest

from disagg_cli.evals.answers import read_answer
from disagg_cli.evals.data import Question, load

EQUATION = re.compile(r"(-?\d+(?: [-+*/] \d+)+) = (-?\d+)")
ALL = [*load("mini", split="train").questions, *load("mini").questions]


def work_out(terms: str) -> int:
    """Products and quotients first, all of them exact."""
    total = 0
    for sign, product in re.findall(r"(^|[-+] )((?:-?\d+)(?: [*/] \d+)*)", terms):
        first, *rest = re.findall(r"([*/] )?(-?\d+)", product)
        result = int(first[1])
        for operator, number in rest:
            if operator == "/ ":
                assert result % int(number) == 0
            result = result * int(number) if operator == "* " else result // int(number)
        total += -result if sign == "- " else result
    return total


def test_eight_examples_and_forty_questions():
    assert (len(load("mini", split="train").questions), len(load("mini").questions)) == (8, 40)
    assert len({question.question for question in ALL}) == 48


def test_plain_ascii_lines():
    raw = files("disagg_cli.evals").joinpath("mini.jsonl").read_bytes()
    assert raw.isascii()
    assert raw.endswith(b"\n")
    assert b"<<" not in raw


@pytest.mark.parametrize("problem", ALL, ids=lambda problem: problem.question[:40])
def test_worked_answer(problem: Question):
    *steps, last = problem.answer.split("\n")
    for step in steps:
        for terms, result in EQUATION.findall(step):
            assert work_out(terms) == int(result), step
    assert last.startswith("#### ")
    results = [int(result) for _, result in EQUATION.findall(problem.answer)]
    assert results[-1] == problem.gold
    assert read_answer(problem.answer).strict == read_answer(problem.answer).flexible == problem.gold
    assert len(problem.answer) < 300
