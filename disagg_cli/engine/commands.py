"""Command lines and environments of a Deployment's processes. Pure: facts of the machine come in as arguments."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from disagg_cli.engine.start import shown, start
from disagg_cli.secrets import is_secret, masked
from disagg_cli.topology.deployment import Deployment, Host, Role, Share, Worker, bracketed
from disagg_cli.topology.values import FlagValue

SERVER = "sglang.launch_server"


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One process to start. env is what is set on top of the environment that it inherits."""

    name: str
    host: Host
    argv: tuple[str, ...]
    env: Mapping[str, str]

    def shell(self) -> str:
        """What a person would type to start the same by hand."""
        argv, env = shown(self.argv, self.env)
        settings = [
            f'{name}="${name}"' if is_secret(name, value) else f"{name}={shlex.quote(value)}"
            for name, value in env.items()
        ]
        return " ".join([*(["env", *settings] if settings else []), shlex.join(argv)])

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        argv, env = shown(self.argv, self.env)
        return {"name": self.name, "host": self.host.name, "env": masked(env), "argv": list(argv)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What command lines need to know of the place where they run: its Python, and on CPUs the cores to bind.

    package: the folder of disagg_cli there, where it is another one than here.
    """

    python: str
    cores: tuple[int, ...] = (0,)
    package: str | None = None


Machines = Callable[[Host], Machine]


def worker_commands(
    deployment: Deployment, worker: Worker, *, model_path: str, machines: Machines
) -> tuple[Command, ...]:
    """Return one command for each host of the worker, the leader first."""
    commands = []
    for rank, (name, share) in enumerate(zip(worker.processes, worker.shares, strict=True)):
        machine = machines(share.host)
        args = _worker_args(deployment, worker, model_path, rank)
        argv, env = start(machine.python, SERVER, args, worker_env(deployment, worker, rank, machine))
        commands.append(Command(name=name, host=share.host, argv=argv, env=env))
    return tuple(commands)


def router_command(deployment: Deployment, *, machines: Machines) -> Command:
    """Return the command of the router in front of all workers."""
    router = deployment.router
    pairs: list[str] = []
    for worker in deployment.role("prefill"):
        pairs += ["--prefill", worker.url, str(worker.ports.bootstrap)]
    for worker in deployment.role("decode"):
        pairs += ["--decode", worker.url]
    settings: dict[str, FlagValue] = {
        "host": router.host.address,
        "port": router.port,
        "policy": router.policy,
        "prometheus-host": router.host.address,
        "prometheus-port": router.metrics_port,
        **router.args,
    }
    python, first = machines(router.host).python, ("--pd-disaggregation", *pairs)
    argv, env = start(python, "sglang_router.launch_router", settings, {}, first=first)
    return Command(name="router", host=router.host, argv=argv, env=env)


def _worker_args(deployment: Deployment, worker: Worker, model_path: str, rank: int) -> dict[str, FlagValue]:
    """All flags of one process; what the user wrote under `args` wins over what the platform recommends."""
    args: dict[str, FlagValue] = {
        "model-path": model_path,
        "served-model-name": deployment.model.served_name,
        "host": worker.shares[rank].host.address,
        "port": worker.ports.http,
        "tp-size": worker.tp,
        "enable-metrics": True,  # the eval reads queues and failures from them, before and after
    }
    if worker.dp > 1:
        args |= {"dp-size": worker.dp, "enable-dp-attention": worker.dp_attention}
    if worker.pp > 1:
        args |= {"pp-size": worker.pp}
    args |= {
        "disaggregation-mode": worker.role,
        "disaggregation-transfer-backend": deployment.connector.backend,
        "disaggregation-bootstrap-port": worker.ports.bootstrap,
    }
    if worker.dp == 1 or worker.dp_attention:
        # Plain DP has one group for each replica; given one port for all, SGLang binds it twice and dies
        # (data_parallel_controller.py, launch_dp_schedulers, 0.5.23). Left alone, it chooses one for each.
        args |= {"nccl-port": worker.ports.nccl}
    if len(worker.shares) > 1 or worker.dp_attention:
        args |= {"dist-init-addr": f"{bracketed(worker.host.address)}:{worker.ports.dist_init}"}
    if len(worker.shares) > 1:
        args |= {"nnodes": len(worker.shares), "node-rank": rank}
    args |= _gpu_args(deployment, worker.shares[rank])
    return args | platform_args(deployment, worker.role) | dict(worker.args)


def _gpu_args(deployment: Deployment, share: Share) -> dict[str, FlagValue]:
    """`--base-gpu-id`, where workers are to see all GPUs of their host: theirs come from there on, in equal steps."""
    if deployment.select_gpus != "base_gpu_id" or not share.gpus:
        return {}
    step = share.gpus[1] - share.gpus[0] if len(share.gpus) > 1 else 1
    args: dict[str, FlagValue] = {"base-gpu-id": share.gpus[0]}
    return args | ({"gpu-id-step": step} if step > 1 else {})


def platform_args(deployment: Deployment, role: Role) -> dict[str, FlagValue]:
    """Flags that the platform and the model ask of a role."""
    args: dict[str, FlagValue] = {}
    if deployment.platform.on_cpu:
        from disagg_cli.connector.host_memory import mode  # only here: GPU platforms import nothing of it

        args |= mode.ARGS | (mode.DECODE_ARGS if role == "decode" else {})
    if deployment.model.synthetic:
        # Exact arithmetic: greedy tokens and log-probabilities then agree between any two TP sizes, so what differs
        # is the transfer's doing. SGLang's `auto` would make bfloat16 of it.
        args |= {"dtype": "float32"}
    return args


def worker_env(deployment: Deployment, worker: Worker, rank: int, machine: Machine) -> dict[str, str]:
    """Environment of one process of a worker."""
    env: dict[str, str] = {}
    if deployment.platform.on_cpu:
        from disagg_cli.connector.host_memory import mode

        env |= mode.import_time_env(machine.package) | mode.environment(ranks=worker.ranks, cores=machine.cores)
    elif deployment.select_gpus == "visible_devices":
        env |= {"CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for gpu in worker.shares[rank].gpus)}
    return env | dict(worker.env)
