"""`disagg launch` on a login node of a real Slurm cluster: cheap servers, everything else as it is."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slurm_cluster import DISAGG, SECRET, secrets_in
from slurm_lab import GPUS
from waiting import wait_until

CHEAP = Path(__file__).parents[1] / "cheap_disagg.py"


def test_a_run_from_launch_to_stop(cluster):
    done = cluster.serve("--json")
    launched = json.loads(done.stdout)
    assert (launched["phase"], launched["url"]) == (
        "serving",
        f"http://{cluster.lab.address(cluster.lab.nodes[0])}:21500",
    )
    assert "submitted as Slurm job" in done.stderr
    assert {node for node, args in cluster.lab.processes() if "launch_server" in args} == set(cluster.lab.nodes)

    status = json.loads(cluster.disagg("status", "--json").stdout)
    assert (status["phase"], status["supervised"], status["job"]["state"]) == ("serving", True, "RUNNING")
    assert {p["name"]: p["host"] for p in status["processes"]} == {
        "prefill-0": cluster.lab.nodes[0],
        "decode-0": cluster.lab.nodes[1],
        "decode-1": cluster.lab.nodes[2],
        "router": cluster.lab.nodes[0],
    }
    assert "listening" in cluster.disagg("logs", "decode-1").stdout
    (listed,) = json.loads(cluster.disagg("ps", "--json").stdout)["runs"]
    assert (listed["phase"], listed["stale"], listed["alive"]) == ("serving", False, 4)

    watching = (["attach"], ["status", "--watch"], ["logs", "decode-1", "--follow"])
    shown = [cluster.folder / one[0] for one in watching]
    terminals = [
        subprocess.Popen([*DISAGG, *one], stdout=file.open("w")) for one, file in zip(watching, shown, strict=True)
    ]
    wait_until(lambda: all(file.read_text() for file in shown), 30)
    stopped = cluster.disagg("stop", "--json")
    assert stopped.returncode == 0, stopped.stderr
    assert json.loads(stopped.stdout)["exit_code"] == 0
    assert [one.wait(60) for one in terminals] == [0, 0, 0]
    attached, watched, log = (file.read_text() for file in shown)
    assert "decode-1 healthy" in attached
    assert attached.splitlines()[-1].split()[-1] == "ended"
    assert "KV proven" in watched
    assert ": ended" in watched
    assert "listening" in log
    assert cluster.ended()["reason"] == "stopped"


def test_a_run_that_is_followed_to_its_end(cluster):
    done = cluster.disagg("launch", cluster.topology(), "--exit-after-eval")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "decode-1 healthy" in done.stdout
    assert done.stdout.endswith("ended\n")
    cluster.nothing_left()


def test_a_job_that_waits(cluster):
    """What the file says when it is submitted is what runs, whatever is written into it later."""
    holder = cluster.lab.run(
        "sbatch", "--parsable", "--exclusive", "-N3", "-o", "/dev/null", "--wrap", "sleep 300"
    ).strip()
    wait_until(lambda: cluster.lab.jobs()[holder] == "RUNNING")
    file = cluster.topology()
    launch = cluster.launch(file, "--detach")
    cluster.said("pending: Slurm (Resources)")
    status = json.loads(cluster.disagg("status", "--json").stdout)
    assert (status["phase"], status["waiting_for"], status["supervised"]) == ("pending", "Slurm (Resources)", True)
    file.write_text("no: topology\n")
    cluster.lab.run("scancel", holder)
    assert launch.wait(60) == 0
    assert cluster.state["phase"] == "serving"


def test_a_job_that_slurm_refuses(cluster):
    done = cluster.disagg("launch", cluster.topology(slurm={"nodes": 3, "partition": "nowhere"}))
    assert done.returncode == 4
    assert "sbatch failed: " in done.stderr
    assert "invalid partition" in done.stderr
    assert cluster.state["exit_code"] == 4


def test_a_segment_where_slurm_knows_none(cluster):
    """22.05 does not; one is asked for because the platform has NVLink domains."""
    wide = {"platform": "gb200-nvl72", "model": "Qwen/Qwen3-32B", "prefill": {"tp": 8}, "decode": {"tp": 4}}
    done = cluster.disagg("launch", cluster.topology(slurm={"nodes": None}, **wide))
    assert done.returncode == 4
    assert "unrecognized option '--segment=3'" in done.stderr
    assert "set executor.slurm.segment to what the cluster's blocks hold, or to 0" in done.stderr


def test_a_variable_that_would_change_the_job_is_kept_from_sbatch(cluster):
    wishes = {"SBATCH_REQUEUE": "1", "SBATCH_OPEN_MODE": "truncate"}
    done = cluster.disagg("launch", cluster.topology(), "--detach", **wishes)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kept from sbatch: SBATCH_OPEN_MODE, SBATCH_REQUEUE; say" in done.stdout
    assert cluster.lab.job(cluster.number)["Requeue"] == "0"


def test_variables_that_users_set_for_their_own_eyes(cluster, monkeypatch):
    """Slurm's commands would take each of them for an option: of a list, of an end, of a step."""
    wishes = {"SQUEUE_PARTITION": "urgent", "SCANCEL_STATE": "PENDING", "SLURM_LABELIO": "1", "SLURM_HET_SIZE": "2"}
    for name, value in wishes.items():
        monkeypatch.setenv(name, value)
    cluster.serve()
    assert json.loads(cluster.disagg("status", "--json").stdout)["phase"] == "serving"
    assert cluster.disagg("stop").returncode == 0
    for name in wishes:
        monkeypatch.delenv(name)
    assert cluster.ended()["reason"] == "stopped"


