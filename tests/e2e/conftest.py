"""Real SGLang, NIXL and router on CPUs. One parent that has imported SGLang is shared; deployments fork from it.

Every test that launches checks that nothing of its run is left: `Launched.finish` and the `deployment` fixture do.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from disagg_cli.connector.host_memory import mode
from disagg_cli.executors import sessions
from disagg_cli.executors.warm import SHARED_PARENT

DISAGG = [sys.executable, "-m", "disagg_cli"]
ROOT = Path(__file__).parents[2]
_ports = itertools.count(22000, 200)  # below the ephemeral range, and apart from the demo's


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def warm_parent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("warm")
    with (folder / "parent.log").open("wb") as log:
        parent = subprocess.Popen(
            [sys.executable, "-m", "disagg_cli.connector.host_memory.warm_parent", str(folder / "s")],
            env={**os.environ, **mode.IMPORT_TIME_ENV},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    while (line := parent.stdout.readline()) != b"ready\n":
        assert line, f"the warm parent died:\n{(folder / 'parent.log').read_text()[-3000:]}"
    yield str(folder / "s")
    parent.stdin.close()
    parent.wait(10)


@pytest.fixture(scope="session")
def environment(warm_parent: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of every `disagg` that the tests start: a home of their own, and the shared parent."""
    home = tmp_path_factory.mktemp("home")
    return {**os.environ, "DISAGG_HOME": str(home), SHARED_PARENT: warm_parent, "PYTHONUNBUFFERED": "1"}


def write_topology(folder: Path, **changes: Any) -> Path:
    """The demo topology on ports of its own, with some of its keys changed."""
    port = next(_ports)
    topology = yaml.safe_load((ROOT / "configs/1p2d-cpu.yaml").read_text())
    topology |= {"ports": port, "router": {"port": port + 190}, "eval": {}} | changes
    file = folder / f"{topology['name']}-{port}.yaml"
    file.write_text(yaml.safe_dump(topology))
    return file


def run(environment: dict[str, str], *args: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DISAGG, *args], env=environment, capture_output=True, text=True, timeout=timeout)


class Launched:
    """A `disagg launch` in the background, whose output can be waited for."""

    def __init__(self, environment: dict[str, str], folder: Path, config: Path, *flags: str) -> None:
        self.home = Path(environment["DISAGG_HOME"])
        self.before = set(self._runs())
        self.output = folder / f"{config.stem}.out"
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [*DISAGG, "launch", str(config), *flags],
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
    """No process of the run, nor child of one, and its ports can be bound again."""
    left = {p["name"]: sessions.members(p["pid"]) for p in state["processes"] if p["pid"]}
    assert not any(left.values()), left
    ports = [int(p["url"].rpartition(":")[2]) for p in state["processes"]]
    assert sessions.taken("127.0.0.1", ports) == ()


def post(url: str, body: dict[str, Any], timeout: float = 60) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
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


@pytest.fixture
def interrupt_all() -> Iterator[list[Launched]]:
    """Launches that a failing test leaves are ended all the same."""
    launched: list[Launched] = []
    yield launched
    for one in launched:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGTERM)
            one.process.wait(30)
