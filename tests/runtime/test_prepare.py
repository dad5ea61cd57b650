"""What is decided before the first process."""

import json
import sys

import pytest
from deployments import ROOT, write_topology

from disagg_cli.errors import PlanRefused
from disagg_cli.findings.finding import Severity
from disagg_cli.runtime.prepare import prepare, refuse_errors

# Six prefill ranks for four decode ranks: no rank of one side is whole ranks of the other.
CROOKED = {
    "platform": "h100",
    "model": {"synthetic": {"attention_heads": 24, "kv_heads": 12}},
    "prefill": {"tp": 6},
    "decode": {"tp": 4},
    "executor": {"ssh": {"hosts": ["a", "b"]}},
}


def test_ports_that_another_launch_must_not_have(home, tmp_path, monkeypatch):
    """The nodes of a job are its own; in an allocation that is there, another launch may be beside this one."""
    slurm = prepare(write_topology(tmp_path, executor={"slurm": {"nodes": 3}}, platform="h100"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert slurm.ports() == set()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "east")
    assert "job 7@east:node-0:8000" in slurm.ports()


@pytest.fixture
def crooked(tmp_path, home):
    return prepare(write_topology(tmp_path, **CROOKED))


def test_the_demo(home):
    prepared = prepare(ROOT / "configs/1p2d-cpu.yaml")
    assert [command.name for command in prepared.commands] == ["prefill-0", "decode-0", "decode-1", "router"]
    assert [plan.ok for plan in prepared.plans] == [True]
    assert all(command.argv[0] == sys.executable for command in prepared.commands)
    refuse_errors(prepared.errors, force=False)


def test_nothing_is_written(home):
    prepare(ROOT / "configs/1p2d-cpu.yaml")
    assert not home.exists()


def test_on_other_hosts_their_own_python_runs(home):
    prepared = prepare(ROOT / "configs/1p4d-gb200-qwen3-32b.yaml")
    assert {command.argv[0] for command in prepared.commands} == {"python3"}


def test_what_listens_where(home):
    (host, wanted), *others = prepare(ROOT / "configs/1p2d-cpu.yaml").listeners().items()
    assert (host.address, others) == ("127.0.0.1", [])
    assert wanted == {
        8000: "router",
        21048: "router metrics",
        21000: "prefill-0 http",
        21001: "prefill-0 bootstrap",
        21002: "prefill-0 nccl",
        21016: "decode-0 http",
        21018: "decode-0 nccl",
        21032: "decode-1 http",
        21034: "decode-1 nccl",
    }


def test_a_worker_of_two_hosts_listens_on_both(home, tmp_path):
    hosts = ["a", "b", "c"]
    topology = CROOKED | {"model": "Qwen/Qwen3-32B", "prefill": {"tp": 16}, "executor": {"ssh": {"hosts": hosts}}}
    ports = {host.name: wanted for host, wanted in prepare(write_topology(tmp_path, **topology)).listeners().items()}
    assert ports["a"][30002] == ports["b"][30002] == "prefill-0 nccl"


def test_a_plan_that_says_no(crooked):
    assert [plan.ok for plan in crooked.plans] == [False]
    with pytest.raises(PlanRefused, match="the plan forbids this launch: DSG") as caught:
        refuse_errors(crooked.errors, force=False)
    assert "--force" in caught.value.fix
    refuse_errors(crooked.errors, force=True)


def test_only_errors_forbid(crooked):
    assert {finding.severity for finding in crooked.errors} == {Severity.ERROR}


def test_several_prefill_pools_have_a_plan_each(home, tmp_path):
    prepared = prepare(write_topology(tmp_path, prefill=[{"tp": 2}, {"tp": 4}, {"tp": 2}]))
    assert len(prepared.plans) == 2  # equal pools are one
    document = prepared.plan_document()
    assert (document["schema"], document["ok"]) == ("disagg.plans/1", all(plan.ok for plan in prepared.plans))


def test_documents_are_json(home):
    prepared = prepare(ROOT / "configs/1p2d-cpu.yaml")
    document = json.loads(json.dumps(prepared.document()))
    assert document["schema"] == "disagg.deployment/1"
    assert [process["name"] for process in document["processes"]] == ["prefill-0", "decode-0", "decode-1", "router"]
    assert document["workers"][0]["url"] == "http://127.0.0.1:21000"
    assert json.loads(json.dumps(prepared.plan_document()))["schema"] == "disagg.plan/1"


@pytest.mark.parametrize("config", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_holds(home, config):
    assert all(plan.ok for plan in prepare(config).plans)
