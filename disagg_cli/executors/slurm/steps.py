"""Processes on an allocation's nodes: each a step of its own, held by an srun of this machine."""

import asyncio
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from disagg_cli.engine.commands import Command
from disagg_cli.errors import LaunchFailed
from disagg_cli.executors import sessions
from disagg_cli.executors.local import environment, mark, marked, spawn
from disagg_cli.executors.protocol import UNKNOWN_EXIT, Handle, Site
from disagg_cli.executors.slurm import client, nodes, srun
from disagg_cli.executors.slurm.nodes import Node
from disagg_cli.executors.slurm.options import undistracted
from disagg_cli.topology import survey
from disagg_cli.topology.deployment import Host
from disagg_cli.topology.machine import HostFacts, facts_of, host_facts
from disagg_cli.topology.slurm import SlurmSpec

FRESH_S = 0.3
"""How long a list of steps is good for: what is asked at the same moment is answered by one question."""
SILENT_S = 5.0
"""How long nobody asks again for it after Slurm gave no answer: many wait for one at the same moment."""
ASKED = """
import json
print(json.dumps({**host(*json.loads(sys.argv[1])), "facts": survey()}))
"""
"""What is asked of survey.py on a node."""
LOOK_S = 60.0
"""For one look at a node; where a container image has to be fetched first, as long as a server may take to load."""
PATIENCE_S = 2.5
"""For an srun that was asked to end and holds no step yet: what it waits for is an answer of the controller."""
SURE_S = 1.0
"""Between a kill and doubt about a step that is listed still."""
WHY_S = 2.0
"""For what Slurm knows of the end of a step. Without it the end itself is told, of which its srun has the code; 0 may
stand for the loss of its node, and is worth a longer wait."""
TOLD_S = 10.0
"""Between the end of a step with its job, and the signal that tells disagg of it."""
MOST_AT_ONCE = 32
"""Nodes that are looked at side by side: each takes an srun here."""


