"""`disagg rehearse` up to the first process, and what `disagg launch` says of rehearsals."""

import json
import time

import pytest
from command_line import disagg
from deployments import ROOT, write_topology

from disagg_cli.runtime import rundir
from disagg_cli.runtime.rehearse import last_rehearsal

EXAMPLE = ROOT / "configs/1p4d-gb200-qwen3-32b.yaml"
CLASS_H = {"model": {"synthetic": {"kv_heads": 1}}, "prefill": {"tp": 2}, "decode": {"tp": 4}}


def on_gpus(folder, **changes):
    return write_topology(folder, **({"platform": "h200", "model": "Qwen/Qwen3-32B"} | changes))


def plan_of(*args):
    done = disagg("rehearse", *args, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def rehearsed(topology, **changes):
    """Leave a report as a rehearsal does."""
    report = plan_of(topology) | {"at": time.time() - 600, "ok": True, "reason": "well", "exit_code": 0} | changes
    directory = rundir.create(f"rehearse-{report['name']}")
    directory.write("rehearsal.json", report | {"run": directory.path.name})
    return directory.path.name


def test_what_would_be_rehearsed(home):
    done = disagg("rehearse", EXAMPLE, "--dry-run")
    assert done.returncode == 0
    for part in (
        "1 x prefill TP4",
        "4 x decode TP1",
        "64 query heads, 8 KV heads",
        "layers 64 -> 2",
        "all hosts by this machine",
        "UCX_CUDA_IPC_ENABLE_MNNVL: RDMA transport",
        "8 ranks in 22 processes",
    ):
        assert part in done.stdout
    assert not home.exists()


def test_as_one_document():
    found = plan_of(EXAMPLE)
    assert found["schema"] == "disagg.rehearsal/1"
    assert found["topology"]["model"]["synthetic"] == {"attention_heads": 64, "kv_heads": 8, "layers": 2, "hidden": 128}
    assert {note["kind"] for note in found["notes"]} == {"as written", "reduced", "replaced", "not covered"}
    assert found["needs"]["ranks"] == 8


def test_changes_are_made_first():
    found = plan_of(EXAMPLE, "--set", "decode.workers=2", "--set", "engine.args.page-size=64")
    assert found["topology"]["decode"] == [{"workers": 2, "tp": 1}]
    assert found["topology"]["engine"]["args"] == {"page-size": 64}


def test_a_model_that_cpus_cannot_run(home):
    done = disagg("rehearse", ROOT / "configs/gb200-qwen3.5-hybrid.yaml")
    assert done.returncode == 3
    assert "SGLang's CPU engine cannot run linear-attention or Mamba state" in done.stderr
    assert not home.exists()


def test_no_room(home, tmp_path):
    done = disagg("rehearse", on_gpus(tmp_path, prefill={"tp": 2048}, decode={"tp": 2}))
    assert done.returncode == 3
    assert "this machine has no room for a rehearsal: 2050 ranks" in done.stderr
    assert not home.exists()


def test_a_plan_that_says_no(home, tmp_path):
    """T < P < D, which no SGLang does right by itself."""
    done = disagg("rehearse", on_gpus(tmp_path, **CLASS_H), "--overlay", "off")
    assert done.returncode == 3
    assert "error: the plan forbids this launch: DSG115" in done.stderr
    assert "both sides replicate heads" in done.stderr
    assert not home.exists()


@pytest.mark.parametrize(
    ("flags", "said"), [(["--fault", "swap-hats"], "unknown fault: swap-hats"), (["--overlay", "perhaps"], "overlay")]
)
def test_words_that_are_not_known(flags, said):
    done = disagg("rehearse", EXAMPLE, *flags)
    assert done.returncode == 2
    assert said in done.stderr


def test_launch_says_that_there_was_no_rehearsal(home):
    assert "never rehearsed here as it is now" in disagg("launch", EXAMPLE, "--dry-run").stdout
    assert not home.exists()


def test_launch_tells_of_the_last_rehearsal(home):
    rehearsed(EXAMPLE, ok=False, reason="prefill-0 -> decode-0: no answer")
    assert "FAILED (prefill-0 -> decode-0: no answer)" in disagg("launch", EXAMPLE, "--dry-run").stdout
    name = rehearsed(EXAMPLE)
    assert f"rehearsed 10 min ago: passed ({name})" in disagg("launch", EXAMPLE, "--dry-run").stdout


def test_a_rehearsal_with_a_planted_fault_says_nothing_of_the_topology(home):
    rehearsed(EXAMPLE, fault="swap-heads", ok=False)
    assert "never rehearsed" in disagg("launch", EXAMPLE, "--dry-run").stdout


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ("decode.workers=2", True),
        ("engine.args.page-size=64", True),
        ("router.policy=random", True),
        ("connector.overlay=off", True),
        ("model=Qwen/Qwen3-8B", True),
        ("name=other", False),
        ("ports=28000", False),
        ("probe.timeout_s=60", False),
        ("eval.gsm8k.questions=10", False),
        ("engine.env.UCX_TLS=rc", False),
    ],
)
def test_what_makes_it_another_topology(change, counts):
    assert (plan_of(EXAMPLE)["fingerprint"] != plan_of(EXAMPLE, "--set", change)["fingerprint"]) is counts


def test_reports_that_cannot_be_read_are_passed_over(home):
    (rundir.create("rehearse-x").path / "rehearsal.json").write_text("{")
    assert last_rehearsal("0" * 16) is None
