"""Every failure that a user can meet, and the exit code that it ends in."""

import inspect
import re

import pytest

from disagg_cli import errors
from disagg_cli.errors import DisaggError

EXIT_CODES = {
    "DisaggError": 1,
    "UsageError": 2,
    "PlanRefused": 3,
    "LaunchFailed": 4,
    "ProbeFailed": 5,
    "EvalFailed": 6,
    "EvalUndecided": 7,
    "Interrupted": 130,
}

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, DisaggError)]


def test_the_exit_codes_are_the_promised_ones():
    assert {kind.__name__: kind.exit_code for kind in CLASSES} == EXIT_CODES


def test_every_exit_code_means_one_thing():
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)


def test_the_tree_in_the_docstring_is_the_tree():
    drawn = dict(re.findall(r"(\w+) +(\d+)  ", errors.__doc__))
    assert {name: int(code) for name, code in drawn.items()} == EXIT_CODES


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_says_what_it_is_for(kind):
    assert kind.__doc__
    assert kind.__doc__.rstrip().endswith(".")


@pytest.mark.parametrize("kind", CLASSES)
def test_a_failure_says_what_where_and_what_to_do(kind):
    error = kind("port 8000 is taken", where="a.yaml:3", fix="stop it")
    assert (str(error), error.what, error.where, error.fix) == (
        "port 8000 is taken",
        "port 8000 is taken",
        "a.yaml:3",
        "stop it",
    )
    assert (kind("x").where, kind("x").fix) == (None, None)