class SlurmExecutor:
    """Starts steps in the allocation that this process runs in. Handles work wherever this user has squeue."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._settings = SlurmSpec.model_validate(site.settings)
        self._nodes: dict[str, Node] = {}
        self._sruns: dict[int, subprocess.Popen[bytes]] = {}
        self._lost: dict[int, str] = {}
        self._taken: dict[int, float] = {}
        self._killed: dict[str, float] = {}
        self._records: set[str] = set()
        self._starts: dict[str, int] = {}
        self._listed: tuple[float, Mapping[tuple[str, str], str]] = (0.0, {})
        self._unanswered: tuple[float, str] = (-math.inf, "")
        self._turn = asyncio.Lock()
        self._looks = asyncio.Semaphore(MOST_AT_ONCE)

    async def open(self) -> None:
        """Find Slurm's commands and the nodes of the allocation, if this process is in one."""
        client.require()
        if nodes.inside(os.environ):
            found = await asyncio.to_thread(nodes.allocation, os.environ)
            self._nodes = {node.name: node for node in found}

    async def place(self, hosts: Sequence[Host]) -> Mapping[str, Host]:
        """The node of the allocation behind each host, for a run. LaunchFailed if there are too few."""
        if not self._nodes or not self._site.run:  # a look before the run would only be done once more by it
            return {}
        found = nodes.stand_in(hosts, tuple(self._nodes.values()))
        for text in nodes.torn(hosts, found):
            self._site.tell(text)
        for host in hosts:
            self._site.tell(f"{host.name} is {found[host.name].name}, {found[host.name].address}")
        return {
            host.name: replace(host, name=found[host.name].name, address=found[host.name].address) for host in hosts
        }

    async def look(
        self, hosts: Sequence[Host], ports: Mapping[Host, Mapping[int, str]], paths: Sequence[str]
    ) -> tuple[HostFacts, ...]:
        """Look at the nodes, each in a step of its own. Before there are nodes, nothing is known."""
        wanted = [
            (host, {at.address: list(ports[at]) for at in ports if at.name == host.name})
            for host in hosts
            if host.name in self._nodes
        ]
        async with asyncio.TaskGroup() as looks:  # unlike gather, it waits for all of them where it is cancelled
            found = [looks.create_task(self._look(host, listeners, paths)) for host, listeners in wanted]
        return tuple(one.result() for one in found)

    async def _look(self, host: Host, ports: Mapping[str, list[int]], paths: Sequence[str]) -> HostFacts:
        """survey.py is sent there as text: nothing has to be installed."""
        asked = json.dumps([ports, list(paths)])
        argv = (self._python, "-c", Path(survey.__file__).read_text() + ASKED, asked)  # noqa: ASYNC240 - a few pages
        try:
            said = await self._run(host, argv)
            found: dict[str, Any] = json.loads(said.splitlines()[-1])
        except (LaunchFailed, ValueError, IndexError) as error:
            text = error.what if isinstance(error, LaunchFailed) else f"a look at it says {said[-200:]!r}"
            return HostFacts(host=host.name, problem=text, fix=f"try: srun -w {host.name} {self._python} --version")
        return host_facts(host.name, {**found, "python": self._python}, facts_of(found["facts"]))

    @property
    def _python(self) -> str:
        """What runs SGLang on the nodes."""
        return self._settings.python_of_steps(sys.executable)

    async def provide(self, hosts: Sequence[Host], folder: Path) -> None:
        """See that the nodes share the file system that it is on."""
        looks = await self.look(hosts, {}, [str(folder)])
        if without := [found.host for found in looks if found.missing or found.problem]:
            raise LaunchFailed(
                f"{folder} is not on {', '.join(without)}",
                fix="set DISAGG_HOME to a folder on a file system that all nodes share",
            )

    async def _run(self, host: Host, argv: Sequence[str]) -> str:
        """Run something short on a node and return what it prints. LaunchFailed with what it says if it fails."""
        command = srun.step(self._nodes[host.name], host, "look", self._settings, argv, {})
        within = max(LOOK_S, self._site.timeouts.health) if self._settings.contained else LOOK_S
        async with self._looks:
            child = await asyncio.create_subprocess_exec(
                *command,
                env=undistracted(os.environ, in_job=True),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                async with asyncio.timeout(within):
                    said, _ = await child.communicate()
            except TimeoutError:
                raise LaunchFailed(f"a step there said nothing for {within:.0f} s") from None
            finally:
                await _end(child)
        text = said.decode(errors="replace").strip()
        if child.returncode:
            raise LaunchFailed(f"a step there failed: {text[-400:]}")
        return text

    async def start(self, command: Command, log: Path) -> Handle:
        """Start a step. Its srun writes to `log`, with what Slurm has to say about it."""
        node = self._nodes.get(command.host.name)
        if node is None:
            raise LaunchFailed(f"{command.name}: {command.host.name} is no node of this allocation")
        name = self._step_name(command.name)
        argv = srun.step(node, command.host, name, self._settings, command.argv, command.env)
        token = f"{node.job}/{name}"
        env = environment(command)
        env = undistracted(env, in_job=True) | {key: env[key] for key in command.env}
        child = spawn(command.name, argv, env | mark(log, token), log)
        self._sruns[child.pid] = child
        born = sessions.born(child.pid)
        return Handle(name=command.name, host=node.name, pid=child.pid, born=born, log=log, token=token)

    async def started(self, process: str, host: str) -> tuple[Handle, ...]:
        """The steps of a process, and the sruns of this machine that may still wait for theirs."""
        async with self._turn:
            await self._refresh()
        log, tokens = self._site.logs / f"{process}.log", ["/".join(key) for key in self._listed[1]]
        found = {one: Handle(name=process, host=host, pid=0, born=0.0, log=log, token=one) for one in tokens}
        found |= {handle.token: handle for handle in await marked(host)}
        first = f"{process}@{self._site.run}"
        return tuple(found[one] for one in found if one.partition("/")[2].partition("~")[0] == first)

    def _step_name(self, name: str) -> str:
        """A name that no other step has, of this run or of another in the same allocation: steps are found by it."""
        self._starts[name] = count = self._starts.get(name, 0) + 1
        return f"{name}@{self._site.run}" + (f"~{count}" if count > 1 else "")

    async def poll(self, handle: Handle) -> int | None:
        """Exit code, -N for signal N, None while it runs. LaunchFailed names a node that has failed."""
        if (child := self._sruns.get(handle.pid)) is None:
            return None if await self._step(handle) else UNKNOWN_EXIT
        code = child.poll()
        if code is None:
            return None
        await self._ask_why(handle, WHY_S if code else client.ANSWER_S)
        if lost := self._lost[handle.pid]:  # srun returns 0 then (22.05)
            raise LaunchFailed(f"{lost}, and {handle.name} with it", where=str(handle.log))
        return None if self._goes_with_its_job(handle) else _signal_or_code(code)

    async def _ask_why(self, handle: Handle, within: float) -> None:
        """Find out whether the node of a step that has ended has failed, and whether Slurm is ending its job."""
        if handle.pid in self._lost:
            return
        lost, ends = await asyncio.gather(
            asyncio.to_thread(client.failed, [handle.host], within),
            asyncio.to_thread(client.ends, handle.token.partition("/")[0], within),
        )
        self._lost[handle.pid], self._taken[handle.pid] = lost, time.monotonic() if ends else 0.0

    def _goes_with_its_job(self, handle: Handle) -> bool:
        """Whether Slurm is ending the job of a step that has ended. That is no death: disagg itself is told as well,
        only not always before its steps. LaunchFailed if it is not told."""
        if (since := self._taken[handle.pid]) and time.monotonic() - since > TOLD_S:
            job = handle.token.partition("/")[0]
            raise LaunchFailed(f"Slurm has ended job {job}, and {handle.name} with it", where=str(handle.log))
        return since > 0

    async def terminate(self, handle: Handle) -> None:
        """Ask the processes of the step to end; scancel without a signal would kill them at once."""
        if step := await self._known_step(handle):
            await self._cancel("--signal=TERM", step)
        elif self._holds(handle):  # it has not begun, or Slurm does not answer: srun kills its step then (22.05)
            sessions.send(handle.pid, signal.SIGTERM)

    async def kill(self, handle: Handle) -> None:
        """End every process of the step.

        An srun whose step has not begun is asked first: were it killed while the controller answers it, a step would be
        on record that nobody can end, for as long as the job lasts (22.05). Nor is one killed while Slurm gives no
        answer: one that was asked to end sees to its step as soon as there is a controller again.
        """
        since = time.monotonic() - self._killed.setdefault(handle.token, time.monotonic())
        if step := await self._known_step(handle):
            await self._cancel(step)
        elif self._holds(handle):
            if since < PATIENCE_S or self._silent:
                sessions.send(handle.pid, signal.SIGTERM)
            else:
                sessions.kill_session(handle.pid)
            self._listed = (0.0, {})  # its step may have begun since it was listed

    async def survivors(self, handle: Handle) -> tuple[int, ...]:
        """The pid of its srun, while that or the step is there. What was on a node that has failed is gone."""
        if self._lost.get(handle.pid):
            return ()
        if self._holds(handle):
            return (handle.pid,)
        step = await self._step(handle)
        return (handle.pid,) if step and not await self._only_on_record(handle, step) else ()

    async def _only_on_record(self, handle: Handle, step: str) -> bool:
        """Whether nothing runs of a step that was killed and that Slurm lists still, as it does if its srun was too."""
        if time.monotonic() - self._killed.get(handle.token, time.monotonic()) < SURE_S:
            return False
        if handle.token not in self._records:
            job = handle.token.partition("/")[0]
            async with self._looks:
                found = await asyncio.to_thread(client.steps_on, handle.host, job)
            if not found or step in found:
                return False
            self._records.add(handle.token)
        return True

    async def collect(self, handle: Handle) -> None:
        """Its log is here."""

    async def close(self) -> None:
        """Nothing is held beside the processes."""

    def _holds(self, handle: Handle) -> bool:
        """Whether the step's srun runs here."""
        if child := self._sruns.get(handle.pid):
            return child.poll() is None
        return sessions.same_process(handle.pid, handle.born)

    async def _step(self, handle: Handle) -> str | None:
        """The id of a handle's step, if it runs. LaunchFailed where Slurm does not answer."""
        job, _, name = handle.token.partition("/")
        async with self._turn:
            await self._refresh()
        return self._listed[1].get((job, name))

    async def _refresh(self) -> None:
        """Ask which steps run, unless that has just been done."""
        if time.monotonic() - self._listed[0] <= FRESH_S:
            return
        if self._silent:
            raise LaunchFailed(self._unanswered[1])
        asked = time.monotonic()
        try:
            self._listed = (asked, await asyncio.to_thread(client.steps))
        except LaunchFailed as error:
            self._unanswered = (time.monotonic(), error.what)
            raise

    @property
    def _silent(self) -> bool:
        """Whether Slurm has just now given no answer."""
        return time.monotonic() - self._unanswered[0] < SILENT_S

    async def _known_step(self, handle: Handle) -> str | None:
        """The same for whoever is to end it: where Slurm does not answer, its srun is all that can be reached."""
        with contextlib.suppress(LaunchFailed):
            return await self._step(handle)
        return None

    async def _cancel(self, *what: str) -> None:
        """scancel a step. What it says is not what it does (22.05), so the step is looked at afterwards."""
        with contextlib.suppress(LaunchFailed):
            await asyncio.to_thread(client.ask, "scancel", *what)


async def _end(srun: asyncio.subprocess.Process) -> None:
    """End an srun that is not needed any more: it is asked first, as in `kill`."""
    if srun.returncode is None:
        sessions.send(srun.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(srun.wait(), PATIENCE_S)
    if srun.returncode is None:
        sessions.kill_session(srun.pid)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(srun.wait(), PATIENCE_S)


def _signal_or_code(code: int) -> int:
    """srun returns 128 + N for a task that signal N has ended (srun(1), return value)."""
    return 128 - code if 128 < code <= 128 + signal.SIGRTMAX else code
