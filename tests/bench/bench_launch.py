"""What `disagg launch` adds to its servers' own time, and what supervising 64 of them costs.

    python tests/bench/bench_launch.py          cheap servers, which say when they listen
    python tests/bench/bench_launch.py --real   real ones: configs/1p2d-cpu.yaml, each started cold

It prints figures beside the bounds that the project sets itself, and exits 1 where one is missed. On busy cores all of
them grow: the load is printed too.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from cheap_launch import CheapLaunch

from disagg_cli.topology.loading import load_topology
from disagg_cli.topology.resolve import resolve

ROOT = Path(__file__).parents[2]
WATCHED_S = 15.0
SLOWEST_S = 3.0
failures = []


def report(what, value, bound, unit):
    """Print one figure with its bound, and remember a miss."""
    verdict = "ok" if value <= bound else "MISSED"
    print(f"{what:<70} {value:>8.2f} {unit:<3} (bound {bound:g} {unit}) {verdict}", flush=True)
    if value > bound:
        failures.append(what)


def times(run):
    """(begun, events): when the run was begun, and its events, by the clock that all processes share."""
    begun = json.loads((run / "state.json").read_text())["started_clock"]
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [event | {"clock": begun + event["t"]} for event in events]


def of(events, phase, kind="process"):
    """When each process, or the run, first entered a phase."""
    found = {}
    for event in events:
        if event["kind"] == kind and event["phase"] == phase:
            found.setdefault(event.get("process", "run"), event["clock"])
    return found


def overhead(called, events, healthy):
    """Report the time from the command to "KV proven" that is neither the slowest worker's nor the probe's."""
    started, proven = of(events, "starting"), of(events, "proven")
    workers = [name for name in started if name != "router"]
    own = max(healthy[name] - started[name] for name in workers)
    all_proven = max(proven[name] for name in workers)
    probe = all_proven - of(events, "probing", "run")["run"]
    print(f"command to KV proven {all_proven - called:.2f} s; slowest worker's own {own:.2f} s; probe {probe:.2f} s")
    report("launch overhead: the rest", all_proven - called - own - probe, 3.0, "s")
    spread = max(started[name] for name in workers) - min(started[name] for name in workers)
    report("workers start in parallel: last start after the first", spread, 0.5, "s")
    noticed = max(of(events, "healthy")[name] - healthy[name] for name in workers)
    report("health is noticed after", noticed, 0.5, "s")


def cheap_overhead(folder):
    """One prefill, two decodes, the slowest of which takes three seconds."""
    said = folder / "healthy"
    env = {"CHEAP_HEALTHY": str(said), "CHEAP_START_S": "1"}
    slow = {"workers": 2, "tp": 1, "env": env | {"CHEAP_START_S": str(SLOWEST_S)}}
    called = time.monotonic()
    launch = CheapLaunch(folder, "--exit-after-eval", prefill={"tp": 1, "env": env}, decode=slow)
    try:
        launch.process.wait(120)
        ports = {int(p["url"].rpartition(":")[2]): p["name"] for p in launch.state["processes"]}
        healthy = {ports[int(port)]: float(at) for at, port in map(str.split, said.read_text().splitlines())}
        overhead(called, times(launch.run), healthy)
    finally:
        launch.kill()


def real_overhead(folder):
    """The demo with real servers."""
    env = {**os.environ, "DISAGG_HOME": str(folder)}
    config = ROOT / "configs/1p2d-cpu.yaml"
    argv = [sys.executable, "-m", "disagg_cli", "launch", str(config), "--cold", "--exit-after-eval"]
    called = time.monotonic()
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL) as launch:
        healthy = answered({one.name: one.url for one in resolve(load_topology(config)).workers}, launch)
        assert launch.wait() == 0
    (run,) = (folder / "runs").iterdir()
    overhead(called, times(run), healthy)


def answered(urls, launch):
    """When each server, name -> URL, first answered /health, as another client sees it."""
    found = {}
    while launch.poll() is None and len(found) < len(urls):
        for name in urls.keys() - found:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{urls[name]}/health", timeout=1):
                found[name] = time.monotonic()
        time.sleep(0.02)
    return found


def many(folder):
    """Four prefills and sixty decodes, while they serve."""
    launch = CheapLaunch(folder, prefill={"workers": 4, "tp": 1}, decode={"workers": 60, "tp": 1}, blocks=30)
    try:
        launch.wait_for(" s  serving", 300)
        supervisor = psutil.Process(launch.process.pid)
        before = supervisor.cpu_times()
        time.sleep(WATCHED_S)
        after = supervisor.cpu_times()
        used = after.user + after.system - before.user - before.system
        report("64 workers supervised: of one core", 100 * used / WATCHED_S, 5.0, "%")
        report("64 workers supervised: resident memory", supervisor.memory_info().rss / 1e6, 150.0, "MB")
    finally:
        launch.kill()


def main():
    print("load", os.getloadavg()[0], "on", os.cpu_count(), "cores")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DISAGG_HOME"] = str(Path(folder) / "home")
        if "--real" in sys.argv:
            real_overhead(Path(folder) / "home")
        else:
            cheap_overhead(Path(folder))
            many(Path(folder))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
