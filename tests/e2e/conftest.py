"""Real SGLang, NIXL and router on CPUs. One parent that has imported SGLang is shared; deployments fork from it.

Every test that launches checks that nothing of its run is left: `Launched.finish` and the `deployment` fixture do.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched import Launched

from disagg_cli.executors.warm import SHARED_PARENT, parent_environment


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(600))  # busy cores make starts of minutes


@pytest.fixture(scope="session")
def warm_parent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("warm")
    with (folder / "parent.log").open("wb") as log:
        parent = subprocess.Popen(
            [sys.executable, "-m", "disagg_cli.connector.host_memory.warm_parent", str(folder / "s")],
            env=parent_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    try:
        ready, _, _ = select.select([parent.stdout], [], [], 240)
        said = parent.stdout.readline() if ready else b"nothing for 240 s"
        assert said == b"ready\n", f"the warm parent said {said}:\n{(folder / 'parent.log').read_text()[-3000:]}"
        yield str(folder / "s")
        parent.stdin.close()
        parent.wait(10)
    finally:
        parent.kill()


@pytest.fixture(scope="session")
def environment(warm_parent: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of every `disagg` that the tests start: a home of their own, and the shared parent."""
    home = tmp_path_factory.mktemp("home")
    return {**os.environ, "DISAGG_HOME": str(home), SHARED_PARENT: warm_parent, "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def interrupt_all() -> Iterator[list[Launched]]:
    """Launches that a failing test leaves are ended all the same."""
    launched: list[Launched] = []
    yield launched
    for one in launched:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGTERM)
            one.process.wait(30)
