"""`disagg warm up`, `status`, `down`, with a parent that imports next to nothing."""

import json
import os
from pathlib import Path

import pytest
from command_line import disagg

from disagg_cli.executors import kept_parent, sessions

TESTS = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def tiny(home, monkeypatch):
    """What is brought up forks tiny programs; it is gone after the test."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setattr(kept_parent, "MODULE", "tiny_parent")
    yield
    disagg("warm", "down", "--force")


def shown(*args):
    done = disagg("warm", *args, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_without_one():
    assert "no warm parent is up" in disagg("warm", "status").stdout
    assert shown("status")["up"] is False
    assert "no warm parent was up" in disagg("warm", "down").stdout


def test_up_status_down(home):
    up = shown("up", "--ttl", "30m")
    assert (up["schema"], up["new"], up["ttl_s"]) == ("disagg.warm/1", True, 1800)
    status = shown("status")
    assert status["pid"] == up["pid"]
    assert 0 <= status["idle_s"] <= status["age_s"] < 30
    assert status["ends_in_s"] <= 1800
    assert status["memory"] > 2**20
    assert status["servers"] == []
    assert status["log"].startswith(str(home))
    assert f"warm parent (pid {up['pid']})" in disagg("warm", "status").stdout
    assert shown("down")["ended"] == up["pid"]
    assert not sessions.members(up["pid"])


def test_up_again(home):
    assert "importing SGLang once" in disagg("warm", "up").stdout
    assert "was up" in disagg("warm", "up").stdout


@pytest.mark.parametrize("ttl", ["soon", "0", "-1", "1w", "", "31d", "9" * 400])
def test_a_time_that_is_none(ttl):
    done = disagg("warm", "up", f"--ttl={ttl}")
    assert done.returncode == 2
    assert "not a time" in done.stderr


@pytest.mark.parametrize(("ttl", "seconds"), [("90", 90), ("1.5h", 5400), ("2 m", 120), ("1d", 86400)])
def test_times(ttl, seconds):
    assert shown("up", "--ttl", ttl)["ttl_s"] == seconds


def test_one_that_is_out_of_date_says_so(home, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}{os.pathsep}{tmp_path}")
    (tmp_path / "tiny_import.py").write_text("version = 1")
    shown("up")
    (tmp_path / "tiny_import.py").write_text("version = 10")
    assert shown("status")["changed"] == ["tiny_import"]
    assert "installed anew since it was imported: tiny_import" in disagg("warm", "status").stdout
    assert "ends: installed anew" in disagg("warm", "up").stdout
    assert shown("status")["changed"] == []
