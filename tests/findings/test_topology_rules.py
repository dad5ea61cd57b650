"""One row per finding: the smallest topology that trips it, and the nearest one that does not."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import topology_rows_agree
import topology_rows_run
from topology_builders import gpus, roles

from disagg_cli.findings import host_rules, topology_rules
from disagg_cli.findings.finding import catalogue
from disagg_cli.findings.topology_report import judge_everything
from disagg_cli.findings.topology_rules import judge_topology
from disagg_cli.kv.layout import WindowPool
from disagg_cli.kv.models import packaged_layout
from disagg_cli.topology.machine import Facts
from disagg_cli.topology.resolve import draft
from disagg_cli.topology.spec import TopologySpec

ROWS = [*topology_rows_agree.ROWS, *topology_rows_run.ROWS]


def judged(topology):
    """Every finding about a topology, with no more known of the machine than is said."""
    topology, facts = topology if isinstance(topology, tuple) else (topology, Facts())
    return judge_everything(draft(TopologySpec.model_validate(topology)), facts)


def codes(topology):
    return {found.code for found in judged(topology)}


@pytest.mark.parametrize(("code", "severity", "bad", "good"), ROWS, ids=[row[0] for row in ROWS])
def test_a_rule(code, severity, bad, good):
    found = [one for one in judged(bad) if one.code == code]
    assert found, f"{code} was not found"
    assert {one.severity for one in found} == {severity}
    assert code not in codes(good)


@pytest.mark.parametrize(("release", "counted_as_one"), [("0.5.11", False), ("0.5.22", True), ("0.5.23", False)])
def test_several_kinds_of_state(release, counted_as_one):
    """DSG541. No packaged model has two kinds; Qwen3.8-Flash-Next has."""
    sparse = packaged_layout("deepseek-ai/DeepSeek-V3.2")
    window = WindowPool(layers=4, tokens=128, kv_heads=1, head_dim=64, v_head_dim=64)
    deployment = draft(TopologySpec.model_validate(roles(sglang=release)))
    for layout, tripped in ((replace(sparse, window=window), counted_as_one), (sparse, False)):
        assert ("DSG541" in {found.code for found in judge_topology(deployment, layout=layout)}) is tripped


def test_every_rule_is_tested():
    """DSG201 to DSG204 are about the file: tests/cli/test_check.py. DSG411 to DSG421: test_host_rules.py."""
    others = {"DSG201", "DSG202", "DSG203", "DSG204", "DSG541", *(f"DSG{code}" for code in range(411, 422))}
    assert {row[0] for row in ROWS} | others == {code for code in catalogue() if code >= "DSG2"}


def test_every_code_of_the_catalogue_is_used_by_a_rule():
    sources = "".join(path.read_text() for path in Path(topology_rules.__file__).parent.glob("topology_*.py"))
    sources += "".join(path.read_text() for path in Path(topology_rules.__file__).parents[1].glob("topology/*.py"))
    sources += Path(host_rules.__file__).read_text()
    assert set(re.findall(r'"(DSG[2-9]\d\d)"', sources)) == {code for code in catalogue() if code >= "DSG2"}


def test_a_worker_without_room_is_said_once():
    """No other finding is about the hosts that it would have had."""
    found = [one.code for one in judged(gpus(platform="h200", prefill={"tp": 1}, decode={"tp": 8}))]
    assert [code for code in found if code.startswith(("DSG3", "DSG4", "DSG6"))] == ["DSG301"]


def test_messages_carry_the_numbers_of_the_topology():
    found = next(one for one in judged(roles({"page-size": 64}, {"page-size": 16})) if one.code == "DSG502")
    assert found.message == "page size 64 on prefill and 16 on decode"
    assert found.where == "decode.args.page-size"


# The rules of the field reports, and what stands for each here. R20 to R22 are about what happens while it runs: the
# probe, the shutdown and the eval do that, and what a topology can say about it is found.
FIELD_RULES = {
    "R1": "DSG101", "R2": "DSG102", "R3": "DSG112", "R4": "DSG111", "R5": "DSG111", "R6": "DSG115", "R7": "DSG121",
    "R8": "DSG122", "R9": "DSG103", "R10": "DSG116", "R11": "DSG112", "R12": "DSG501", "R13": "DSG502", "R14": "DSG503",
    "R15": "DSG511", "R16": "DSG401", "R17": "DSG403", "R18": "DSG601", "R19": "DSG605", "R20": "DSG613",
    "R21": "DSG616", "R22": "DSG911", "R23": "DSG303", "R24": "DSG722",
}  # fmt: skip


def test_every_rule_of_the_field_reports_has_a_code():
    assert list(FIELD_RULES) == [f"R{n}" for n in range(1, 25)]
    assert set(FIELD_RULES.values()) <= set(catalogue())
