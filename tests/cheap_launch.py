"""Whole launches in the background in a second or two: the real `disagg` and the real processes, cheap servers."""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from deployments import SMALLEST
from waiting import wait_until

from disagg_cli.executors import sessions

COMMAND = [sys.executable, str(Path(__file__).with_name("cheap_disagg.py"))]
_blocks = iter(range(23000 + os.getpid() % 16 * 200, 32000, 40))


def free_ports(blocks: int = 1) -> int:
    """The first of 40 ports, or some times as many, that nobody listens on now."""
    for block in _blocks:
        if not sessions.taken("127.0.0.1", range(block, block + 40 * blocks)):
            for _ in range(blocks - 1):
                next(_blocks)
            return block
    raise AssertionError("no ports are left")


class CheapLaunch:
    """A `disagg launch` of the smallest topology, some keys changed, on ports of its own. `kill` ends it anyhow.

    screen: a descriptor to write to, in place of the file that `said` reads. within: what runs the command, such as a
    shell of an allocation.
    """

    def __init__(
        self,
        folder: Path,
        *flags: str,
        ports: int | None = None,
        blocks: int = 1,
        screen: int | None = None,
        within: Sequence[str] = (),
        **changes: Any,
    ) -> None:
        self.folder = folder
        self.ports = free_ports(blocks) if ports is None else ports
        self.before = set(self._runs())
        self._run: Path | None = None
        config = folder / f"t{self.ports}.yaml"
        fixed = {
            "ports": self.ports,
            "router": {"port": self.ports + 40 * blocks - 4},
            "probe": {"parity": False, "timeout_s": 20},
        }
        one = {"prefill": {"tp": 1}, "decode": {"workers": 2, "tp": 1}}
        config.write_text(yaml.safe_dump(SMALLEST | one | fixed | changes))
        self.output = folder / f"launch-{time.monotonic_ns()}.out"
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [*within, *COMMAND, str(folder), "launch", str(config), "--cold", *flags],
                stdin=subprocess.DEVNULL,
                stdout=out if screen is None else screen,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def disagg(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Another `disagg` of the same home, in another terminal."""
        return subprocess.run([*COMMAND, str(self.folder), *args], capture_output=True, text=True, timeout=120)

    @property
    def said(self) -> str:
        """What stands on its screen."""
        return self.output.read_text()

    def wait_for(self, text: str, within: float = 60) -> None:
        """Wait until it has said this."""

        def there() -> bool:
            if text in self.said:
                return True
            assert self.process.poll() is None, f"ended before {text!r}:\n{self.said}"
            return False

        wait_until(there, within)

    @property
    def run(self) -> Path:
        """Its run directory."""
        if self._run is None:
            (self._run,) = set(self._runs()) - self.before
        return self._run

    @property
    def state(self) -> dict[str, Any]:
        """Its state.json."""
        return json.loads((self.run / "state.json").read_text())

    def process_of(self, name: str) -> dict[str, Any]:
        """A process of the run as it is on record."""
        return next(process for process in self.state["processes"] if process["name"] == name)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Its events of a kind."""
        lines = (self.run / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def ask(self, name: str, path: str) -> None:
        """Ask one of its servers."""
        with urllib.request.urlopen(self.process_of(name)["url"] + path, timeout=60) as response:
            response.read()

    def ended(self, within: float = 60) -> int:
        """Wait for its end, see that nothing of it is left, and return its exit code."""
        code = self.process.wait(within)
        assert self.left() == {}
        return code

    def left(self) -> dict[str, tuple[int, ...]]:
        """What still runs of it, by name."""
        found = {p["name"]: sessions.members(p["pid"]) for p in self.state["processes"] if p["pid"]}
        return {name: pids for name, pids in found.items() if pids}

    def kill(self) -> None:
        """End all of it that runs on this machine; pids of other hosts are not ours."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(30)
        with contextlib.suppress(ValueError, OSError):
            for process in self.state["processes"]:
                if process["pid"] and process["host"] == "localhost":
                    sessions.kill_session(process["pid"])

    def _runs(self) -> list[Path]:
        return list((Path(os.environ["DISAGG_HOME"]) / "runs").glob("*"))
