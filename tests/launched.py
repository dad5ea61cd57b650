"""Launches in the background, requests, and what must hold once a run has ended."""

import itertools
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from disagg_cli.api_key import api_key_header
from disagg_cli.executors import sessions

DISAGG = [sys.executable, "-m", "disagg_cli"]
ROOT = Path(__file__).parents[1]
_ports = itertools.count(22000, 200)  # below the ephemeral range, and apart from the demo's


def write_topology(folder: Path, **changes: Any) -> Path:
    """The demo topology on ports of its own, with some of its keys changed; of the router's, only those given."""
    port = next(_ports)
    topology = yaml.safe_load((ROOT / "configs/1p2d-cpu.yaml").read_text())
    router = {"port": port + 190} | changes.pop("router", {})
    topology |= {"ports": port, "router": router, "eval": {}} | changes
    file = folder / f"{topology['name']}-{port}.yaml"
    file.write_text(yaml.safe_dump(topology))
    return file


def run(environment: dict[str, str], *args: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DISAGG, *args], env=environment, capture_output=True, text=True, timeout=timeout)


class Launched:
    """A `disagg launch` in the background, whose output can be waited for."""

    def __init__(
        self, environment: dict[str, str], folder: Path, config: Path, *flags: str, python: str = sys.executable
    ) -> None:
        self.home = Path(environment["DISAGG_HOME"])
        self.before = set(self._runs())
        self.output = folder / f"{config.stem}.out"
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [python, *DISAGG[1:], "launch", str(config), *flags],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for(self, text: str, timeout: float = 120) -> None:
        deadline = time.monotonic() + timeout
        while text not in self.output.read_text():
            assert self.process.poll() is None, f"ended before {text!r}:\n{self.output.read_text()}"
            assert time.monotonic() < deadline, f"no {text!r} after {timeout} s:\n{self.output.read_text()}"
            time.sleep(0.05)

    @property
    def run_dir(self) -> Path:
        (new,) = set(self._runs()) - self.before
        return new

    @property
    def state(self) -> dict[str, Any]:
        return json.loads((self.run_dir / "state.json").read_text())

    def finish(self, within: float, *signals: int) -> tuple[int, str]:
        """Send signals, wait for the end, and see that nothing is left. Return exit code and output."""
        for signum in signals:
            self.process.send_signal(signum)
        code = self.process.wait(within)
        assert_nothing_left(self.state)
        return code, self.output.read_text()

    def _runs(self) -> list[Path]:
        return list((self.home / "runs").glob("*"))


def assert_nothing_left(state: dict[str, Any]) -> None:
    """No process of the run, nor child of one, nothing of them in /dev/shm, and its ports can be bound again."""
    left = {p["name"]: sessions.members(p["pid"]) for p in state["processes"] if p["pid"]}
    assert not any(left.values()), left
    segments = [name for process in state["processes"] for name in process["segments"]]
    assert not [name for name in segments if Path(name).exists()]
    ports = [int(p["url"].rpartition(":")[2]) for p in state["processes"]]
    assert sessions.taken("127.0.0.1", ports) == ()


def post(url: str, body: dict[str, Any], timeout: float = 60) -> dict[str, Any]:
    head = {"content-type": "application/json"} | api_key_header()
    request = urllib.request.Request(url, json.dumps(body).encode(), head)
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return json.loads(response.read())


def greedy(url: str, prompt: str, tokens: int = 24) -> str:
    """What the model says to a prompt; decoded bytes tell every token apart."""
    body = {"model": "synthetic", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return post(f"{url}/v1/completions", body)["choices"][0]["text"]


PROMPTS = ["Tom", "How many apples does Anna have in each of the boxes?", "one two three four five six " * 30]
"""Of a few tokens, of a sentence, and of several hundred."""


def answers(url: str) -> list[str]:
    return [greedy(url, prompt) for prompt in PROMPTS]
