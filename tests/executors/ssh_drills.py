"""What drills over ssh ask of a launch and of the lab; the fixtures `topology` and `launch` are in conftest.py."""

import json
import time
import urllib.request

from waiting import wait_until

NOTICED_S = 5
ALL = {"prefill-0", "decode-0", "decode-1", "router"}
ON_GPUS = {"platform": "gb200-nvl72", "model": "Qwen/Qwen3-32B", "prefill": {"tp": 8}, "decode": {"tp": 4}}
"""Prefill on h1 and h2, decode on h3, four GPUs each."""


def gpus(folder, **counts):
    """A line of shell after which nvidia-smi lists so many GPUs on each host."""
    (smi := folder / "bin/nvidia-smi").parent.mkdir()
    lists = (f"{host}) seq -f 'GPU %g: NVIDIA GB200' {count};;" for host, count in counts.items())
    smi.write_text("\n".join(["#!/bin/sh", "case $LAB_HOST in", *lists, "esac", ""]))
    smi.chmod(0o755)
    return f'export PATH="{smi.parent}:$PATH"'


def ended(one, within=60):
    """Exit code and output of a launch that ends by itself."""
    return one.process.wait(within), one.output.read_text()


def killed(one, name, lab):
    """Kill a process on its host; return when."""
    at = time.time()
    assert lab.run(worker(one, name)["host"], f"kill -9 {worker(one, name)['pid']}").returncode == 0
    return at


def ends_with_a_death(one, name, at, lab):
    """The run ends because somebody killed a process of it: that is noticed in time, named, and nothing is left."""
    code, output = ended(one)
    assert code == 4
    assert f"{name} died: killed by SIGKILL" in output
    assert when(one, f"{name} failed") - at < NOTICED_S
    nothing_left(lab)


def nothing_left(lab):
    """No process on any host, and no file of a run."""
    wait_until(lambda: not lab.processes())
    assert not list((lab.state / "disagg/remote").glob("drill-*"))


def worker(one, name):
    return next(process for process in one.state["processes"] if process["name"] == name)


def events(one):
    return [json.loads(line) for line in (one.run_dir / "events.jsonl").read_text().splitlines()]


def when(one, *words):
    """When an event first had all these words; None while there is none."""
    found = (event["at"] for event in events(one) if all(word in event["text"] for word in words))
    return next(found, None)


def say(one, name, word):
    """Let a server print a word, and wait until it is in its log here."""
    urllib.request.urlopen(f"{worker(one, name)['url']}/say/{word}", timeout=10).read()
    wait_until(lambda: word in (one.run_dir / f"logs/{name}.log").read_text())
