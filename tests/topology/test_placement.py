"""Where workers go: explicit places, NVLink domains, Slurm nodes, ports that are given."""

from dataclasses import astuple, replace

import pytest
from deployments import ON_GPUS, on_cpu, on_gpus

from disagg_cli.engine.commands import Machine, worker_commands
from disagg_cli.errors import PlanRefused
from disagg_cli.kv.traffic import links
from disagg_cli.topology.deployment import on_hosts
from disagg_cli.topology.platforms import platforms
from disagg_cli.topology.resolve import draft, resolve
from disagg_cli.topology.spec import TopologySpec


def deployed(**changes):
    return resolve(TopologySpec.model_validate(ON_GPUS | changes))


def python3(_):
    return Machine(python="python3")


def places(deployment):
    return {w.name: [(share.host.name, share.gpus) for share in w.shares] for w in deployment.workers}


def test_a_worker_where_the_topology_says():
    deployment = on_gpus("a", "b", prefill={"tp": 2, "place": [{"b": [1, 3]}]}, decode={"workers": 2})
    assert places(deployment) == {
        "prefill-0": [("b", (1, 3))],
        "decode-0": [("a", (0,))],
        "decode-1": [("a", (1,))],
    }


def test_a_placed_worker_of_two_hosts():
    whole = [0, 1, 2, 3]
    deployment = on_gpus("a", "b", "c", prefill={"tp": 8, "place": [{"b": whole, "c": whole}]})
    assert [share.host.name for share in deployment.workers[0].shares] == ["b", "c"]


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ([{"a": [0]}], "prefill-0 needs 2 GPUs and is placed on 1"),
        ([{"a": [0, 4]}], "prefill-0 is placed on GPU 4 of a, which has 4"),
        ([{"z": [0, 1]}], r"prefill-0 is placed on z, which is none of the hosts \(a\)"),
        ([{"a": [1, 1]}], "prefill-0 is placed on GPU 1 of a, which is taken"),
        ([{"a": [0, 1]}, {"a": [2, 3]}], "prefill places 2 of 1 workers"),
    ],
)
def test_places_that_cannot_be(place, said):
    with pytest.raises(PlanRefused, match=said):
        on_gpus("a", prefill={"tp": 2, "place": place})


def test_a_worker_stays_inside_a_domain():
    """Hosts a and b are in different racks; b and c share one."""
    executor = {"ssh": {"hosts": ["a", "b", "c"], "domains": [1, 2]}}
    deployment = deployed(executor=executor, prefill={"tp": 8}, decode={"tp": 4})
    assert [share.host.name for share in deployment.workers[0].shares] == ["b", "c"]
    assert [host.domain for host in (w.host for w in deployment.workers)] == [1, 0]


def test_domains_hold_every_host():
    with pytest.raises(ValueError, match="domains hold 1 hosts, and there are 2"):
        deployed(executor={"ssh": {"hosts": ["a", "b"], "domains": [1]}})


def test_on_hgx_boards_each_host_is_a_domain():
    hosts = {"ssh": {"hosts": ["a", "b"]}}
    deployment = deployed(platform="h100", executor=hosts, prefill={"tp": 8}, decode={"tp": 8})
    assert [worker.host.domain for worker in deployment.workers] == [0, 1]


def test_slurm_nodes_are_as_many_as_needed():
    deployment = deployed(executor="slurm", prefill={"tp": 8}, decode={"workers": 4})
    assert places(deployment)["prefill-0"] == [("node-0", (0, 1, 2, 3)), ("node-1", (0, 1, 2, 3))]
    assert {place for name in ("decode-0", "decode-3") for place, _ in places(deployment)[name]} == {"node-2"}
    assert deployment.executor == "slurm"


def test_fewer_slurm_nodes_than_needed():
    with pytest.raises(PlanRefused, match=r"decode-0 needs 4 GPUs on 1 host of 4; 0 of 1"):
        deployed(executor={"slurm": {"nodes": 1}}, prefill={"tp": 4}, decode={"tp": 4})


@pytest.mark.parametrize("dp", [2, 4, 8])
def test_what_dp_groups_count_up_to_is_no_neighbours_port(dp):
    """Six ports above dist-init, one for each group, and the thirteenth, at which they meet (SGLang 0.5.23)."""
    groups = {"tp": 8, "dp": dp, "dp_attention": True}
    deployment = on_cpu(prefill=groups, decode={"tp": 1, "workers": 2})
    prefill, *others = deployment.workers
    taken = {prefill.ports.dist_init + counted for counted in (*range(7 + dp), 13)}
    assert not taken & {port for worker in others for port in astuple(worker.ports)}


