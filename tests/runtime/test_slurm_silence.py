"""A Slurm controller that gives no answer while a run goes on."""

import contextlib
import os
import signal
import time

from disagg_cli.runtime import job

NOTICED_S = 5.0


@contextlib.contextmanager
def silence(lab):
    """Stop the controller while the body runs."""
    controller = int((lab.folder / "slurmctld.pid").read_text())
    os.kill(controller, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(controller, signal.SIGCONT)


def test_a_death_is_told_all_the_same(cluster):
    """How a worker has ended is known without Slurm. The others are ended once it answers again."""
    launch = cluster.launch(cluster.topology())
    cluster.said("router  http://")
    node = cluster.lab.nodes[1]
    pid = cluster.lab.on(node, "pgrep", "-f", "^[^ ]*python.*launch_server").strip()
    with silence(cluster.lab):
        time.sleep(job.ASK_S + 0.5)  # who follows the run waits for an answer by then
        cluster.lab.on(node, "kill", "-KILL", pid)
        began = time.monotonic()
        cluster.said(": killed by SIGKILL", 30)
        assert time.monotonic() - began < NOTICED_S
    assert launch.wait(60) == 4
    state = cluster.ended()
    assert (state["exit_code"], "decode-0 died: killed by SIGKILL" in state["reason"]) == (4, True)
    assert all(one["gone"] for one in state["processes"] if one["name"] != "decode-0")
