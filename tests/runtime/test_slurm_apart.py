"""Prefill and decode asked for apart: a heterogeneous job of a real Slurm cluster, each role on its component's nodes.

Tests of a cluster run in the order of their files' names, and this one comes before those that crash nodes: a
heterogeneous job that Slurm cannot start at once on a node that has come back waits for two minutes (22.05).
"""

APART = {"nodes": None, "prefill": {"nodes": 1}, "decode": {"nodes": 2, "args": {"comment": "decode"}}}


def test_prefill_and_decode_apart(cluster):
    cluster.serve(slurm=APART, within=300)
    assert {p["name"]: p["host"] for p in cluster.state["processes"]} == {
        "prefill-0": cluster.lab.nodes[0],
        "decode-0": cluster.lab.nodes[1],
        "decode-1": cluster.lab.nodes[2],
        "router": cluster.lab.nodes[0],
    }
    assert len(cluster.lab.jobs()) == 2
    assert cluster.disagg("stop").returncode == 0
    cluster.ended()


def test_a_node_crashes_where_prefill_and_decode_are_apart(cluster):
    """Slurm ends all of it then, whatever it was asked."""
    launch = cluster.launch(cluster.topology(slurm=APART))
    cluster.said("router  http://", 300)
    cluster.lab.crash(cluster.lab.nodes[2])
    assert launch.wait(100) == 4
    assert f"node {cluster.lab.nodes[2]} has failed" in cluster.ended()["reason"]
