"""Supervising 64 workers costs next to nothing. tests/bench/bench_launch.py prints the figures."""

import time

import psutil
import pytest
from cheap_launch import CheapLaunch


@pytest.fixture
def many(home, tmp_path):
    launch = CheapLaunch(tmp_path, prefill={"workers": 4, "tp": 1}, decode={"workers": 60, "tp": 1}, blocks=30)
    yield launch
    launch.kill()


def test_64_workers(many):
    """CPU time of the supervising process, while all are watched; busy cores do not change that."""
    many.wait_for(" s  serving", 200)
    supervisor = psutil.Process(many.process.pid)
    before, begun = supervisor.cpu_times(), time.monotonic()
    time.sleep(5)
    after, took = supervisor.cpu_times(), time.monotonic() - begun
    assert (after.user + after.system - before.user - before.system) / took < 0.05
    assert supervisor.memory_info().rss < 150e6
    assert len(many.left()) == 65
