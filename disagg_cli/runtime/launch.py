"""A launch from the first process to the last one gone: start, prove, eval, hold, stop."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from disagg_cli import secrets
from disagg_cli.api_key import sending
from disagg_cli.connector import overlay
from disagg_cli.engine.installed import versions
from disagg_cli.errors import DisaggError, Interrupted, LaunchFailed
from disagg_cli.executors.protocol import Executor
from disagg_cli.findings.finding import Finding
from disagg_cli.rehearsal.synthetic import materialize
from disagg_cli.runtime import disk, evaluation, hosts, logs, restart, rundir
from disagg_cli.runtime.prepare import Prepared
from disagg_cli.runtime.proof import Proof
from disagg_cli.runtime.reach import Reach
from disagg_cli.runtime.rundir import RunDir
from disagg_cli.runtime.state import ProcessState, Recorder, RunState
from disagg_cli.runtime.supervisor import ProcessDied, Supervisor, in_words
from disagg_cli.settings import ON_CPU, ON_GPU, Timeouts
from disagg_cli.topology.written import written_out

STOP_SIGNALS = {
    signal.SIGINT: "",
    signal.SIGTERM: "",
    signal.SIGHUP: "",
    signal.SIGUSR1: ": the time limit of its Slurm job is near",  # executors/slurm/script.py asks for it
}
"""Signals that ask for a stop, and what is to be said of it beside."""
MOST_OF_A_START = 4 << 20
"""Bytes of a worker's log from its start to its health."""
LAST_LOOK_S = 2.0
"""After a failure, how long to see whether a process died: then that is what failed. Its connections break before its
death is known: on busy cores, or over a network, a second before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How to launch. warm: fork servers from one parent that has imported SGLang; CPU platforms only."""

    warm: bool
    exit_after_eval: bool


def record(prepared: Prepared, directory: RunDir) -> Recorder:
    """Write down what is about to be started, and begin the run's record."""
    directory.write_text("topology.yaml", _without_secrets(prepared))
    directory.write("plan.json", prepared.plan_document())
    directory.write("versions.json", {"schema": "disagg.versions/1", "versions": versions()})
    record_commands(prepared, directory)
    deployment = prepared.deployment
    processes = {
        command.name: ProcessState(
            name=command.name,
            role=command.name.partition("-")[0],
            url=prepared.urls.get(command.name, ""),
            log=str(directory.log(command.name)),
        )
        for command in prepared.commands
    }
    state = RunState(run=directory.path.name, name=deployment.name, url=deployment.router.url, processes=processes)
    recorder = Recorder(directory, state)
    recorder.save()
    return recorder


def record_commands(prepared: Prepared, directory: RunDir) -> None:
    """Write down where what will run, once more when that is known better."""
    directory.write("deployment.json", prepared.document())
    directory.write_text(
        "commands.sh", "".join(f"# {c.name} on {c.host.name}\n{c.shell()}\n" for c in prepared.commands)
    )


def _without_secrets(prepared: Prepared) -> str:
    """The topology that is launched: bases, variant and changes applied, variables filled in, secrets masked."""
    if written := prepared.deployment.written:
        return f"# From {prepared.config}, as it was launched.\n{written_out(written)}"
    text = prepared.config.read_text()
    for command in prepared.commands:
        text = secrets.without(text, command.env)
    return text


async def check_machine(prepared: Prepared) -> tuple[Finding, ...]:
    """Find what would make processes fail on their hosts, before the first one. PlanRefused names it.

    Returned is what need not make them fail. Its ports are to be `reserved` by then: for a moment something listens
    there, which would be in the way of another launch, and two that look at once would see only each other.
    """
    found = await hosts.look_at_hosts(prepared)
    hosts.refuse(found)
    evaluation.check(prepared)
    return found


class View(evaluation.Reporter, Protocol):
    """Who shows a launch while it goes on."""

    def serving(self) -> None:
        """Say where everything is."""


