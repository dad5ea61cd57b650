"""Where bench_launch.py launches: on this machine, over ssh, and on Slurm, from within an allocation and into a job.

Hosts and nodes of the labs share this machine's file system and clock, so that what happens there can be timed here.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import debian
import ssh_lab
from cheap_python import cheap_python
from slurm_lab import NoLab, lab

SHELL = ("bash", "-c", 'exec "$@"', "bash")
"""A shell of the allocation's, which becomes the command."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a launch there takes. counted: as overhead, for whoever reads the figures.

    within: what runs the command. changes: of the topology. in_job: file to which each shell of a job writes when it
    began, by the clock on the wall; empty where there is no job.
    """

    name: str
    counted: str
    within: Sequence[str] = ()
    changes: dict[str, Any] = field(default_factory=dict)
    in_job: Path | None = None

    def job_began(self) -> float:
        """When the job's first shell began, by the clock that all processes share."""
        assert self.in_job
        return float(self.in_job.read_text().split()[0]) - time.time() + time.monotonic()


def places(folder: Path) -> Iterator[Place]:
    """One after the other, each while it is there. Where there can be no lab, that is said."""
    yield Place(name="this machine", counted="all of disagg, from the command on")
    for where, of in {"over ssh": over_ssh, "on Slurm": on_slurm}.items():
        try:
            yield from of(folder)
        except (NoLab, debian.NotInstalled) as why:
            print(f"\n{where}: not measured: {why}")


def over_ssh(folder: Path) -> Iterator[Place]:
    """Each worker on a host of its own."""
    if why := ssh_lab.unavailable():
        raise NoLab(why)
    ssh_lab.install()
    hosts = ssh_lab.SshLab(folder / "ssh", port=20100 + os.getpid() % 500)
    with contextlib.ExitStack() as stack:
        stack.callback(hosts.down)
        hosts.up()
        ssh = {"hosts": list(ssh_lab.HOSTS), "python": str(cheap_python(folder)), "config": str(hosts.config)}
        ignore = {"DSG403": "the hosts are loopback addresses of one machine"}
        counted = "all of disagg, from the command on, and ssh: to shells that read no start-up file"
        yield Place(name="over ssh", counted=counted, changes={"executor": {"ssh": ssh}, "ignore": ignore})


def on_slurm(folder: Path) -> Iterator[Place]:
    """Each worker in a step on a node of its own."""
    with lab() as cluster, contextlib.ExitStack() as stack:
        in_job = folder / "in-job"
        first = folder / "first-line"
        first.write_text(f'[ -z "$SLURM_JOB_ID" ] || echo "${{EPOCHREALTIME/,/.}}" >> "{in_job}"\n')
        for name, value in {"SLURM_CONF": cluster.conf, "BASH_ENV": first}.items():
            os.environ[name] = str(value)
            stack.callback(os.environ.pop, name)
        changes = {"executor": {"slurm": {"nodes": 3, "python": str(cheap_python(folder))}}}
        yield Place(
            name="Slurm, from the shell of salloc",
            counted="all of disagg, from that shell's start on, and each step's way to its node",
            within=("salloc", "--quiet", "-N3", "--exclusive", *SHELL),
            changes=changes,
            in_job=in_job,
        )
        yield Place(
            name="Slurm, from the login node",
            counted="all of disagg, from the command to sbatch's answer and from the batch script's first line on",
            changes=changes,
            in_job=in_job,
        )
