"""`disagg explain`."""

import json

import pytest
from command_line import disagg

from disagg_cli.findings.finding import catalogue


def test_a_code():
    done = disagg("explain", "dsg502")
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("DSG502", "page-size-differs", "why", "fix", "source", "#14439"))


def test_a_name():
    (found,) = json.loads(disagg("explain", "page-size-differs", "--json").stdout)["findings"]
    assert found["code"] == "DSG502"


def test_all_codes():
    document = json.loads(disagg("explain", "--json").stdout)
    assert document["schema"] == "disagg.explain/1"
    assert {found["code"] for found in document["findings"]} == set(catalogue())
    assert len(disagg("explain").stdout.splitlines()) >= len(catalogue())


def test_no_such_code():
    done = disagg("explain", "DSG50")
    assert done.returncode == 2
    assert "no finding is called 'DSG50'" in done.stderr
    assert "DSG50" in done.stderr.split("fix:")[1]


@pytest.mark.parametrize("entry", catalogue().values(), ids=lambda entry: entry.code)
def test_no_code_without_a_source(entry):
    assert entry.source.strip()
    assert entry.why.strip()
