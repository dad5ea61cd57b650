"""The command line of one step, and of workers that span nodes."""

from dataclasses import replace

from deployments import on_gpus

from disagg_cli.engine.commands import Machine, worker_commands
from disagg_cli.executors.slurm.nodes import Node
from disagg_cli.executors.slurm.srun import step
from disagg_cli.topology.deployment import Host, on_hosts
from disagg_cli.topology.slurm import SlurmSpec

NODE = Node(name="n7", address="10.0.0.7", job="12", cpus=144)
HOST = Host(name="n7", address="10.0.0.7", gpus=4, local=False)


def argv(settings=None, node=NODE, host=HOST, **env):
    return step(node, host, "decode-0@run", SlurmSpec.model_validate(settings or {}), ["python3", "-m", "x"], env)


def test_one_step():
    assert argv(CUDA_VISIBLE_DEVICES="2,3", TOKEN="secret") == [
        *("srun", "--job-name=decode-0@run", "--overlap", "--exact", "--nodes=1", "--ntasks=1", "--nodelist=n7"),
        *("--cpus-per-task=144", "--cpu-bind=none", "--mpi=none", "--export=ALL", "--gres=gpu:4"),
        *("/bin/sh", "-c", 'exec "$@" 2>&1', "sh"),
        *("env", "CUDA_VISIBLE_DEVICES=2,3"),
        *("python3", "-m", "x"),
    ]


def test_a_component_of_a_heterogeneous_job():
    assert "--het-group=1" in argv(node=replace(NODE, group=1))
    assert not [word for word in argv() if word.startswith("--het-group")]


def test_gpus_as_the_component_asks_for_them():
    apart = {"prefill": {"gpus": "none"}, "decode": {"gpus": "gpus-per-node"}}
    said = [[word for word in argv(apart, host=replace(HOST, group=group)) if "gpu" in word] for group in (0, 1)]
    assert said == [[], ["--gpus-per-node=4"]]


def test_options_of_pyxis_are_passed_on():
    image = {"container-image": "nvcr.io#nvidia/sglang:25.09", "container-mounts": "/models:/models", "mpi": False}
    words = argv({"step_args": image})
    assert {"--container-image=nvcr.io#nvidia/sglang:25.09", "--container-mounts=/models:/models"} <= set(words)
    assert "--mpi=none" not in words


def test_a_worker_over_two_nodes_meets_at_the_address_of_its_first():
    deployment = on_gpus(executor={"slurm": {}}, prefill={"tp": 8}, decode={"tp": 4})
    found = {f"node-{n}": Host(name=f"n{n}", address=f"10.0.0.{n}", gpus=4, local=False) for n in range(3)}
    placed = on_hosts(deployment, found)
    commands = worker_commands(placed, placed.workers[0], model_path="M", machines=lambda _: Machine(python="python3"))
    flags = [dict(zip(command.argv, command.argv[1:], strict=False)) for command in commands]
    assert [command.host.name for command in commands] == ["n0", "n1"]
    assert [one["--host"] for one in flags] == ["10.0.0.0", "10.0.0.1"]
    assert {one["--dist-init-addr"] for one in flags} == {f"10.0.0.0:{placed.workers[0].ports.dist_init}"}
    assert [(one["--nnodes"], one["--node-rank"]) for one in flags] == [("2", "0"), ("2", "1")]
