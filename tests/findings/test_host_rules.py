"""One row per finding about a host: what is known of a host that is well, with one thing changed."""

from dataclasses import replace

import pytest
from deployments import on_gpus

from disagg_cli.connector.releases import choose_release
from disagg_cli.findings.host_rules import judge_hosts
from disagg_cli.topology.machine import Facts, HostFacts, Rail

PACKAGES = {"sglang": "0.5.23", "nixl-cu13": "1.5.1", "sglang-router": "0.3.2"}
WELL = HostFacts(host="a", python="/opt/python", plugin=True, gpus=4, facts=Facts(packages=PACKAGES))
DEPLOYMENT = on_gpus("a", prefill={"tp": 2}, engine={"sglang": "0.5.23"})
(HOST,) = DEPLOYMENT.hosts
PORTS = {HOST: {30000: "prefill-0 http"}}


PLANNED = choose_release("0.5.23")


def judged(host, *, deployment=DEPLOYMENT, ports=PORTS, plugin=True, planned=PLANNED):
    found = judge_hosts(deployment, [host], ports=ports, plugin=plugin, planned=planned)
    return {one.code: one.message for one in found}


def without(*packages):
    return Facts(packages={name: version for name, version in PACKAGES.items() if name not in packages})


def test_a_host_that_is_well():
    assert judged(WELL) == {}


@pytest.mark.parametrize(
    ("code", "change", "said"),
    [
        ("DSG411", {"problem": "Connection refused"}, "a cannot be used: Connection refused"),
        ("DSG412", {"facts": without("nixl-cu13")}, "not installed on a, for /opt/python: nixl"),
        ("DSG412", {"facts": without("sglang-router")}, "not installed on a, for /opt/python: sglang-router"),
        (
            "DSG413",
            {"facts": Facts(packages=PACKAGES | {"sglang": "0.5.22"})},
            "a has sglang 0.5.22, and the plan was judged by 0.5.23",
        ),
        ("DSG414", {"plugin": False}, "disagg is not installed on a, for /opt/python"),
        ("DSG415", {"taken": {"a": (30000,)}}, "ports that are taken on a (a): 30000 (prefill-0 http)"),
        ("DSG416", {"gpus": 3}, "a has 3 GPU(s), and workers are placed on GPUs up to number 3"),
        ("DSG417", {"missing": ("/models/x",)}, "a does not have /models/x"),
        ("DSG418", {"foreign": ("203.0.113.1",)}, "203.0.113.1 is no address of a"),
        (
            "DSG419",
            {"unreachable": {"a": (30000,)}},
            "ssh reaches a, and nothing else from here reaches a: 30000 (prefill-0 http)",
        ),
        (
            "DSG420",
            {"cut_off": {"b": {"a": (30000,)}, "c": {"a": (30000,)}}},
            "not reached from b, c, though a listens at a: 30000 (prefill-0 http)",
        ),
    ],
)
def test_a_rule(code, change, said):
    assert judged(replace(WELL, **change)) == {code: said}


def test_a_machine_of_two_names():
    """Both cannot listen at the same port; at others, as hosts behind one gateway may, they can."""
    twin, ports = replace(HOST, name="twin"), {HOST: {30000: "prefill-0 http"}}
    both = "a and twin are one machine, a, where each would listen at 30000"
    assert judged(WELL, ports=ports | {twin: {30000: "decode-0 http"}}) == {"DSG421": both}
    assert judged(WELL, ports=ports | {twin: {30016: "decode-0 http"}}) == {}


def test_what_cannot_be_asked_is_all_that_is_said():
    assert list(judged(HostFacts(host="a", problem="x"))) == ["DSG411"]


def test_the_plugin_is_needed_only_where_hooks_are():
    assert judged(replace(WELL, plugin=False), plugin=False) == {}


def test_the_router_is_needed_only_where_it_runs():
    assert judged(replace(WELL, host="b", facts=without("sglang-router"))) == {}


def test_another_build_of_a_release_is_no_other_release():
    assert judged(replace(WELL, facts=Facts(packages=PACKAGES | {"sglang": "0.5.23+cu130"}))) == {}


def test_gpus_that_nobody_could_count():
    assert judged(replace(WELL, gpus=None)) == {}


@pytest.mark.parametrize(("planned", "why"), [({"installed": "0.5.23"}, "as here"), ({}, "the newest known")])
def test_another_release_than_the_plan_took_where_none_is_named(planned, why):
    older = replace(WELL, facts=Facts(packages=PACKAGES | {"sglang": "0.5.12"}))
    (said,) = judged(older, deployment=on_gpus("a"), planned=choose_release(**planned)).values()
    assert said.endswith(f"judged by {choose_release(**planned).sglang}, {why}")


RAILS = (Rail(name="mlx5_0", numa=0, gpus=(0, 1)), Rail(name="mlx5_1", numa=1, gpus=(2, 3)))


@pytest.mark.parametrize(
    ("adapter", "host", "said"),
    [
        ("mlx5_0:1", "a", {}),
        ("mlx5_1:1", "a", {"DSG732": "a: prefill-0 on GPUs [0, 1] uses mlx5_1 (NUMA node 1); nearer: mlx5_0"}),
        ("mlx5_7:1", "a", {"DSG731": "a: mlx5_7 (prefill) is not in /sys/class/infiniband; there are mlx5_0, mlx5_1"}),
        ("mlx5_7:1", "b", {}),  # no worker of that pool runs there
    ],
)
def test_adapters_are_compared_with_those_of_the_host(adapter, host, said):
    """UCX_NET_DEVICES is about the host's own adapters, wherever disagg runs."""
    engine = {"env": {"UCX_NET_DEVICES": adapter}}
    prefill = {"tp": 2, "place": [{"a": [0, 1]}], **engine}
    deployment = on_gpus("a", "b", prefill=prefill, decode={"tp": 2, "place": [{"b": [0, 1]}]})
    facts = Facts(installed="0.5.23", packages=PACKAGES, rails=RAILS)
    assert judged(replace(WELL, host=host, facts=facts), deployment=deployment) == said
