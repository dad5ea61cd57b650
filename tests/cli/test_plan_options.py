"""`disagg plan` with its other options."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

DISAGG = Path(sys.executable).with_name("disagg")
SEED = ["--prefill-tp", "4", "--decode-tp", "1", "--sglang", "0.5.23"]


def plan(*args):
    return subprocess.run([DISAGG, "plan", *args], capture_output=True, text=True, timeout=60)


def document(*args):
    return json.loads(plan(*args, "--json").stdout)


def test_releases_are_a_row_of_outcomes():
    row = document(*SEED, "--releases")["releases"]
    assert len(row) == 25
    assert {row[name]["outcome"] for name in ("0.5.10", "0.5.11", "0.5.12")} == {"hang"}
    assert row["0.5.12.post1"]["outcome"] == "ok"
    assert row["0.5.12.post1"]["reason"] == row["0.5.23"]["reason"]


def test_the_overlays_outcome_stands_beside_the_stock_one():
    row = document("--prefill-tp", "4", "--decode-tp", "8", "--kv-heads", "2", "--releases")["releases"]
    assert (row["0.5.23"]["outcome"], row["0.5.23"]["overlay"]["outcome"]) == ("assertion", "ok")
    assert row["0.5.10"]["overlay"] == {"available": False, "applied": False, "outcome": None}


def test_releases_for_a_person():
    text = plan(*SEED, "--releases").stdout
    assert "* 0.5.12.post1 - 0.5.23" in text
    assert "Right from 0.5.12.post1 on." in text


def test_a_release_that_no_plan_helps_says_so():
    text = plan("--prefill-tp", "4", "--decode-tp", "8", "--kv-heads", "2", "--releases").stdout
    assert "No release through the newest known is right." in text


def test_traffic_is_in_the_document():
    traffic = document(*SEED, "--tokens", "1000")["traffic"]
    assert (traffic["tokens"], traffic["request_bytes"]) == (1000, 1000 * 256 * 1024)
    assert traffic["least_seconds"]["tcp-25"] == pytest.approx(1000 * 256 * 1024 / 3.125e9)


def test_a_link_that_is_too_slow_is_refused():
    done = plan(*SEED, "--link", "tcp-25", "--ttft-ms", "300")
    assert done.returncode == 3
    assert "DSG141" in done.stdout
    assert plan(*SEED, "--link", "ib-ndr", "--ttft-ms", "300").returncode == 0


def test_fp8_halves_the_cache():
    assert document(*SEED, "--kv-dtype", "fp8_e4m3")["model"]["bytes_per_token"] == 128 * 1024


def test_mla_has_contacts_that_send_nothing():
    made = document(*SEED, "--model", "deepseek-ai/DeepSeek-V3")
    assert made["model"]["layout"] == "mla"
    assert [contact["prefill_rank"] for contact in made["dummy_contacts"]] == [1, 2, 3]


def test_stages_name_their_layers():
    made = document(*SEED, "--prefill-pp", "2")
    assert [stage["layers"] for stage in made["stages"]] == [[0, 32], [32, 64]]


def test_state_moves_part_by_part():
    made = document(*SEED, "--model", "Qwen/Qwen3.5-397B-A17B")
    assert {(route["tensor"], route["part"]) for route in made["state_routes"]} == {
        ("conv", 0), ("conv", 1), ("conv", 2), ("ssm", 0),
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_a_drawing(tmp_path, kind):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plan.{kind}"
    assert plan(*SEED, f"--{kind}", str(path)).returncode == 0
    assert path.read_bytes()[:5] in (b"<?xml", b"\x89PNG\r")


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ("--tokens 0", "tokens must be at least 1, not 0"),
        ("--page-size -1", "page-size must be at least 1"),
        ("--ttft-ms 0", "ttft-ms must be more than 0"),
        ("--ttft-ms nan", "ttft-ms must be more than 0"),
        ("--link pigeon", "unknown link 'pigeon'"),
        ("--kv-dtype int3", "unknown KV dtype 'int3'"),
        ("--model /no/such/folder", "no KV layout for model"),
        ("--model deepseek-ai/DeepSeek-V3 --kv-heads 2", "no KV heads to set"),
        ("--svg /no/such/folder/plan.svg", "cannot write the drawing"),
    ],
)
def test_bad_input_is_a_sentence_and_exit_code_2(args, complaint):
    done = plan(*SEED, *args.split())
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "config",
    [
        "{",
        "[]",
        '{"text_config": 3}',
        '{"num_hidden_layers": {}}',
        '{"kv_lora_rank": 512}',
        '{"layer_types": 4}',
        "null",
    ],
)
def test_no_config_shows_a_traceback(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    done = plan(*SEED, "--model", str(tmp_path))
    assert done.returncode in (2, 3)
    assert "error:" in done.stderr
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