class Launch:
    """One launch. `run` returns normally, or raises what ended it, once every process has gone."""

    def __init__(self, prepared: Prepared, options: Options, recorder: Recorder, view: View) -> None:
        self.prepared = prepared
        self.deployment = prepared.deployment
        self.options = options
        self.recorder = recorder
        self.reach = Reach(recorder)
        self.view = view
        self.timeouts: Timeouts = ON_CPU if self.deployment.platform.on_cpu else ON_GPU
        self.stop_asked = asyncio.Event()
        self.why = ""
        self.hurry = asyncio.Event()
        self.eval_error: DisaggError | None = None
        self.gang = [command.name for command in (*prepared.workers, prepared.router)]
        self.restarts: list[float] = []

    async def run(self) -> None:
        """Do all of it, and leave no process behind however it ends."""
        with self._signals(), sending(self.deployment.api_key):
            try:
                await self._start_to_stop()
            except DisaggError as error:
                self._ended(error.exit_code, error.what)
                raise
            except OSError as error:
                if not disk.is_full(error):
                    self._ended(1, f"internal error: {type(error).__name__}: {error}")
                    raise
                failed = disk.no_room(self.recorder.directory.path, error)
                self._ended(failed.exit_code, failed.what)
                raise failed from None
            except BaseException as error:
                self._ended(1, f"internal error: {type(error).__name__}: {error}")
                raise
            self._ended(0, f"stopped{self.why}")

    async def _start_to_stop(self) -> None:
        async with self._executor() as executor:
            supervisor = Supervisor(executor, self.recorder, self.timeouts)
            ended_by: DisaggError | None = None
            try:
                await self._keep_up(executor, supervisor)
            except DisaggError as error:
                ended_by = error
                raise
            finally:
                self.recorder.ending = True
                self.reach.end()
                try:
                    self.recorder.run_phase("stopping", "every process to end")
                finally:  # whatever a listener does, no process is left
                    # a peer of a dead worker has nothing to drain: its requests cannot end
                    left = await supervisor.stop(self.hurry, drain=not isinstance(ended_by, LaunchFailed))
                self.recorder.event("stop", in_words(left) or "all ended", left=list(left))
                fix = f"run `disagg stop --run {self.recorder.state.run}` later"
                if left and ended_by and in_words(left) not in ended_by.what:
                    ended_by.what += f"\n{in_words(left)}"
                    ended_by.fix = ended_by.fix or fix
        if left:
            raise LaunchFailed(in_words(left), fix=fix)
        if self.eval_error:
            raise self.eval_error

    async def _keep_up(self, executor: Executor, supervisor: Supervisor) -> None:
        """Do all of it, and again from the start of the gang on where a process dies and the topology wants that."""
        step = self._sequence(executor, supervisor)
        while True:
            try:
                return await self._until_stopped(step, supervisor.watch())
            except ProcessDied as death:
                pause = self._pause(death.crash.process)
                if pause is None:
                    raise
                supervisor.release(self._to_restart(death.crash.process))
                step = self._start_again(supervisor, death.crash.process, pause)

    def _pause(self, dead: str) -> float | None:
        """How long to wait before another start; None where there is none. What has never served would fail again."""
        spec = self.deployment.restart
        served = self.recorder.state.phase == "serving" or self.restarts
        if spec.policy == "never" or not served or dead not in self.gang or self.stop_asked.is_set():
            return None
        now = time.monotonic()
        pause = restart.pause(spec, self.restarts, now)
        if pause is None:
            self.recorder.event("restart", f"no more restarts: {spec.times} within {spec.within_s:.0f} s")
        else:
            self.restarts.append(now)
        return pause

    def _to_restart(self, dead: str) -> list[str]:
        return [dead] if dead == self.prepared.router.name else self.gang

    async def _start_again(self, supervisor: Supervisor, dead: str, pause: float) -> None:
        """End the router, so that no more requests come in, then the gang; start both again, and prove them."""
        names = self._to_restart(dead)
        what = "the router" if dead == "router" else "all prefill and decode workers"
        self.recorder.restarting(f"{what} to start again after {dead} died, in {pause:.0f} s")
        for some in (["router"], [name for name in names if name != "router"]):
            # nothing to drain: a request needs both sides of its pair
            if left := await supervisor.end(some, self.hurry, drain=False):
                raise LaunchFailed("; ".join(filter(None, [in_words(left), self._silence()])))
        self.recorder.again(names)
        await asyncio.sleep(pause)
        if silence := self._silence():
            raise LaunchFailed(f"{silence}: {what} cannot start again")
        if dead != "router":
            await self._start_workers(supervisor)
        await supervisor.start([self.prepared.router])
        proof = Proof(self.prepared, self.recorder, self.timeouts)
        await (proof.of_router() if dead == "router" else proof.obtain())
        await self._serve()

    def _silence(self) -> str:
        """Which hosts answer nothing any more, in words; empty if all do."""
        silent = self.reach.silent
        return f"{', '.join(silent)} answer{'s' * (len(silent) == 1)} nothing" if silent else ""

    async def _until_stopped(self, sequence: Coroutine[Any, Any, None], watch: Coroutine[Any, Any, None]) -> None:
        """Run until the sequence ends or fails, a process dies, or a stop is asked for."""
        watching, running, _ = tasks = [asyncio.create_task(one) for one in (watch, sequence, self._stop())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if running.done() and not running.cancelled() and running.exception():
            await asyncio.wait({watching}, timeout=LAST_LOOK_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:  # a death explains what failed because of it, so it comes first
            if not task.cancelled():
                task.result()

    async def _stop(self) -> None:
        await self.stop_asked.wait()
        if self.recorder.state.phase != "serving":
            raise Interrupted(f"interrupted while {self.recorder.state.phase}{self.why}")

    async def _sequence(self, executor: Executor, supervisor: Supervisor) -> None:
        self.recorder.run_phase("starting", "SGLang to be imported once" if self.options.warm else "its hosts")
        await executor.open()
        self._settled(await hosts.settle(executor, self.prepared))
        if self.deployment.model.synthetic:
            folder = materialize(self.deployment.model.synthetic, rundir.cache() / "synthetic")
            await executor.provide(self.deployment.hosts, folder)
        await self._start_workers(supervisor)
        await supervisor.start([self.prepared.router])  # it needs healthy workers, and starts while pairs are proven
        await Proof(self.prepared, self.recorder, self.timeouts).obtain()
        self.eval_error = await evaluation.evaluate(self.prepared, supervisor, self.recorder, self.view)
        if not self.options.exit_after_eval:
            await self._serve()

    async def _start_workers(self, supervisor: Supervisor) -> None:
        self.recorder.run_phase("starting", "workers to be healthy")
        await supervisor.start(self.prepared.workers)
        self.reach.begin(self.deployment)
        await supervisor.healthy({worker.name: worker.url for worker in self.deployment.workers})
        self._require_overlay()

    async def _serve(self) -> None:
        self.recorder.run_phase("serving")
        self.view.serving()
        await asyncio.shield(self.reach.begin(self.deployment))  # it goes on watching while a gang starts again

    def _settled(self, prepared: Prepared) -> None:
        """It is known now where everything runs."""
        self.prepared, self.deployment = prepared, prepared.deployment
        record_commands(prepared, self.recorder.directory)
        state = self.recorder.state
        state.url = prepared.deployment.router.url
        for name, url in prepared.urls.items():
            state.processes[name].url = url

    @contextlib.asynccontextmanager
    async def _executor(self) -> AsyncIterator[Executor]:
        executor = hosts.executor_for(
            self.deployment,
            self.recorder.directory,
            warm=self.options.warm,
            tell=lambda text: self.recorder.event("host", text),
        )
        try:
            yield executor
        finally:
            await executor.close()

    def _require_overlay(self) -> None:
        """See in the logs that the overlay which the plan counts on is there, and fail if it is not."""
        for worker in self.deployment.role("prefill") if self.prepared.overlay else ():
            log = self.recorder.directory.log(worker.name)
            said_first = str(logs.read(log, 0, MOST_OF_A_START), errors="replace").splitlines()
            lines = [line for line in said_first if line.startswith(overlay.PREFIX)]
            if not any(line.startswith(overlay.LOADED) for line in lines):
                said = lines[-1] if lines else "its log says nothing of it"
                raise LaunchFailed(
                    f"the plan counts on the overlay, and {worker.name} has not loaded it: {said}",
                    where=str(log),
                    fix="see that disagg is installed in the environment that SGLang runs in",
                )
            self.recorder.event("overlay", f"{worker.name}: {lines[-1]}")

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Listen to signals, but for those that whoever started us had us ignore, as `nohup` does."""
        loop = asyncio.get_running_loop()
        before = {signum: signal.getsignal(signum) for signum in STOP_SIGNALS}
        heard = {signum: handler for signum, handler in before.items() if handler is not signal.SIG_IGN}
        for signum in heard:
            loop.add_signal_handler(signum, self._signalled, signum)
        try:
            yield
        finally:
            for signum, handler in heard.items():
                loop.remove_signal_handler(signum)
                signal.signal(signum, handler)

    def _signalled(self, signum: signal.Signals) -> None:
        """The first signal asks for a stop; a second one skips the time of grace, and waits for no lost host."""
        if self.stop_asked.is_set():
            self.hurry.set()
        else:
            self.why = STOP_SIGNALS[signum]
        self.stop_asked.set()
        wish = "to stop at once" if self.hurry.is_set() else "to stop"
        with contextlib.suppress(LaunchFailed):  # a record that cannot be written stops nobody from stopping
            self.recorder.event("signal", f"{signum.name}: asked {wish}", signal=signum.name)

    def _ended(self, exit_code: int, reason: str) -> None:
        self.recorder.state.exit_code, self.recorder.state.reason = exit_code, reason
        self.recorder.run_phase("ended")
