"""`disagg plan` from the outside."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

DISAGG = Path(sys.executable).with_name("disagg")


def plan(*args):
    return subprocess.run([DISAGG, "plan", *args], capture_output=True, text=True, timeout=60)


def test_the_seeds_case_holds():
    done = plan("--prefill-tp", "4", "--decode-tp", "1", "--sglang", "0.5.23")
    assert done.returncode == 0
    assert "Qwen/Qwen3-32B (by default" in done.stdout
    assert "each decode rank waits for 4 senders" in done.stdout
    assert "The plan holds." in done.stdout


def test_the_seeds_case_is_refused_on_a_release_that_hangs():
    done = plan("--prefill-tp", "4", "--decode-tp", "1", "--sglang", "0.5.11")
    assert done.returncode == 3
    assert "error DSG111" in done.stdout
    assert "install sglang>=0.5.12.post1" in done.stdout


def test_json_is_one_document():
    done = plan("--prefill-tp", "4", "--decode-tp", "8", "--kv-heads", "2", "--sglang", "0.5.23", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 3
    assert document["connector"]["outcome"] == "assertion"
    assert document["model"]["total_kv_heads"] == 2


def test_dp_attention_and_stages():
    sizes = "--prefill-tp 8 --prefill-dp 2 --prefill-dp-attention --prefill-pp 2 --decode-tp 1 --sglang 0.5.23"
    document = json.loads(plan(*sizes.split(), "--json").stdout)
    assert document["prefill"]["attention_tp"] == 4
    assert document["completion"]["keys_expected"] == 8


def test_pools_are_planned_together():
    done = plan("--prefill-tp", "2", "--decode-tp", "1", "--decode-tp", "4", "--sglang", "0.5.23")
    assert done.returncode == 3
    assert "DSG122" in done.stdout


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ("--prefill-tp 0 --decode-tp 1", "tp must be at least 1, not 0"),
        ("--prefill-tp 1 --decode-tp -1", "tp must be at least 1, not -1"),
        ("--prefill-tp 1 --decode-tp 1 --kv-heads 0", "total_kv_heads must be at least 1, not 0"),
        ("--prefill-tp 4 --prefill-dp 3 --prefill-dp-attention --decode-tp 1", "4 is no multiple of 3"),
        ("--prefill-tp 1 --decode-tp 1 --sglang latest", "'latest' is no SGLang version"),
        ("--prefill-tp 1 --decode-tp 1 --model nope", "no KV layout for model 'nope'"),
        ("--prefill-tp 1", "Missing option '--decode-tp'"),
    ],
)
def test_bad_input_is_a_sentence_and_exit_code_2(args, complaint):
    done = plan(*args.split())
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def test_a_layout_that_is_not_modelled_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"block_configs": [{}]}')
    done = plan("--prefill-tp", "1", "--decode-tp", "1", "--model", str(tmp_path))
    assert done.returncode == 3
    assert "differ from layer to layer" in done.stderr
