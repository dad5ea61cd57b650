"""Which node stands behind which host."""

import pytest

from disagg_cli.errors import LaunchFailed
from disagg_cli.executors.slurm.nodes import Node, cpu_counts, stand_in, torn
from disagg_cli.topology.deployment import Host


def hosts(*domains, group=0, first=0):
    return [
        Host(name=f"node-{first + n}", address="", gpus=4, local=False, domain=domain, group=group)
        for n, domain in enumerate(domains)
    ]


def nodes(text, group=None):
    """`a1 a2 b1`: nodes by name, the letter being their block."""
    return [Node(name=name, address="", job="1", cpus=1, group=group, block=name[0]) for name in text.split()]


def names(placed):
    return " ".join(node.name for node in placed.values())


def test_nodes_keep_their_order():
    assert names(stand_in(hosts(0, 0, 0), nodes("a1 a2 a3"))) == "a1 a2 a3"


def test_nodes_that_are_left_over_stay_empty():
    assert names(stand_in(hosts(0, 0), nodes("a1 a2 a3"))) == "a1 a2"


def test_too_few_nodes():
    with pytest.raises(LaunchFailed, match=r"the allocation has 2 node\(s\), and the topology needs 3"):
        stand_in(hosts(0, 0, 0), nodes("a1 a2"))


def test_a_domain_goes_into_one_block():
    """Slurm's order would tear both."""
    here, there = hosts(0, 0, 1, 1), nodes("a1 b1 b2 a2")
    placed = stand_in(here, there)
    assert names(placed) == "a1 a2 b1 b2"
    assert torn(here, placed) == []


def test_the_larger_domain_takes_the_larger_block():
    assert names(stand_in(hosts(0, 1, 1, 1), nodes("a1 b1 b2 b3"))) == "b1 b2 b3 a1"


def test_a_domain_takes_the_smallest_block_that_holds_it():
    assert names(stand_in(hosts(0, 0), nodes("a1 a2 a3 b1 b2"))) == "b1 b2"


def test_a_domain_that_no_block_holds_is_torn_and_said():
    here = hosts(0, 0, 0)
    placed = stand_in(here, nodes("a1 a2 b1"))
    assert names(placed) == "a1 a2 b1"
    assert torn(here, placed) == ["NVLink domain 0 lies in a, b"]


def test_components_of_a_heterogeneous_job_keep_apart():
    here = hosts(0) + hosts(1, 1, group=1, first=1)
    there = nodes("a1 a2", group=1) + nodes("b1", group=0)
    assert {name: node.name for name, node in stand_in(here, there).items()} == {
        "node-0": "b1",
        "node-1": "a1",
        "node-2": "a2",
    }


def test_a_plain_allocation_serves_a_topology_that_asks_for_two_components():
    here = hosts(0) + hosts(1, 1, group=1, first=1)
    assert names(stand_in(here, nodes("a1 a2 a3"))) == "a1 a2 a3"


@pytest.mark.parametrize(
    ("text", "counts"), [("16", [16]), ("16(x3)", [16, 16, 16]), ("72(x2),36", [72, 72, 36]), ("1,2(x2)", [1, 2, 2])]
)
def test_cpus_of_nodes(text, counts):
    assert cpu_counts(text) == counts
