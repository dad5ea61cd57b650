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
seen = [__name__, sys.argv[1:], Path("/proc/self/cmdline").read_text(), dict(os.environ)]
os.write(1, json.dumps(seen).encode())  # past what masks
"""
REFUSES = """
import argparse, sys
print(sys.argv, file=sys.stderr)
argparse.ArgumentParser().parse_args(sys.argv[3:])
"""
FAILS = """
import sys
sys.stdout.writelines(sys.argv)
raise ValueError(f"Invalid API key format: {sys.argv[-1]!r}")
"""
WRITES = """
import os, sys
for stream in (sys.stdout, sys.stderr):
    os.write(stream.fileno(), b"1")
    stream.buffer.write(b"2")
    stream.reconfigure(encoding="latin-1", line_buffering=True)
    print(f"3\\xe9 {stream.encoding} {stream.isatty()} {stream.write('abc')}", file=stream)
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

    def run(text, ends=0, **args):
        (tmp_path / "a_server.py").write_text(text)
        argv, env = start(sys.executable, "a_server", args, {}, first=("--first", "1"))
        done = subprocess.run(
            argv,
            env={**os.environ, **env},
            cwd=tmp_path,
            capture_output=True,
            timeout=60,
            encoding="utf-8",
            errors="surrogateescape",
        )
        assert done.returncode == ends, done.stderr
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


def test_a_server_that_does_not_know_a_secret_flag(run):
    """As argparse has it."""
    done = run(REFUSES, ends=2, **{"nosuch-token": "planted"})
    assert "unrecognized arguments: --nosuch-token=***" in done.stderr
    assert "planted" not in done.stderr


def test_a_server_that_fails_because_of_a_secret(run):
    done = run(FAILS, ends=1, **{"control-plane-api-keys": ("id:planted", "id:planted-too")})
    assert done.stderr.endswith("ValueError: Invalid API key format: '***'\n")
    assert "planted" not in done.stdout + done.stderr


def test_output_is_a_file_as_ever(run):
    done = run(WRITES, **{"api-key": "planted"})
    assert done.stdout == done.stderr == "12abc3\udce9 latin-1 False 3\n"


def test_a_value_too_short_to_be_told_from_other_words_stays(run):
    assert run("import sys; print(sys.argv[3:])", **{"api-key": "key"}).stdout == "['--api-key=key']\n"


def test_what_it_spawns_is_the_same_module_with_the_same_flags(run):
    """As SGLang's schedulers are."""
    assert run(SPAWNS, **{"api-key": "k"}).stdout == "['--first', '1', '--api-key=k'] __mp_main__\n"


def test_what_is_shown_of_it():
    argv, env = start("python3", "m", {"api-key": "planted", "port": 1}, {"X": "1"})
    assert "planted" in env[SECRET_FLAGS]
    assert shown(argv, env) == (("python3", "-m", "m", "--port", "1", "--api-key", "***"), {"X": "1"})
