"""Placement and ports: which worker runs where, on which GPUs, and what it listens on."""

from collections import Counter

import pytest
from deployments import ON_GPUS, on_cpu, on_gpus
from hypothesis import given
from hypothesis import strategies as st

from disagg_cli.errors import PlanRefused
from disagg_cli.topology.deployment import bracketed
from disagg_cli.topology.platforms import platforms
from disagg_cli.topology.resolve import BLOCK, resolve
from disagg_cli.topology.spec import TopologySpec


def places(deployment):
    """Worker -> [(host, GPUs)]."""
    return {w.name: [(share.host.name, share.gpus) for share in w.shares] for w in deployment.workers}


def test_on_cpus_everything_is_here():
    deployment = on_cpu()
    assert places(deployment) == {
        "prefill-0": [("localhost", ())],
        "decode-0": [("localhost", ())],
        "decode-1": [("localhost", ())],
    }
    assert [worker.url for worker in deployment.workers] == [f"http://127.0.0.1:{p}" for p in (30000, 30016, 30032)]
    assert deployment.router.url == "http://127.0.0.1:8000"


def test_every_pair():
    pairs = on_cpu(prefill=[{"tp": 1}, {"tp": 2}]).pairs
    assert [(p.name, d.name) for p, d in pairs] == [(f"prefill-{p}", f"decode-{d}") for p in (0, 1) for d in (0, 1)]


def test_1p4d_on_two_nodes_of_four():
    assert places(on_gpus("a", "b", prefill={"tp": 4}, decode={"workers": 4})) == {
        "prefill-0": [("a", (0, 1, 2, 3))],
        "decode-0": [("b", (0,))],
        "decode-1": [("b", (1,))],
        "decode-2": [("b", (2,))],
        "decode-3": [("b", (3,))],
    }


def test_small_workers_fill_what_others_left():
    deployment = on_gpus("a", "b", prefill={"workers": 2, "tp": 3}, decode={"workers": 2})
    assert places(deployment)["decode-0"] == [("a", (3,))]
    assert places(deployment)["decode-1"] == [("b", (3,))]


def test_a_worker_of_two_nodes():
    deployment = on_gpus("a", "b", "c", prefill={"tp": 8}, decode={"tp": 4})
    whole = (0, 1, 2, 3)
    assert places(deployment) == {"prefill-0": [("a", whole), ("b", whole)], "decode-0": [("c", whole)]}
    assert deployment.workers[0].host.name == "a"


def test_a_worker_of_two_nodes_has_the_same_ports_on_both():
    """Before SGLang 0.5.12 the bootstrap port must be equal on all nodes, and there is one port flag for all."""
    deployment = on_gpus("a", "b", "c", prefill=[{"tp": 1}, {"tp": 8}], decode={"tp": 1})
    small, large, _ = deployment.workers
    assert [share.host.name for share in large.shares] == ["b", "c"]
    assert large.ports.http == 30000
    assert small.ports.http == 30000


@pytest.mark.parametrize(
    ("role", "ranks"), [({"tp": 2, "pp": 2}, 4), ({"tp": 2, "dp": 2}, 4), ({"tp": 4, "dp": 2, "dp_attention": True}, 4)]
)
def test_pp_and_plain_dp_take_gpus_and_dp_attention_shares_them(role, ranks):
    worker = on_gpus("a", "b", prefill=role).role("prefill")[0]
    assert worker.ranks == ranks == sum(len(share.gpus) for share in worker.shares)


def test_too_few_hosts():
    with pytest.raises(
        PlanRefused, match=r"decode-0 needs 1 GPU on 1 host of 4; 0 of 1 have room for it \(and 1 more worker\)"
    ):
        on_gpus("a", prefill={"tp": 4})


def test_no_whole_number_of_nodes():
    with pytest.raises(PlanRefused, match="prefill-0 needs 6 GPUs, no multiple of the 4 GPUs of a gb200-nvl72 node"):
        on_gpus("a", "b", "c", prefill={"tp": 6})


def test_plain_dp_does_not_spread_over_hosts():
    with pytest.raises(PlanRefused, match="2 plain data-parallel replicas do not spread over 2 hosts"):
        on_gpus("a", "b", "c", prefill={"tp": 4, "dp": 2})


def test_without_hosts_gpus_are_this_machines():
    deployment = on_gpus(prefill={"tp": 2})
    assert {share.host.name for worker in deployment.workers for share in worker.shares} == {"localhost"}
    assert deployment.executor == "local"


def test_ssh_user_is_no_part_of_the_address():
    deployment = on_gpus("me@a", "fe80::1", prefill={"tp": 4})
    assert [w.url for w in deployment.workers][:2] == ["http://a:30000", "http://[fe80::1]:30000"]
    assert deployment.workers[0].host.name == "me@a"