@pytest.mark.parametrize("there", [False, True])
def test_a_python_that_does_not_run_disagg_on_the_nodes(cluster, there):
    """It is not there, or was made for another kind of machine."""
    python = cluster.folder / "python"
    if there:
        python.write_bytes(b"\x7fELF of something else")
        python.chmod(0o755)
    done = cluster.disagg("launch", cluster.topology(slurm={"python": str(python)}))
    assert done.returncode == 4
    assert f"{cluster.lab.nodes[0]}: {python} does not run disagg here; executor.slurm.python" in done.stderr


def test_a_run_that_fails_is_one_document(cluster):
    done = cluster.disagg("launch", cluster.topology(engine={"env": {"CHEAP_LAST": "no luck"}}), "--json")
    assert done.returncode == 4
    document = json.loads(done.stdout)
    assert (document["schema"], document["exit_code"]) == ("disagg.error/1", 4)
    assert "no luck" in document["what"]
    cluster.nothing_left()


def test_a_cancelled_step_is_named(cluster):
    cluster.serve()
    steps = cluster.lab.run("squeue", "-h", "-s", "-o", "%i %j").splitlines()
    (step,) = [line.split()[0] for line in steps if line.split()[1].startswith("decode-1@")]
    cluster.lab.run("scancel", step)
    state = cluster.ended()
    assert state["exit_code"] == 4
    assert "decode-1 died: killed by SIGKILL" in state["reason"]


def test_a_cancelled_job(cluster):
    launch = cluster.launch(cluster.topology())
    cluster.said("router  http://")
    cluster.lab.run("scancel", cluster.number)
    assert launch.wait(60) == 0
    assert cluster.ended()["reason"] == "stopped"


@pytest.mark.parametrize(
    "moment", ["submitted as Slurm job", "starting: its hosts", "starting: workers to be healthy", "decode-0 starting"]
)
def test_a_job_that_is_cancelled_while_it_starts(cluster, moment):
    launch = cluster.launch(cluster.topology(engine={"env": {"CHEAP_START_S": "100"}}))
    cluster.said(moment)
    cluster.lab.run("scancel", cluster.number)
    assert launch.wait(60) == 130, (cluster.folder / "out").read_text()
    assert cluster.ended()["exit_code"] == 130


