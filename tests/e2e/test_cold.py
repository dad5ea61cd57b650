"""Servers started by their ordinary command lines, as on GPUs: the same tokens as forked ones, and the same end.

They ask for a key, and all of disagg's own requests have it, but no command line, log or record.
"""

import json
from pathlib import Path

import psutil
import pytest
from aggregated import aggregated
from launched import Launched, answers, run, write_topology

from disagg_cli.topology.synthetic import SyntheticModel

KEY = "planted-c93f0e1d"


def test_cold_start_serves_the_same_tokens_and_is_stopped_without_its_launch(
    environment: dict[str, str],
    warm_parent: str,
    tmp_path: Path,
    interrupt_all: list[Launched],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = {"args": {"api-key": "${KEY}"}}
    evaluated = {"gsm8k": {"dataset": "mini", "questions": 2, "shots": 1, "max_tokens": 8}}
    decode = {"workers": 1, "tp": 1}
    config = write_topology(tmp_path, name="cold", decode=decode, engine=key, router=key, eval=evaluated)
    with aggregated(warm_parent, tmp_path, SyntheticModel(), tp=1, port=21950) as truth:
        expected = answers(truth)
    one = Launched({**environment, "KEY": KEY}, tmp_path, config, "--cold")
    interrupt_all.append(one)
    one.wait_for(" s  serving", timeout=280)
    assert "imported once" not in one.output.read_text()
    monkeypatch.setenv("DISAGG_API_KEY", KEY)
    assert answers(one.state["url"]) == expected
    assert not [line for line in command_lines() if KEY in line]

    one.process.kill()  # nobody is left who owns its processes: cold ones outlive `disagg` itself
    one.process.wait(30)
    stopped = run(environment, "stop", "--run", one.run_dir.name, "--json")
    assert set(json.loads(stopped.stdout)["leftovers"]) == {"prefill-0", "decode-0", "router"}
    assert one.state["phase"] == "ended"
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert not [path for path in one.run_dir.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert json.loads((one.run_dir / "eval" / "summary.json").read_text())
    one.finish(60)


def command_lines() -> list[str]:
    """Those of all processes of this machine."""
    return [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
