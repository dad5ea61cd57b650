"""Command lines and environments, compared whole."""

import json
import os
import shlex
import subprocess
import sys

import pytest
from deployments import ROOT, on_cpu, on_gpus
from golden_files import assert_golden

from disagg_cli.connector.host_memory import mode
from disagg_cli.engine.commands import Command, Machine, router_command, worker_commands
from disagg_cli.topology.deployment import Host
from disagg_cli.topology.loading import load_topology
from disagg_cli.topology.resolve import resolve

MACHINE = Machine(python="python3", cores=(0, 1))
HERE = Host(name="localhost", address="127.0.0.1", gpus=0, local=True)


def commands(deployment, machine=MACHINE):
    """Every command of a deployment by name."""
    workers = [
        c
        for w in deployment.workers
        for c in worker_commands(deployment, w, model_path="M", machines=lambda _: machine)
    ]
    return {command.name: command for command in [*workers, router_command(deployment, machines=lambda _: machine)]}


def flags(command):
    """--flag value ... as a dict; a bare flag is True."""
    words = command.argv[3:]
    pairs = zip(words, [*words[1:], "--"], strict=True)
    return {word[2:]: True if after.startswith("--") else after for word, after in pairs if word.startswith("--")}


def dry_run(config):
    """What `disagg launch CONFIG --dry-run` prints: the plan, and the commands."""
    done = subprocess.run(
        [sys.executable, "-m", "disagg_cli", "launch", str(config), "--dry-run"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stderr
    plan, mark, commands = done.stdout.partition("# prefill-0")
    return plan, mark + commands


def test_the_seeds_topology_on_gb200():
    """The plan names the installed SGLang, so of the plan only the verdict is held; the commands are held whole."""
    plan, commands = dry_run("configs/1p4d-gb200-qwen3-32b.yaml")
    assert "The plan holds." in plan
    assert "each decode rank waits for 4 senders" in plan
    assert_golden("1p4d-gb200-qwen3-32b.txt", commands)


def test_the_demo_on_cpus():
    """What depends on the machine is given: its Python, its cores, where the model is cached, where disagg lies."""
    deployment = resolve(load_topology(ROOT / "configs/1p2d-cpu.yaml"))
    text = "\n\n".join(f"# {c.name} on {c.host.name}\n{c.shell()}" for c in commands(deployment).values()) + "\n"
    assert_golden("1p2d-cpu.txt", text.replace(str(mode.STAND_INS), "STAND_INS"))


def test_on_gpus_the_environment_is_the_gpus_and_nothing_else():
    """No trace of host-memory mode: what runs on GPUs is SGLang as its makers ship it."""
    deployment = on_gpus("a", prefill={"tp": 2})
    assert {name: dict(c.env) for name, c in commands(deployment).items()} == {
        "prefill-0": {"CUDA_VISIBLE_DEVICES": "0,1"},
        "decode-0": {"CUDA_VISIBLE_DEVICES": "2"},
        "decode-1": {"CUDA_VISIBLE_DEVICES": "3"},
        "router": {},
    }


def test_on_gpus_no_flag_of_host_memory_mode():
    for command in commands(on_gpus("a")).values():
        assert not set(flags(command)) & set(mode.ARGS | mode.DECODE_ARGS)
        assert not any("host_memory" in word or "disagg_cli" in word for word in command.argv)


def test_on_cpus_ranks_take_turns_on_the_cores():
    deployment = on_cpu(prefill={"tp": 4}, decode={"tp": 1})
    bound = {name: c.env.get("SGLANG_CPU_OMP_THREADS_BIND") for name, c in commands(deployment).items()}
    assert bound == {"prefill-0": "0|1|0|1", "decode-0": "0", "router": None}


def test_a_synthetic_model_is_exact():
    assert flags(commands(on_cpu())["decode-0"])["dtype"] == "float32"
    assert "dtype" not in flags(commands(on_gpus("a"))["decode-0"])


def test_one_command_for_each_node():
    given = commands(on_gpus("a", "b", "c", prefill={"tp": 8}, decode={"tp": 4}))
    leader, second = given["prefill-0"], given["prefill-0.1"]
    assert (leader.host.name, second.host.name) == ("a", "b")
    assert flags(leader) | {"node-rank": "1", "host": "b"} == flags(second)
    assert flags(leader)["dist-init-addr"] == "a:30003"
    assert (flags(leader)["nnodes"], flags(leader)["node-rank"]) == ("2", "0")


def test_on_one_node_no_flags_of_several():
    assert not {"nnodes", "node-rank", "dist-init-addr"} & set(flags(commands(on_gpus("a"))["prefill-0"]))


def test_dp_attention():
    given = flags(commands(on_gpus("a", "b", prefill={"tp": 4, "dp": 2, "dp_attention": True}))["prefill-0"])
    assert (given["tp-size"], given["dp-size"], given["enable-dp-attention"]) == ("4", "2", True)
    assert given["dist-init-addr"] == "a:30003"


def test_plain_dp_leaves_the_nccl_ports_to_sglang():
    """Given one, SGLang 0.5.23 binds it once for each replica and dies at the second."""
    given = flags(commands(on_gpus("a", "b", prefill={"tp": 2, "dp": 2}))["prefill-0"])
    assert given["dp-size"] == "2"
    assert not {"nccl-port", "enable-dp-attention"} & set(given)


def test_pipeline_parallelism():
    given = flags(commands(on_gpus("a", "b", prefill={"tp": 2, "pp": 2}))["prefill-0"])
    assert (given["tp-size"], given["pp-size"]) == ("2", "2")


def test_true_is_a_bare_flag_and_false_is_none():
    deployment = on_gpus("a", engine={"args": {"trust-remote-code": True, "enable-metrics": False, "random-seed": 0}})
    argv = commands(deployment)["prefill-0"].argv
    assert argv[-3:] == ("--trust-remote-code", "--random-seed", "0")
    assert "--enable-metrics" not in argv


def test_the_users_flags_win_over_the_platforms():
    deployment = on_cpu(engine={"args": {"page-size": 64, "sleep-on-idle": False}})
    given = flags(commands(deployment)["prefill-0"])
    assert given["page-size"] == "64"
    assert "sleep-on-idle" not in given


def test_the_users_environment_wins_over_the_platforms():
    given = commands(on_cpu(engine={"env": {"OMP_NUM_THREADS": "2"}}))["prefill-0"].env
    assert given["OMP_NUM_THREADS"] == "2"


def test_ipv6():
    deployment = on_gpus("fd00::1", "fd00::2", "fd00::3", prefill={"tp": 8}, decode={"tp": 4})
    assert flags(commands(deployment)["prefill-0"])["dist-init-addr"] == "[fd00::1]:30003"
    assert commands(deployment)["router"].argv[4:10] == (
        *("--prefill", "http://[fd00::1]:30000", "30001"),
        *("--decode", "http://[fd00::3]:30000"),
        "--host",
    )


def test_the_router_knows_every_worker():
    argv = commands(on_cpu(router={"args": {"cache_threshold": 0.5}}))["router"].argv
    assert " ".join(argv) == (
        "python3 -m sglang_router.launch_router --pd-disaggregation"
        " --prefill http://127.0.0.1:30000 30001 --decode http://127.0.0.1:30016 --decode http://127.0.0.1:30032"
        " --host 127.0.0.1 --port 8000 --policy round_robin"
        " --prometheus-host 127.0.0.1 --prometheus-port 30048 --cache-threshold 0.5"
    )


HOSTILE = ["a b", "a'; echo foo", '"$HOME"', "$(id)", "`id`", "a\nb", "*", "", "--x", "~", "é"]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_person_would_type_is_what_runs(text):
    """A shell that reads the line gets these words and this environment, whatever stands in them."""
    show = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['A']]))"
    command = Command(name="x", host=HERE, argv=(sys.executable, "-c", show, text), env={"A": text})
    done = subprocess.run(["sh", "-c", command.shell()], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[text], text]


def test_shell_without_environment():
    assert Command(name="x", host=HERE, argv=("a b", "c"), env={}).shell() == "'a b' c"
    assert shlex.split(Command(name="x", host=HERE, argv=("a",), env={"B": "c d"}).shell()) == ["env", "B=c d", "a"]


def test_a_gpu_platform_imports_nothing_of_the_cpu_mode():
    code = (
        "import sys; from pathlib import Path; from disagg_cli.runtime import launch, prepare\n"
        "prepare.prepare(Path('configs/1p4d-gb200-qwen3-32b.yaml'))\n"
        "print([name for name in sys.modules if 'host_memory' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