@pytest.mark.parametrize("moment", ["submitted as Slurm job", "starting: its hosts", "decode-0 starting"])
def test_a_run_that_is_stopped_while_it_starts(cluster, moment):
    launch = cluster.launch(cluster.topology(engine={"env": {"CHEAP_START_S": "100"}}))
    cluster.said(moment)
    stopped = cluster.disagg("stop", "--json")
    assert (stopped.returncode, json.loads(stopped.stdout)["exit_code"]) == (0, 130), stopped.stderr
    assert launch.wait(60) == 130, (cluster.folder / "out").read_text()
    cluster.nothing_left()


@pytest.mark.parametrize(
    ("start_s", "moment", "exit_code", "reason"),
    [("0", "router  http://", 0, "stopped"), ("100", "decode-0 starting", 130, "interrupted while starting")],
)
def test_a_cancelled_job_whose_steps_are_told_first(cluster, start_s, moment, exit_code, reason):
    """Slurm signals the steps and disagg in no order: here the node of disagg is slow."""
    launch = cluster.launch(cluster.topology(engine={"env": {"CHEAP_START_S": start_s}}))
    cluster.said(moment)
    node = cluster.lab.nodes[0]
    (slurmd,) = cluster.lab.on(node, "pgrep", "-x", "-o", "slurmd").split()
    cluster.lab.on(node, "kill", "-STOP", slurmd)
    cluster.lab.run("scancel", cluster.number)
    wait_until(lambda: not [args for at, args in cluster.lab.processes() if at != node], 30)
    time.sleep(1)
    cluster.lab.on(node, "kill", "-CONT", slurmd)
    assert launch.wait(60) == exit_code, (cluster.folder / "out").read_text()
    assert cluster.ended()["reason"] == reason


def test_a_job_that_reaches_its_time_limit(cluster):
    """Slurm tells disagg in time. It looks twice a minute, and so does it up to a minute early."""
    launch = cluster.launch(cluster.topology(slurm={"time": "10:00", "stop_before_s": 60}))
    cluster.said("router  http://")
    cluster.lab.run("scontrol", "update", f"job={cluster.number}", "timelimit=2")
    assert launch.wait(110) == 0
    assert cluster.ended()["reason"] == "stopped: the time limit of its Slurm job is near"


def test_a_job_that_makes_room_for_another(cluster):
    launch = cluster.launch(cluster.topology())
    cluster.said("router  http://")
    cluster.lab.run("sbatch", "-p", "urgent", "--exclusive", "-N3", "-o", "/dev/null", "--wrap", "sleep 3")
    assert launch.wait(60) == 4
    assert "it was preempted" in (cluster.folder / "out").read_text()
    state = cluster.ended()
    assert (state["exit_code"], "it was preempted" in state["reason"]) == (4, True)


def test_a_node_that_crashes(cluster):
    """It is told of before Slurm is sure, which takes half a minute (slurm.conf: SlurmdTimeout); within 5 s if idle."""
    launch = cluster.launch(cluster.topology())
    cluster.said("router  http://")
    time.sleep(2)  # it has been looked at
    cluster.lab.crash(cluster.lab.nodes[2])
    cluster.said(f"{cluster.lab.nodes[2]} ({cluster.lab.address(cluster.lab.nodes[2])}) has answered no connection", 25)
    assert launch.wait(100) == 4
    state = cluster.state
    assert state["phase"] == "ended"
    assert f"node {cluster.lab.nodes[2]} has failed" in state["reason"]
    assert "decode-1" in state["reason"]
    wait_until(lambda: not cluster.lab.jobs(), 30)


