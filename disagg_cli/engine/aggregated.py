"""The command line of one server without disaggregation: the truth that a PD deployment is held against. Pure."""

from dataclasses import replace

from disagg_cli.engine.commands import SERVER, Command, Machines, platform_args, worker_env
from disagg_cli.engine.start import start
from disagg_cli.errors import UsageError
from disagg_cli.topology.deployment import Deployment
from disagg_cli.topology.values import FlagValue

NAME = "aggregated"


def aggregated_command(
    deployment: Deployment, *, model_path: str, machines: Machines, tp: int | None = None
) -> Command:
    """Return the command of a server like the first decode worker, without what makes it one.

    tp: another size than the worker's. UsageError where the platform has no room for one more server.
    """
    if not deployment.platform.on_cpu:
        raise UsageError(
            f"no GPU of {deployment.platform.name} is kept free for an aggregated server",
            fix="start one elsewhere, and compare: disagg eval gsm8k --compare http://HOST:PORT",
        )
    like = deployment.role("decode")[0]
    like = replace(like, tp=tp or like.tp, dp=1, dp_attention=False, pp=1)
    own = {flag: value for flag, value in like.args.items() if not flag.startswith(("disaggregation-", "enable-dp-"))}
    args: dict[str, FlagValue] = {
        "model-path": model_path,
        "served-model-name": deployment.model.served_name,
        "host": like.host.address,
        "port": port(deployment),
        "nccl-port": port(deployment) + 1,
        "tp-size": like.tp,
        **platform_args(deployment, "prefill"),
        **own,
    }
    machine = machines(like.host)
    argv, env = start(machine.python, SERVER, args, worker_env(deployment, like, 0, machine))
    return Command(name=NAME, host=like.host, argv=argv, env=env)


def port(deployment: Deployment) -> int:
    """A port beyond those of the workers and the router's metrics."""
    router = deployment.router
    first = router.metrics_port + 1
    return first if router.port not in (first, first + 1) else first + 2


def url(deployment: Deployment) -> str:
    """Where the server answers."""
    return f"http://{deployment.role('decode')[0].host.address}:{port(deployment)}"
