"""What happens in a run, told to somebody elsewhere: from its files, and from Slurm where that supervises it."""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from disagg_cli.errors import DisaggError, LaunchFailed
from disagg_cli.executors.slurm import nodes
from disagg_cli.runtime import control, disk, job, reach
from disagg_cli.runtime.rundir import RunDir, event

LOOK_S = 0.2
"""Between two looks at the run's files."""
SETTLE_S = 2.0
"""Between the end of a supervisor and giving up on what it may have written."""


class Follower:
    """Tells what happens in a run, from its beginning. now: how it stood at the last look."""

    def __init__(self, directory: RunDir) -> None:
        self.directory = directory
        self._look = control.watcher(directory)
        self.now = self._look()
        self._place = 0
        self._waits = ""
        self._over = 0.0
        self._unwatched = job.number_of(directory) is not None
        self._disk = ""
        self._told: deque[str] = deque()

    def until(self, *phases: str) -> Iterator[Mapping[str, Any]]:
        """Yield events until the run is in one of these phases. What ended it is raised, if it is not.

        An event has a `text`, and where the run itself tells it, `t`: seconds since its beginning.
        """
        while True:
            self.now = self._look()
            yield from self._of_its_disk()
            yield from self._events()
            yield from self._of_its_node()
            waits = self.now.state["waiting_for"] if self.now.phase == "pending" else ""
            if waits not in ("", "Slurm (None)", self._waits):
                self._waits = waits
                yield {"text": f"pending: {waits}"}
            if self.now.phase in phases:
                return
            if self.now.phase == "ended":
                raise job.ended(self.directory, self.now.state)
            if self.now.phase == "lost" and self._settled():
                raise self._lost()
            time.sleep(LOOK_S)

    def _of_its_disk(self) -> Iterator[Mapping[str, Any]]:
        """That it is full, or no more. The run tells of it as well, where it can write that down."""
        if self.now.disk != self._disk:
            self._disk = self.now.disk
            yield {"text": self._disk or disk.AGAIN}

    def _of_its_node(self) -> Iterator[Mapping[str, Any]]:
        """What is seen from here of the node on which disagg supervises the run: it cannot tell of its own end."""
        if self._unwatched and self.now.phase != "pending":
            self._unwatched = False
            with job.uninterrupted():  # as in job.Lookout
                threading.Thread(target=self._watch, args=(self.now.state["host"],), daemon=True).start()
        while self._told:
            yield {"text": f"{self._told.popleft()}; disagg runs there"}

    def _watch(self, node: str) -> None:
        with contextlib.suppress(LaunchFailed):
            asyncio.run(reach.of_host(node, nodes.address_of(node), [reach.NOBODYS], self._told.append))

    def _settled(self) -> bool:
        """Whether the supervisor has been gone for a while: over a network, its last words take their time."""
        self._over = self._over or time.monotonic()
        return time.monotonic() - self._over > SETTLE_S

    def _lost(self) -> DisaggError:
        if number := job.number_of(self.directory):
            return job.lost(self.directory, number, job.look(self.directory, number))
        name = self.directory.path.name
        return LaunchFailed(f"the supervisor of {name} is gone", fix="`disagg stop` ends what is left")

    def _events(self) -> Iterator[Mapping[str, Any]]:
        file = self.directory.path / "events.jsonl"
        if file.exists():
            with file.open("rb") as events:
                events.seek(self._place)
                whole = [line for line in events if line.endswith(b"\n")]
            self._place += sum(map(len, whole))
            yield from (one for one in map(event, whole) if one.get("kind") != "disk")