def test_the_node_of_disagg_crashes(cluster):
    """The job runs on without it, and whoever follows it tells of it before Slurm does, and ends that."""
    launch = cluster.launch(cluster.topology())
    cluster.said("router  http://")
    time.sleep(2)  # it has been looked at
    cluster.lab.crash(cluster.lab.nodes[0])
    cluster.said("s; disagg runs there", 25)
    assert launch.wait(100) == 4
    assert f"node {cluster.lab.nodes[0]} of Slurm job" in cluster.state["reason"]
    assert cluster.ended()["exit_code"] == 4


def test_disagg_killed_in_its_job(cluster):
    """Slurm ends the steps of a batch script that has ended."""
    cluster.serve()
    cluster.lab.on(cluster.lab.nodes[0], "kill", "-KILL", str(cluster.state["pid"]))
    wait_until(lambda: json.loads(cluster.disagg("status", "--json").stdout)["phase"] == "lost", 30)
    assert cluster.disagg("stop").returncode == 0
    state = cluster.ended()
    assert state["exit_code"] == 4
    assert "Slurm job" in state["reason"]


def test_slurm_overrides_the_executor_that_a_topology_names(cluster):
    """With `--executor slurm`, and a script that somebody submits by hand."""
    file = cluster.topology(executor={"local": {}})
    script = cluster.disagg("render", file, "--executor", "slurm", "--set", f"executor.slurm.python={cluster.python}")
    assert script.returncode == 0, script.stderr
    by_hand = cluster.folder / "by-hand"
    by_hand.write_text(script.stdout.replace("disagg_cli launch", "disagg_cli launch --exit-after-eval"))
    cluster.lab.run("sbatch", "-o", f"{by_hand}.out", by_hand)
    wait_until((cluster.home / "current" / "state.json").exists, 60)
    assert cluster.ended()["exit_code"] == 0
    assert cluster.number


@pytest.mark.parametrize("executor", ["slurm", "local"])
def test_a_launch_in_a_script_of_somebodys_own(cluster, executor):
    """It is known to the login node, and ended from there; the script goes on."""
    code = cluster.folder / "code"
    script = cluster.folder / "own.sh"
    if executor == "slurm":
        launch = [*DISAGG, "launch", cluster.topology()]
    else:
        launch = [sys.executable, CHEAP, cluster.folder, "launch", cluster.topology(executor="local"), "--cold"]
    script.write_text(f"#!/bin/bash\n{' '.join(map(str, launch))}\necho $? > {code}; sleep 300\n")
    asked = ("--parsable", "-N3", "--exclusive", "--mem=0", f"--gres=gpu:{GPUS}", "-o", f"{script}.out")
    job = cluster.lab.run("sbatch", *asked, script).strip()
    wait_until(lambda: (cluster.home / "current" / "state.json").exists() and cluster.state["phase"] == "serving", 120)

    (listed,) = json.loads(cluster.disagg("ps", "--json").stdout)["runs"]
    assert (listed["phase"], listed["job"], listed["host"]) == ("serving", job, cluster.lab.nodes[0])
    stopped = cluster.disagg("stop", "--json")
    assert (stopped.returncode, json.loads(stopped.stdout)["reason"]) == (0, "stopped"), stopped.stderr
    wait_until(code.exists, 30)
    assert code.read_text() == "0\n"
    assert cluster.lab.jobs()[job] == "RUNNING"


def test_a_run_whose_supervisor_is_on_another_login_node(cluster):
    """Two of them share the folder of runs; Slurm's commands work on both."""
    shell = cluster.launch_in("salloc", "-N3", "--exclusive", "--mem=0", f"--gres=gpu:{GPUS}")
    cluster.said("router  http://")
    refused = cluster.disagg_on("login-2", "stop")
    assert refused.returncode == 2
    assert "`disagg stop --force` ends the processes from here" in refused.stderr
    assert cluster.disagg_on("login-2", "stop", "--force").returncode == 0
    assert shell.wait(60) == 4
    assert cluster.ended()["exit_code"] == 4


