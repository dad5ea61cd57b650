"""Servers started by their ordinary command lines, as on GPUs: the same tokens as forked ones, and the same end."""

import json
from pathlib import Path

from aggregated import aggregated
from launched import Launched, answers, run, write_topology

from disagg_cli.topology.synthetic import SyntheticModel


def test_cold_start_serves_the_same_tokens_and_is_stopped_without_its_launch(
    environment: dict[str, str], warm_parent: str, tmp_path: Path, interrupt_all: list[Launched]
) -> None:
    config = write_topology(tmp_path, name="cold", decode={"workers": 1, "tp": 1})
    with aggregated(warm_parent, tmp_path, SyntheticModel(), tp=1, port=21950) as truth:
        expected = answers(truth)
    one = Launched(environment, tmp_path, config, "--cold")
    interrupt_all.append(one)
    one.wait_for("serving", timeout=280)
    assert "imported once" not in one.output.read_text()
    assert answers(one.state["url"]) == expected

    one.process.kill()  # nobody is left who owns its processes: cold ones outlive `disagg` itself
    one.process.wait(5)
    stopped = run(environment, "stop", "--run", one.run_dir.name, "--json")
    assert set(json.loads(stopped.stdout)["leftovers"]) == {"prefill-0", "decode-0", "router"}
    assert one.state["phase"] == "ended"
    one.finish(1)