def test_ipv6_in_brackets():
    assert (bracketed("::1"), bracketed("127.0.0.1")) == ("[::1]", "127.0.0.1")


def test_the_router_binds_what_it_is_told():
    router = on_cpu(router={"host": "0.0.0.0", "port": 9000, "args": {"cache_threshold": 0.5}}).router
    assert (router.host.address, router.url) == ("0.0.0.0", "http://0.0.0.0:9000")
    assert router.args == {"cache-threshold": 0.5}


def test_workers_leave_the_routers_port_alone():
    deployment = on_cpu(ports=7990)
    assert [worker.ports.http for worker in deployment.workers] == [8001, 8017, 8033]


def test_out_of_ports():
    with pytest.raises(PlanRefused, match="out of ports on localhost"):
        on_cpu(ports=32000, decode={"workers": 2500})


def test_the_pools_settings_win_over_the_engines():
    deployment = on_cpu(
        engine={"args": {"page-size": 1, "log-level": "info"}, "env": {"A": "1", "B": "1"}},
        decode={"args": {"--page_size": 64}, "env": {"B": "2"}},
    )
    prefill, decode = deployment.workers
    assert prefill.args == {"page-size": 1, "log-level": "info"}
    assert decode.args == {"page-size": 64, "log-level": "info"}
    assert (prefill.env, decode.env) == ({"A": "1", "B": "1"}, {"A": "1", "B": "2"})


@pytest.mark.parametrize(
    ("model", "name", "served"),
    [
        ("synthetic", "synthetic", "synthetic"),
        ("Qwen/Qwen3-32B", "Qwen/Qwen3-32B", "Qwen/Qwen3-32B"),
        ({"path": "/models/q", "served_name": "q"}, "/models/q", "q"),
    ],
)
def test_a_models_names(model, name, served):
    deployment = on_cpu(model=model)
    assert (deployment.model.name, deployment.model.served_name) == (name, served)


def test_every_platform_states_its_source():
    assert all(platform.source for platform in platforms().values())
    assert [name for name, platform in platforms().items() if platform.on_cpu] == ["cpu"]
    assert all(platform.gpus_per_node for platform in platforms().values() if not platform.on_cpu)


@st.composite
def pools(draw):
    tp = draw(st.sampled_from([1, 2, 3, 4, 8]))
    pool = {"workers": draw(st.integers(1, 3)), "tp": tp}
    if draw(st.booleans()):
        pool |= {"dp": draw(st.sampled_from([d for d in (1, 2, 4, 8) if tp % d == 0])), "dp_attention": True}
    return pool


@st.composite
def topologies(draw):
    return ON_GPUS | {
        "prefill": draw(st.lists(pools(), min_size=1, max_size=3)),
        "decode": draw(st.lists(pools(), min_size=1, max_size=3)),
        "ports": draw(st.sampled_from([7980, 8000, 30000])),
        "executor": {"ssh": {"hosts": list("abcdef"[: draw(st.integers(1, 6))])}},
    }


def resolved(topology):
    """The deployment, or None where the hosts do not hold it."""
    try:
        return resolve(TopologySpec.model_validate(topology))
    except PlanRefused:
        return None


@given(topologies())
def test_no_gpu_and_no_port_twice(topology):
    if (deployment := resolved(topology)) is None:
        return
    gpus = Counter((share.host.name, gpu) for w in deployment.workers for share in w.shares for gpu in share.gpus)
    router = deployment.router
    ports = Counter([(router.host.name, router.port), (router.host.name, router.metrics_port)])
    for worker in deployment.workers:
        block = range(worker.ports.http, worker.ports.http + BLOCK)
        ports.update((share.host.name, port) for share in worker.shares for port in block)
    assert set((gpus + ports).values()) == {1}


@given(topologies())
def test_every_worker_has_its_gpus(topology):
    if (deployment := resolved(topology)) is None:
        return
    for worker in deployment.workers:
        assert sum(len(share.gpus) for share in worker.shares) == worker.ranks
        assert all(0 <= gpu < share.host.gpus for share in worker.shares for gpu in share.gpus)


@given(topologies(), st.randoms())
def test_the_order_of_pools_does_not_change_how_many(topology, random):
    """On as many hosts as there are workers' nodes nothing is refused, whatever the order."""
    roomy = topology | {"executor": {"ssh": {"hosts": [f"host-{n}" for n in range(48)]}}}
    shuffled = roomy | {role: random.sample(roomy[role], len(roomy[role])) for role in ("prefill", "decode")}
    assert sizes(resolve(TopologySpec.model_validate(roomy))) == sizes(resolve(TopologySpec.model_validate(shuffled)))


def sizes(deployment):
    return Counter((worker.role, worker.tp, worker.dp, worker.ranks) for worker in deployment.workers)