def test_a_worker_on_two_nodes(cluster, monkeypatch):
    """A step on each; the end of the second one's is the end of the run."""
    (smi := cluster.folder / "bin" / "nvidia-smi").parent.mkdir()
    smi.write_text("#!/bin/sh\nfor gpu in 0 1 2 3; do echo GPU $gpu: NVIDIA GB200; done\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{smi.parent}:{os.environ['PATH']}")
    wide = {"platform": "gb200-nvl72", "model": "Qwen/Qwen3-32B", "prefill": {"tp": 8}, "decode": {"tp": 4}}
    launch = cluster.launch(cluster.topology(slurm={"nodes": None, "segment": 0}, **wide))
    cluster.said("router  http://")
    nodes = cluster.lab.nodes
    there = sorted(cluster.lab.processes())
    servers = [(at, args) for at, args in there if "cheap_python" in args and "--nnodes" in args]
    meet = f"--dist-init-addr {cluster.lab.address(nodes[0])}:21003 --nnodes 2 --node-rank"
    assert [(at, meet in args, args.split("--node-rank ")[1][0]) for at, args in servers] == [
        (nodes[0], True, "0"),
        (nodes[1], True, "1"),
    ]
    assert {one["phase"] for one in cluster.state["processes"]} == {"proven"}
    pid = cluster.lab.on(nodes[1], "pgrep", "-f", "^[^ ]*python.*launch_server").strip()
    cluster.lab.on(nodes[1], "kill", "-KILL", pid)
    assert launch.wait(60) == 4
    cluster.said("prefill-0.1 died: killed by SIGKILL", 1)
    cluster.ended()


@pytest.mark.parametrize("asked", [["--mem=0", f"--gres=gpu:{GPUS}"], ["--gpus=12"], ["-n3", "--gpus-per-task=4"]])
def test_inside_an_allocation(cluster, asked):
    """From the shell of a salloc, disagg starts steps right away, and leaves the allocation as it was."""
    done = cluster.salloc("-N3", "--exclusive", *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (cluster.run / "job.json").exists()
    assert cluster.ended()["reason"] == "stopped"


def test_an_allocation_that_is_too_small(cluster):
    done = cluster.salloc("-N2", "--exclusive")
    assert done.returncode == 4
    assert "the allocation has 2 node(s), and the topology needs 3" in done.stderr


def test_ports_that_are_taken_on_a_node(cluster):
    node = cluster.lab.nodes[0]
    listen = f"{sys.executable} -S -c \"import socket, time; s = socket.create_server(('', 21000)); time.sleep(300)\""
    cluster.lab.run("sbatch", "-N1", "-w", node, "-o", "/dev/null", "--wrap", listen)
    wait_until(cluster.lab.processes, 60)
    done = cluster.salloc("-N3", "-n3")
    assert done.returncode == 3
    assert f"ports that are taken on {node}" in done.stderr
    assert "21000 (prefill-0 http)" in done.stderr


def test_no_secret_stands_anywhere(cluster):
    """But in the environment of the workers."""
    args = {"args": {"api-key": SECRET}}
    cluster.serve(engine={"env": {"MY_TOKEN": SECRET}} | args, router={"port": 21500} | args)
    show = "tr '\\0' '\\n' < /proc/$(pgrep -f '^[^ ]*python.*launch_server')/environ"
    assert f"MY_TOKEN={SECRET}" in cluster.lab.on(cluster.lab.nodes[1], "sh", "-c", show)
    on_command_lines = [args for _, args in cluster.lab.processes()] + [cluster.lab.run("ps", "-eo", "args")]
    assert not [args for args in on_command_lines if SECRET in args]
    assert SECRET not in cluster.lab.run("scontrol", "show", "job")
    assert secrets_in(cluster.run) + secrets_in(cluster.lab.folder) == []
