"""Slurm's own commands: what they are asked, and how their answers are read. No accounting database is needed."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from disagg_cli.errors import LaunchFailed, UsageError
from disagg_cli.executors.slurm.options import undistracted

ANSWER_S = 30.0
"""For one answer of the controller, which may be busy."""
COMMANDS = ("sbatch", "scancel", "scontrol", "squeue", "srun")
ENDED = frozenset({"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"}) | {
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
}
"""States from which no job comes back (squeue(1), job state codes)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job as squeue knows it. state: in Slurm's words; reason: why it waits, or why it has ended, if Slurm says.

    lost: the node of its script, where that has failed and the job runs on without it (sbatch(1), --no-kill).
    """

    id: str
    state: str
    reason: str
    lost: str = ""

    @property
    def waits(self) -> bool:
        """Whether it has not started yet."""
        return self.state in ("PENDING", "CONFIGURING")

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more, or will."""
        return self.state in ENDED

    @property
    def sentence(self) -> str:
        """What Slurm says of it."""
        if self.lost:
            return f"node {self.lost} of Slurm job {self.id} has failed, and disagg with it"
        about = f" ({self.reason})" if self.reason not in ("", "None") else ""
        return f"Slurm job {self.id} is {self.state}{about}"


def require() -> None:
    """UsageError names Slurm's commands that are missing here."""
    if missing := [name for name in COMMANDS if not shutil.which(name)]:
        raise UsageError(
            f"Slurm's commands are not on this machine: {', '.join(missing)}",
            fix="run disagg on a login node of the cluster, or choose another executor",
        )


def ask(*argv: str, env: Mapping[str, str] | None = None, within: float = ANSWER_S) -> str:
    """What one of Slurm's commands prints. LaunchFailed with its own words if it fails, or does not answer."""
    try:
        done = subprocess.run(
            argv,
            env=undistracted(os.environ) if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LaunchFailed(f"{argv[0]} did not answer within {within:.0f} s", fix="is slurmctld up? `sinfo`") from None
    except OSError as error:
        raise LaunchFailed(f"{argv[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise LaunchFailed(f"{argv[0]} failed: {said}", where=" ".join(argv[:6]))
    return done.stdout


def job(number: str) -> Job | None:
    """A job of this user; None where Slurm no longer knows it (slurm.conf: MinJobAge, 300 s by default)."""
    for line in ask("squeue", "--me", "--noheader", "--states=all", "--format=%A|%T|%r|%N|%B").splitlines():
        found, state, reason, nodes, script = line.strip().split("|", 4)
        if found == number:
            there = state != "RUNNING" or script == nodes or script in hostnames(nodes)
            return Job(id=found, state=state, reason=reason, lost="" if there else script)
    return None


def running(script: Path) -> str | None:
    """The job of this user that runs this batch script, or will."""
    jobs = [line.partition("|") for line in ask("squeue", "--me", "--noheader", "--format=%A|%o").splitlines()]
    return min((number for number, _, command in jobs if command == str(script)), key=int, default=None)


def preempted(number: str) -> bool:
    """Whether a job has been asked to make room for another; false where Slurm does not answer."""
    return any(one.get("PreemptTime", "None") != "None" for one in _shown(number))


def lost_a_node(number: str) -> bool:
    """Whether Slurm ends a job because a node of it has failed; false where it does not answer.

    It does so in spite of --no-kill where the job is heterogeneous (22.05), and where somebody's own lacks that.
    """
    return any(one.get("Reason") == "NodeDown" for one in _shown(number))


def ends(number: str, within: float = ANSWER_S) -> bool:
    """Whether Slurm is ending a job, or has; false where it does not answer."""
    return any(one.get("JobState") in ENDED | {"COMPLETING"} for one in _shown(number, within))


def over(number: str) -> bool:
    """Whether nothing of a job is left to run; false where Slurm does not answer."""
    shown = _shown(number)
    return bool(shown) and all(one.get("JobState") in ENDED for one in shown)


def exit_code(number: str) -> int | None:
    """The exit code of a job's script, -N where signal N ended it; None where Slurm does not say."""
    code, _, signum = next((one.get("ExitCode", "") for one in _shown(number)), "").partition(":")
    if not (code.isdigit() and signum.isdigit()):
        return None
    return -int(signum) if int(signum) else int(code)


def _shown(number: str, within: float = ANSWER_S) -> list[dict[str, str]]:
    """What Slurm shows of a job, or of each component of one; nothing where it does not answer."""
    try:
        return records(ask("scontrol", "--oneliner", "show", "job", number, within=within))
    except LaunchFailed:
        return []


def steps() -> dict[tuple[str, str], str]:
    """The steps of this user that run, by job, or component of a heterogeneous one, and name: their ids."""
    listed = ask("squeue", "--me", "--noheader", "--steps", "--format=%i|%j").splitlines()
    pairs = [line.strip().split("|", 1) for line in listed]
    return {(step.partition(".")[0], name): step for step, name in pairs}


def steps_on(node: str, job: str) -> frozenset[str]:
    """The ids of a job's steps that have processes on a node, by a look at it; empty if that is not to be had.

    Each is held by a slurmstepd that goes by the name of the step, also the one that looks: seeing itself, it sees all.
    """
    show = f"echo {job}.$SLURM_STEP_ID; grep -aho 'slurmstepd: .{job}[.][0-9]*' /proc/[0-9]*/cmdline; true"
    try:
        own, *lines = _on(node, job, show).splitlines()
    except (LaunchFailed, ValueError):
        return frozenset()
    found = frozenset(line.partition("[")[2] for line in lines)
    return found if own in found else frozenset()


def signal_on(node: str, job: str, pid: int, signum: str) -> bool:
    """Send a signal to a disagg that runs on a node of a job, from anywhere; whether it was there."""
    try:
        _on(node, job, f"grep -qs disagg /proc/{pid}/cmdline && kill -{signum} {pid}")
    except LaunchFailed:
        return False
    return True


def _on(node: str, job: str, commands: str) -> str:
    """What a shell on a node of a running job says to some commands. LaunchFailed if it, or Slurm, fails."""
    where = (f"--jobid={job}", f"--nodelist={node}", "--job-name=look", "--overlap", "--nodes=1", "--ntasks=1")
    return ask("srun", *where, "--gres=none", "--mpi=none", "/bin/sh", "-c", commands)


def failed(nodes: Iterable[str], within: float = ANSWER_S) -> str:
    """What Slurm says of those of these nodes that have failed; nothing where none has, or it will not talk of them."""
    try:
        found = records(ask("scontrol", "--oneliner", "show", "node", ",".join(nodes), within=within))
    except LaunchFailed:
        return ""
    lost = {one["NodeName"]: one["State"] for one in found if _words(one["State"]) & {"DOWN", "FAIL", "FAILING"}}
    return "; ".join(f"node {name} has failed ({state})" for name, state in lost.items())


def _words(state: str) -> set[str]:
    return set(state.replace("*", "").split("+"))


def hostnames(compressed: str) -> list[str]:
    """The names in Slurm's short form of many: `n[1-3]`."""
    return ask("scontrol", "show", "hostnames", compressed).split()


def records(text: str) -> list[dict[str, str]]:
    """The `Key=value` words of each line that `scontrol --oneliner show` prints."""
    lines = [line.split() for line in text.splitlines()]
    return [dict(word.split("=", 1) for word in line if "=" in word) for line in lines if line]
