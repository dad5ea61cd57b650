"""From a topology to a job in Slurm's queue, and what that job does first."""

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from disagg_cli.errors import DisaggError, Interrupted, LaunchFailed
from disagg_cli.executors.slurm import client, script
from disagg_cli.executors.slurm.options import for_sbatch
from disagg_cli.runtime.job import (
    ALLOCATION,
    SCRIPT,
    TOPOLOGY,
    failed_nodes,
    forget_secrets,
    stop,
    uninterrupted,
    write_down,
)
from disagg_cli.runtime.launch import record
from disagg_cli.runtime.prepare import Prepared
from disagg_cli.runtime.rundir import RunDir
from disagg_cli.topology.slurm import SlurmSpec
from disagg_cli.topology.written import written_out


def launch_argv(prepared: Prepared, topology: Path, flags: Sequence[str]) -> list[str]:
    """What the batch script runs."""
    python = SlurmSpec.model_validate(prepared.deployment.executor_settings).python_of_job(sys.executable)
    return [python, "-m", "disagg_cli", "launch", str(topology), *flags]


def rendered(prepared: Prepared, flags: Sequence[str]) -> str:
    """The sbatch script of a topology that is not submitted yet, or the commands that another executor would run."""
    if prepared.deployment.executor == "slurm":
        return script.script(prepared.deployment, launch_argv(prepared, prepared.config.absolute(), flags))
    return "\n\n".join(f"# {one.name} on {one.host.name}\n{one.shell()}" for one in prepared.commands) + "\n"


def submit(prepared: Prepared, directory: RunDir, flags: Sequence[str]) -> str:
    """Submit the job of a run and return its number. LaunchFailed with sbatch's own words."""
    recorder = record(prepared, directory)
    recorder.state.phase = "pending"
    recorder.save()  # here, and no more once there is a job: the job then writes it
    argv = launch_argv(prepared, directory.path / TOPOLOGY, ["--run-dir", str(directory.path), *flags])
    text = script.script(prepared.deployment, argv, output=directory.path / "launch.log")
    env, dropped = for_sbatch(os.environ, text)
    if dropped:
        _tell(directory, f"kept from sbatch: {', '.join(dropped)}; say under executor.slurm what the job is to ask for")
    number = ""
    try:
        directory.write_text(SCRIPT, text)
        directory.write_text(TOPOLOGY, written_out(prepared.deployment.written, masked=False))
        with uninterrupted():  # a job that nobody has written down could not be stopped
            said = client.ask("sbatch", "--parsable", str(directory.path / SCRIPT), env=env)
            number = said.strip().partition(";")[0]  # `;CLUSTER` follows on a federation (sbatch(1), --parsable)
            write_down(directory, number)
            _tell(directory, f"submitted as Slurm job {number}")
    except DisaggError as error:
        if number:
            raise _cancelled(directory, number) from None
        error.fix = error.fix or _fix(directory.path / SCRIPT, error.what)
        forget_secrets(directory)
        recorder.state.exit_code, recorder.state.reason = error.exit_code, error.what
        recorder.run_phase("ended")
        raise
    except OSError:  # a full disk
        forget_secrets(directory)
        if number:
            stop(directory, number, at_once=True)
        raise
    return number


def _fix(file: Path, said: str) -> str:
    """What to do about a job that was refused. Few users have asked for a segment, and Slurm names it by no name; one
    that it does not know, before 23.11, or may not be so large, or does not divide the nodes, is refused alike."""
    if re.search("--segment|Requested topology", said):
        return f"set executor.slurm.segment to what the cluster's blocks hold, or to 0, and see {file}"
    return f"see {file}; what it asks for stands under executor.slurm"


def _cancelled(directory: RunDir, number: str) -> Interrupted:
    """Cancel a job that somebody has asked to end while it was submitted. LaunchFailed if Slurm does not do so."""
    _tell(directory, f"interrupted while it was submitted: cancelling Slurm job {number}")
    stop(directory, number, at_once=True)
    return Interrupted(f"interrupted while it was submitted; Slurm job {number} is cancelled")


def _tell(directory: RunDir, text: str) -> None:
    directory.append("events.jsonl", {"at": round(time.time(), 3), "kind": "slurm", "text": text})


@contextlib.contextmanager
def kept(directory: RunDir) -> Iterator[None]:
    """In a job: know it by its number while the body runs, and say so if Slurm takes its nodes back. LaunchFailed then.

    A job that is over already is not around this process, which only has its number left in the environment: nothing is
    believed of it.
    """
    env = os.environ
    number = env["SLURM_JOB_ID"]
    batch_script = env.get("SLURM_TASK_PID") == str(os.getpid()) and "SLURM_STEP_ID" not in env
    if batch_script:
        write_down(directory, number)
    elif client.over(number):
        yield
        return
    else:  # in a script or shell of somebody's, which may go on afterwards
        here = {"job": number, "node": env.get("SLURMD_NODENAME", "")}
        directory.write(ALLOCATION, {"schema": "disagg.allocation/1", **here})
    try:
        yield
    except DisaggError as error:
        raise _noted(directory, _taken_away(directory, number, error) or error) from None
    if taken := _taken_away(directory, number, None):
        raise _noted(directory, taken)


def _taken_away(directory: RunDir, number: str, error: DisaggError | None) -> DisaggError | None:
    """What Slurm has done to the job, if that is why the run has ended.

    A job that is preempted, or loses a node, gets the same SIGTERM as one that somebody cancels. What fails while Slurm
    ends a job, such as a look at a node, fails because of that.
    """
    if client.preempted(number):
        return LaunchFailed(f"Slurm has taken the nodes of job {number} back: it was preempted")
    if client.lost_a_node(number):
        return LaunchFailed(f"Slurm has ended job {number}: {failed_nodes(directory.state())}")
    if error and not isinstance(error, Interrupted) and client.ends(number):
        return Interrupted(f"Slurm has ended job {number}; what was seen of that first: {error.what}")
    return None


def _noted(directory: RunDir, error: DisaggError) -> DisaggError:
    """The error, which stands in the run's record as its end."""
    state = directory.state()
    end = {"phase": "ended", "exit_code": error.exit_code, "reason": error.what}
    if not end.items() <= state.items():
        with contextlib.suppress(OSError):  # a disk that is full keeps nobody from being told
            directory.write("state.json", state | end)
    return error
