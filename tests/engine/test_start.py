"""Flags that hold secrets reach the server, and nobody sees them: with a real server of two lines."""

import json
import os
import subprocess
import sys

import pytest

from disagg_cli.engine.start import SECRET_FLAGS, shown, start

SHOWS = """
import json, logging, os, sys
from pathlib import Path
logging.basicConfig(format="%(message)s", stream=sys.stderr)
logging.warning("server_args=%s", sys.argv)
logging.warning("%d %d", 1)  # what is wrong in the server stays wrong there
print(json.dumps([__name__, sys.argv[1:], Path("/proc/self/cmdline").read_text(), dict(os.environ)]))
"""
SPAWNS = """
import multiprocessing, sys
def child(): print(sys.argv[1:], __name__)
if __name__ == "__main__":
    one = multiprocessing.get_context("spawn").Process(target=child)
    one.start()
    one.join()
"""


@pytest.fixture
def run(tmp_path):
    """Start a module of this text with these flags."""

    def run(text, **args):
        (tmp_path / "a_server.py").write_text(text)
        argv, env = start(sys.executable, "a_server", args, {}, first=("--first", "1"))
        done = subprocess.run(argv, env={**os.environ, **env}, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done

    return run


def test_without_secrets_it_is_started_as_anybody_would():
    assert start("python3", "m", {"port": 1, "a": True, "b": False, "c": (1, 2)}, {"X": "1"}) == (
        ("python3", "-m", "m", "--port", "1", "--a", "--c", "1", "2"),
        {"X": "1"},
    )


def test_the_server_gets_its_secret_flags_and_nobody_sees_them(run):
    done = run(SHOWS, **{"port": 1, "api-key": "-planted", "control-plane-api-keys": ("k1:planted", "k2:planted")})
    name, argv, seen, environment = json.loads(done.stdout)
    assert name == "__main__"
    assert argv == [
        *("--first", "1", "--port", "1", "--api-key=-planted"),
        *("--control-plane-api-keys", "k1:planted", "k2:planted"),
    ]
    assert "planted" not in seen
    assert "planted" not in str(environment)  # of what it starts itself
    assert "planted" not in done.stderr
    assert "--api-key=***" in done.stderr


def test_what_it_spawns_is_the_same_module_with_the_same_flags(run):
    """As SGLang's schedulers are."""
    assert run(SPAWNS, **{"api-key": "k"}).stdout == "['--first', '1', '--api-key=k'] __mp_main__\n"


def test_what_is_shown_of_it():
    argv, env = start("python3", "m", {"api-key": "planted", "port": 1}, {"X": "1"})
    assert "planted" in env[SECRET_FLAGS]
    assert shown(argv, env) == (("python3", "-m", "m", "--port", "1", "--api-key", "***"), {"X": "1"})
