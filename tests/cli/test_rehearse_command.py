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


PAGES = {
    "prefill": {"tp": 2, "args": {"attention-backend": "fa4"}},
    "decode": {"tp": 1, "args": {"attention-backend": "trtllm_mha"}},
}
"""128 tokens a page against 64."""


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


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"prefill": {"tp": 2, "pp": 3}, "decode": {"tp": 1}}, "DSG112"),
        ({"prefill": {"tp": 1, "args": {"dtype": "half"}}}, "DSG503"),
        ({"platform": "b200", **PAGES}, "DSG502"),
    ],
)
def test_what_is_wrong_with_the_topology_is_wrong_with_its_rehearsal(tmp_path, changes, code):
    """Stages, a dtype, page sizes: its twin on CPUs would have none of it."""
    done = disagg("rehearse", on_gpus(tmp_path, **changes), "--dry-run")
    assert (done.returncode, code in done.stderr) == (3, True), done.stderr


def test_pages_are_those_of_the_attention_backend(tmp_path):
    args = {"attention-backend": "trtllm_mha"}
    found = plan_of(on_gpus(tmp_path, platform="b200", engine={"args": args}))
    assert {found["topology"][role][0]["args"]["page-size"] for role in ("prefill", "decode")} == {64}


def test_what_cpus_have_otherwise_is_said(tmp_path):
    notes = [note["what"] for note in plan_of(on_gpus(tmp_path))["notes"]]
    assert any("--page-size 1, --chunked-prefill-size 512" in note for note in notes)
    assert "the overlap scheduler by the plain one" in notes


def test_a_kv_dtype_is_no_reason_to_refuse(tmp_path):
    """It is not there in the rehearsal; sides that differ are found all the same."""
    args = {"args": {"kv-cache-dtype": "fp8_e4m3"}}
    assert "kv-cache-dtype" not in str(plan_of(on_gpus(tmp_path, engine=args))["topology"])
    plan_of(on_gpus(tmp_path, prefill={"tp": 2, "args": {"kv-cache-dtype": "bfloat16"}}))  # what decode has by itself


def test_a_smaller_rehearsal_is_called_so(home, tmp_path):
    topology = on_gpus(tmp_path)
    rehearsed(topology, notes=[{"kind": "reduced", "what": "2 x decode TP1: only 1", "why": "memory"}])
    assert "passed, with 2 x decode TP1: only 1" in disagg("launch", topology, "--dry-run").stdout
