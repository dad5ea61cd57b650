"""Every code has an entry, a rule that can say it, and a fix."""

import inspect
import re

import pytest

from disagg_cli.findings import plan_rules
from disagg_cli.findings.finding import catalogue, finding


@pytest.mark.parametrize("entry", catalogue().values(), ids=lambda entry: entry.code)
def test_an_entry_is_complete(entry):
    assert all((entry.name, entry.title, entry.why, entry.fix, entry.source))
    assert re.fullmatch(r"DSG\d{3}", entry.code)


def test_names_are_unique():
    names = [entry.name for entry in catalogue().values()]
    assert len(names) == len(set(names))


def test_plan_rules_use_exactly_the_codes_of_the_1xx_range():
    used = set(re.findall(r'"(DSG\d{3})"', inspect.getsource(plan_rules)))
    assert used == {code for code in catalogue() if code.startswith("DSG1")}


def test_a_finding_takes_what_it_lacks_from_the_catalogue():
    found = finding("DSG101", "4 and 3", where="decode.tp")
    assert (found.severity, found.fix) == ("error", catalogue()["DSG101"].fix)
