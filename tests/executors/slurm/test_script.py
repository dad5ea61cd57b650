"""The sbatch script of a deployment."""

from pathlib import Path

import pytest
from deployments import ROOT, on_gpus
from golden_files import assert_golden
from pydantic import ValidationError

from disagg_cli.executors.slurm.script import script
from disagg_cli.topology.loading import load_topology
from disagg_cli.topology.resolve import resolve
from disagg_cli.topology.slurm import SlurmSpec, segment_of

LAUNCH = ["python", "-m", "disagg_cli", "launch", "topology.yaml"]


def directives(deployment, number=0):
    """What a component of the job asks for."""
    part = script(deployment, LAUNCH).split("#SBATCH hetjob\n")[number]
    return [line.removeprefix("#SBATCH --") for line in part.splitlines() if line.startswith("#SBATCH")]


def on_slurm(slurm=None, **changes):
    return on_gpus(executor={"slurm": slurm or {}}, **changes)


@pytest.mark.parametrize("name", ["slurm-h100-1p2d"])
def test_whole_scripts(name, monkeypatch):
    for variable in ("SLURM_PARTITION", "SLURM_ACCOUNT"):
        monkeypatch.delenv(variable, raising=False)
    deployment = resolve(load_topology(ROOT / f"configs/{name}.yaml"))
    assert_golden(f"{name}.sbatch", script(deployment, LAUNCH))


def test_a_heterogeneous_job():
    apart = {"time": "30", "prefill": {"partition": "big"}, "decode": {"partition": "small", "args": {"nice": 1}}}
    deployment = on_slurm(apart, prefill={"tp": 8}, decode={"workers": 3, "tp": 4})
    assert_golden("heterogeneous.sbatch", script(deployment, LAUNCH))


def test_as_many_nodes_as_are_used():
    """Four decodes of one GPU fill one node of four."""
    assert "nodes=2" in directives(on_slurm(prefill={"tp": 4}, decode={"workers": 4}))


def test_what_sbatch_would_fill_in_of_a_folders_name():
    """Slurm writes % for %%, and the job's number for %j."""
    assert "--output=/runs/50%%j/launch.log" in script(on_slurm(), LAUNCH, output=Path("/runs/50%j/launch.log"))


def test_roles_that_are_asked_for_apart_share_no_node():
    deployment = on_slurm({"decode": {"partition": "x"}}, prefill={"tp": 2}, decode={"workers": 2})
    assert [host.group for host in deployment.hosts] == [0, 1]
    assert "nodes=1" in directives(deployment, 0)
    assert {"nodes=1", "partition=x"} <= set(directives(deployment, 1))


@pytest.mark.parametrize(
    ("gpus", "asked"), [("gres", "gres=gpu:4"), ("gpus-per-node", "gpus-per-node=4"), ("none", None)]
)
def test_how_gpus_are_asked_for(gpus, asked):
    said = [line for line in directives(on_slurm({"gpus": gpus})) if "gpu" in line]
    assert said == ([asked] if asked else [])


def test_options_are_passed_on_and_win_over_those_of_disagg():
    said = directives(on_slurm({"args": {"exclusive": False, "mem": "100G", "qos": "high", "--nice": 5}}))
    assert "exclusive" not in said
    assert {"mem=100G", "qos=high", "nice=5"} <= set(said)
    assert "mem=0" not in said


def test_options_of_one_letter():
    assert "#SBATCH -C 'gb200&nvme'\n" in script(on_slurm({"args": {"C": "gb200&nvme"}}), LAUNCH)


def test_a_value_that_a_shell_would_read():
    assert "#SBATCH '--comment=a b $(c)'\n" in script(on_slurm({"args": {"comment": "a b $(c)"}}), LAUNCH)


@pytest.mark.parametrize(
    "settings",
    [
        {"partition": "x\n#SBATCH --uid=0"},
        {"args": {"comment": "x\nrm -rf ~"}},
        {"args": {"comment\nrm": "x"}},
        {"args": {"nodes": 3}},
        {"step_args": {"nodelist": "x"}},
        {"time": 5400},  # what YAML makes of 1:30:00 without quotes
        {"nodes": 3, "prefill": {}},
    ],
)
def test_what_cannot_be_said(settings):
    with pytest.raises(ValidationError):
        SlurmSpec.model_validate(settings)


@pytest.mark.parametrize(
    ("settings", "of_job", "of_steps"),
    [
        ({}, "/login/python", "/login/python"),
        ({"python": "/arm/python"}, "/arm/python", "/arm/python"),  # nodes of another kind than the login node
        ({"step_args": {"container-image": "x"}}, "/login/python", "python3"),  # disagg stays outside of the image
        ({"step_args": {"container-image": "x"}, "python": "/opt/python"}, "/login/python", "/opt/python"),
    ],
)
def test_which_python_runs_what(settings, of_job, of_steps):
    spec = SlurmSpec.model_validate(settings)
    assert (spec.python_of_job("/login/python"), spec.python_of_steps("/login/python")) == (of_job, of_steps)


@pytest.mark.parametrize(
    ("nodes", "asked", "per_domain", "segment"),
    [
        (2, None, 18, 2),  # all in one domain
        (18, None, 18, 18),
        (20, None, 18, 10),  # two equal parts
        (19, None, 18, 1),  # no equal parts: nothing is asked for
        (36, None, 18, 18),
        (20, 5, 18, 5),
        (3, 16, 18, 3),
        (4, None, 1, 1),  # boards that are domains of their own
    ],
)
def test_segments(nodes, asked, per_domain, segment):
    assert segment_of(nodes, asked, per_domain) == segment


def test_a_segment_is_asked_for_only_where_domains_span_nodes():
    two = {"prefill": {"tp": 4}, "decode": {"tp": 4}}
    assert "segment=2" in directives(on_slurm(**two))
    assert not [line for line in directives(on_slurm({"segment": 0}, **two)) if line.startswith("segment")]
    hgx = on_slurm(platform="h100", prefill={"tp": 8}, decode={"tp": 8})
    assert not [line for line in directives(hgx) if line.startswith("segment")]


def test_placement_takes_segments_for_domains():
    deployment = on_slurm({"nodes": 20}, prefill={"tp": 40}, decode={"tp": 40})
    domains = {worker.name: {share.host.domain for share in worker.shares} for worker in deployment.workers}
    assert domains == {"prefill-0": {0}, "decode-0": {1}}
