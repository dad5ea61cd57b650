"""CPU servers keep the GPU's head layout, so that a rehearsal on CPUs says something about GPUs."""

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from aggregated import aggregated
from launched import Launched, answers, write_topology

from disagg_cli.topology.synthetic import SyntheticModel


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_aggregated_servers_of_any_tp_agree(warm_parent: str, tmp_path: Path, kv_heads: int) -> None:
    model = SyntheticModel(kv_heads=kv_heads)
    with ExitStack() as servers:
        said = [
            answers(servers.enter_context(aggregated(warm_parent, tmp_path, model, tp=tp, port=21800 + 10 * tp)))
            for tp in (1, 2, 4)
        ]
    assert said[0] == said[1] == said[2]


def test_replicated_heads_on_the_prefill_side(
    environment: dict[str, str], warm_parent: str, tmp_path: Path, interrupt_all: list[Launched]
) -> None:
    """TP4 -> TP1 with two KV heads: each head stands on two prefill ranks."""
    config = write_topology(
        tmp_path,
        name="tp4-t2",
        model={"synthetic": {"kv_heads": 2}},
        prefill={"tp": 4},
        decode={"tp": 1},
    )
    one = Launched(environment, tmp_path, config)
    interrupt_all.append(one)
    with aggregated(warm_parent, tmp_path, SyntheticModel(kv_heads=2), tp=1, port=21860) as truth:
        one.wait_for("serving")
        assert answers(one.state["url"]) == answers(truth)
    assert one.finish(60, signal.SIGINT)[0] == 0