def test_ports_that_are_given():
    deployment = on_gpus("a", "b", decode={"ports": {"http": 8000, "bootstrap": 8998}})
    ports = deployment.role("decode")[0].ports
    assert (ports.http, ports.bootstrap, ports.nccl) == (8000, 8998, 30018)


def test_what_does_not_fit_is_drafted_all_the_same():
    deployment = draft(TopologySpec.model_validate(ON_GPUS | {"prefill": {"tp": 8}}))
    assert [misfit.code for misfit in deployment.misfits] == ["DSG301"]
    assert deployment.workers[0].host.invented
    assert deployment.role("decode")[0].host.name == "localhost"


def test_workers_that_see_every_gpu():
    deployment = on_gpus("a", prefill={"tp": 2}, decode={"place": [{"a": [3]}]}, engine={"select_gpus": "base_gpu_id"})
    (prefill,), (decode,) = (
        worker_commands(deployment, worker, model_path="M", machines=python3) for worker in deployment.workers
    )
    assert "--gpu-id-step" not in prefill.argv
    assert prefill.argv[prefill.argv.index("--base-gpu-id") + 1] == "0"
    assert decode.argv[decode.argv.index("--base-gpu-id") + 1] == "3"
    assert prefill.env == {}


def test_gpus_in_steps():
    placed = {"tp": 2, "place": [{"a": [0, 2]}]}
    deployment = on_gpus("a", prefill=placed, engine={"select_gpus": "base_gpu_id"})
    (command,) = worker_commands(deployment, deployment.workers[0], model_path="M", machines=python3)
    assert command.argv[command.argv.index("--gpu-id-step") + 1] == "2"


@pytest.mark.parametrize("platform", platforms().values(), ids=lambda platform: platform.name)
def test_a_platforms_facts(platform):
    assert {platform.scale_up, platform.scale_out} - {None} <= set(links())
    assert all(setting.why and setting.source for setting in platform.environment)
    assert platform.on_cpu or platform.memory_gb


def test_not_every_platform_is_verified():
    assert [platform.name for platform in platforms().values() if not platform.verified] == ["mi300x", "mi355x"]


ON_HOSTS = {"executor": {"ssh": {"hosts": ["a", "b"]}}, "decode": {"workers": 3}}


def test_on_cpus_workers_go_to_one_host_after_another():
    deployment = on_cpu(**ON_HOSTS)
    assert places(deployment) == {
        "prefill-0": [("a", ())],
        "decode-0": [("b", ())],
        "decode-1": [("a", ())],
        "decode-2": [("b", ())],
    }
    assert deployment.router.host.name == "a"


def test_on_cpus_a_place_names_hosts_alone():
    deployment = on_cpu(**ON_HOSTS, prefill={"tp": 2, "place": [{"b": []}]})
    assert places(deployment)["prefill-0"] == [("b", ())]
    with pytest.raises(PlanRefused, match="prefill-0 is placed on GPU 0 of b, which has none"):
        on_cpu(**ON_HOSTS, prefill={"place": [{"b": [0]}]})


def test_servers_bind_the_address_that_is_given_for_a_host():
    ssh = {"hosts": ["me@a", "b"], "addresses": {"me@a": "10.0.0.1"}}
    deployment = on_cpu(executor={"ssh": ssh})
    assert [worker.host.address for worker in deployment.workers] == ["10.0.0.1", "b", "10.0.0.1"]


def test_the_machines_behind_the_hosts():
    """Their names and addresses change, and nothing else does."""
    before = on_gpus("a", "b", prefill={"tp": 4}, decode={"tp": 4}, router={"host": "0.0.0.0"})
    after = on_hosts(before, {"a": replace(before.hosts[0], name="n7", address="10.0.0.7")})
    assert [(w.name, w.host.name, w.url, w.shares[0].gpus) for w in after.workers] == [
        ("prefill-0", "n7", "http://10.0.0.7:30000", (0, 1, 2, 3)),
        ("decode-0", "b", "http://b:30000", (0, 1, 2, 3)),
    ]
    assert (after.router.host.name, after.router.host.address) == ("n7", "0.0.0.0")
    assert [worker for pool in after.pools for worker in pool.workers] == list(after.workers)
