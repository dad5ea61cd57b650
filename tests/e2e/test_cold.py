"""Servers started by their ordinary command lines, as on GPUs, serve the same tokens as forked ones."""

import signal
from pathlib import Path

from aggregated import aggregated
from launched import Launched, answers, write_topology

from disagg_cli.topology.synthetic import SyntheticModel


def test_cold_start_serves_the_same_tokens(
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
    assert one.finish(10, signal.SIGINT)[0] == 0
