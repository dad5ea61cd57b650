"""From a topology for GPUs to the one that rehearses it: the same workers, flags of the KV path, ports and router."""

from pathlib import Path

import pytest
from deployments import ON_GPUS, ROOT

from disagg_cli.errors import PlanRefused
from disagg_cli.rehearsal.derive import derive
from disagg_cli.rehearsal.notes import grouped
from disagg_cli.rehearsal.scaling import Room, fit
from disagg_cli.topology.loading import load_topology, read_topologies
from disagg_cli.topology.resolve import resolve
from disagg_cli.topology.spec import TopologySpec

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
ROOMY = Room(cores=64, memory_gib=512)
REFUSED = {"gb200-qwen3.5-hybrid": "linear-attention or Mamba state"}
"""Why those that no machine can rehearse are refused."""


def derived(**changes):
    return derive(TopologySpec.model_validate(ON_GPUS | changes))


def whats(found, kind):
    return [note.what for note in grouped(found.notes) if note.kind == kind]


def specs_of(config):
    """Every variant of a file."""
    return [spec for one in read_topologies(config) for spec in one.specs]


def test_the_first_example():
    assert derive(load_topology(ROOT / "configs/1p4d-gb200-qwen3-32b.yaml")).document == {
        "name": "rehearse-1p4d-gb200-qwen3-32b",
        "platform": "cpu",
        "model": {"synthetic": {"attention_heads": 64, "kv_heads": 8, "layers": 2, "hidden": 128}},
        "prefill": [{"workers": 1, "tp": 4}],
        "decode": [{"workers": 4, "tp": 1}],
        "engine": {"args": {}, "env": {}},
        "connector": {"backend": "nixl", "overlay": "auto"},
        "router": {"policy": "round_robin", "port": 8000, "args": {}},
        "ports": 30000,
        "probe": {"parity": True, "timeout_s": 90.0},
        "eval": {"gsm8k": {"dataset": "mini", "questions": 20, "shots": 2, "concurrency": 8, "max_tokens": 16}},
    }


@pytest.mark.parametrize("config", [path for path in CONFIGS if path.stem in REFUSED], ids=lambda path: path.stem)
def test_an_example_that_is_refused_with_the_reason(config: Path):
    for spec in specs_of(config):
        with pytest.raises(PlanRefused, match=REFUSED[config.stem]) as refusal:
            derive(spec)
        assert refusal.value.fix


@pytest.mark.parametrize("config", [path for path in CONFIGS if path.stem not in REFUSED], ids=lambda path: path.stem)
def test_every_other_example_has_the_same_workers(config: Path):
    for spec in specs_of(config):
        fitting, needs = fit(derive(spec), ROOMY, warm=True)
        deployment = resolve(fitting.spec)
        assert deployment.platform.on_cpu
        assert needs.ranks == sum(worker.ranks for worker in deployment.workers)
        pools = zip([*spec.prefill, *spec.decode], deployment.pools, strict=True)
        for asked, pool in pools:
            worker = pool.worker
            assert (asked.tp, asked.dp, asked.dp_attention, asked.pp) == (
                *(worker.tp, worker.dp, worker.dp_attention, worker.pp),
            )
            assert asked.workers == len(pool.workers)


def test_dp_attention_and_pipeline_stages_stay():
    found = derived(
        prefill={"tp": 4, "dp": 2, "dp_attention": True}, decode={"tp": 2, "pp": 2}, model="deepseek-ai/DeepSeek-R1"
    )
    assert found.document["prefill"] == [{"workers": 1, "tp": 4, "dp": 2, "dp_attention": True}]
    assert found.document["decode"] == [{"workers": 1, "tp": 2, "pp": 2}]
    assert "1 x prefill TP4 DP2 attention" in whats(found, "as written")


def test_replication_is_told():
    found = derived(prefill={"tp": 16}, decode={"tp": 8})
    assert "1 x prefill TP16, each KV head on 2 ranks" in whats(found, "as written")


def test_hosts_gpus_and_fixed_ports_give_way_to_this_machine():
    found = derived(
        prefill={"tp": 2, "place": [{"a": [0, 1]}], "ports": {"http": 31000}},
        executor={"ssh": {"hosts": ["a", "b"]}},
        router={"host": "10.0.0.7", "port": 8100, "policy": "cache_aware"},
        ports=28000,
    )
    assert found.document["prefill"] == [{"workers": 1, "tp": 2}]
    assert found.document["router"] == {"policy": "cache_aware", "port": 8100, "args": {}}
    assert found.document["ports"] == 28000
    told = " ".join(whats(found, "replaced"))
    assert "all hosts by this machine" in told
    assert "ports of a pool" in told


def test_a_routers_key_is_left_out():
    """What a rehearsal is derived to is kept as a file."""
    found = derived(router={"args": {"api-key": "planted", "cache-threshold": 0.5}})
    assert found.document["router"]["args"] == {"cache-threshold": 0.5}
    assert "router --api-key" in whats(found, "not covered")
    assert "planted" not in str(found)


def test_another_release_is_named():
    spec = TopologySpec.model_validate(ON_GPUS | {"engine": {"sglang": "0.5.17"}})
    assert "SGLang 0.5.17 by the 0.5.23 installed" in whats(derive(spec, installed="0.5.23"), "replaced")


def test_mooncake_is_refused():
    with pytest.raises(PlanRefused, match="moves KV with mooncake"):
        derived(connector={"backend": "mooncake"})


def test_what_is_written_can_be_read_again(tmp_path):
    found = derived(engine={"args": {"page-size": 64}}, decode=[{"tp": 1}, {"tp": 4}])
    assert found.spec == TopologySpec.model_validate(dict(found.document))
    assert found.spec.engine.args == {"page-size": 64}


def test_flags_of_several_values_stay_several():
    found = derived(engine={"args": {"prompt-tokens-buckets": ["custom", 8, 64]}})
    assert found.spec.engine.args == {"prompt-tokens-buckets": ("custom", 8, 64)}
    assert "--prompt-tokens-buckets custom 8 64" in whats(found, "as written")
