"""An allocation whose steps this process can start, as the shell of a salloc can."""

import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_lab import GPUS, Lab

from disagg_cli.engine.commands import Command
from disagg_cli.executors.protocol import Handle, Site
from disagg_cli.executors.slurm.steps import SlurmExecutor
from disagg_cli.topology.deployment import Host


@contextlib.contextmanager
def allocated(lab: Lab, *options: str) -> Iterator[dict[str, str]]:
    """The variables that Slurm gives the shell of a salloc (salloc(1), output environment), while the body runs."""
    lab.run("salloc", "--no-shell", "--job-name=held", "--exclusive", "--mem=0", f"--gres=gpu:{GPUS}", *options)
    job, listed, nodes, cpus = lab.run("squeue", "-h", "-n", "held", "-o", "%A %N %D %C").split()
    try:
        yield {
            "SLURM_CONF": str(lab.conf),
            "SLURM_JOB_ID": job,
            "SLURM_JOB_NODELIST": listed,
            "SLURM_JOB_CPUS_PER_NODE": f"{int(cpus) // int(nodes)}(x{nodes})",
        }
    finally:
        lab.run("scancel", job)


def host(lab: Lab, number: int = 1, **more: Any) -> Host:
    """A node as a host of a deployment."""
    name = lab.nodes[number]
    return Host(name=name, address=lab.address(name), gpus=GPUS, local=False, **more)


@dataclass
class Steps:
    """An executor in the allocation, and what it has started."""

    lab: Lab
    folder: Path
    executor: SlurmExecutor
    started: list[Handle] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    async def start(self, code: str, number: int = 1, **env: str) -> Handle:
        """Run Python code on a node."""
        argv = (sys.executable, "-S", "-c", code)
        command = Command(name="program", host=host(self.lab, number), argv=argv, env=env)
        log = self.folder / f"{len(self.started)}.log"
        self.started.append(await self.executor.start(command, log))
        return self.started[-1]


@contextlib.asynccontextmanager
async def steps(
    lab: Lab, folder: Path, settings: dict[str, Any] | None = None, tell: Callable[[str], None] = lambda _: None
) -> AsyncIterator[Steps]:
    """An executor whose steps end with it."""
    executor = SlurmExecutor(Site(settings=settings or {}, run=folder.name, tell=tell))
    await executor.open()
    place = Steps(lab, folder, executor)
    try:
        yield place
    finally:
        for handle in place.started:
            await executor.kill(handle)
        await executor.close()
