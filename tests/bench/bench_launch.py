"""What `disagg launch` adds to its servers' own time, and what supervising 64 of them costs.

    python tests/bench/bench_launch.py          cheap servers, which say when they listen: here, over ssh, on Slurm
    python tests/bench/bench_launch.py --real   real ones here: configs/1p2d-cpu.yaml, cold and from a parent of its own

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
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from cheap_launch import CheapLaunch
from places_of_launch import places

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
    """Its events, by the clock that all processes share; what the login node has written of it, apart."""
    begun = json.loads((run / "state.json").read_text())["started_clock"]
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [event | {"clock": begun + event["t"]} for event in events if "t" in event]


def of(events, phase, kind="process"):
    """When each process, or the run, first entered a phase."""
    found = {}
    for event in events:
        if event["kind"] == kind and event["phase"] == phase:
            found.setdefault(event.get("process", "run"), event["clock"])
    return found


def overhead(called, events, servers, imported=0.0):
    """Report the time from the command to "KV proven" that is neither the slowest worker's nor the probe's.

    servers: when each worker began, and when it was healthy. imported: seconds in which a parent did for all of them
    what each would have done itself.
    """
    proven = of(events, "proven")
    own = imported + max(healthy - begun for begun, healthy in servers.values())
    all_proven = max(proven[name] for name in servers)
    probe = all_proven - of(events, "probing", "run")["run"]
    print(f"command to KV proven {all_proven - called:.2f} s; slowest worker's own {own:.2f} s; probe {probe:.2f} s")
    report("launch overhead: the rest", all_proven - called - own - probe, 3.0, "s")
    starts = [begun for begun, _ in servers.values()]
    report("workers start in parallel: last start after the first", max(starts) - min(starts), 0.5, "s")
    noticed = max(of(events, "healthy")[name] - healthy for name, (_, healthy) in servers.items())
    report("health is noticed after", noticed, 0.5, "s")


def cheap_overhead(folder, place):
    """One prefill, two decodes, the slowest of which takes three seconds."""
    print(f"\n{place.name}. Counted: {place.counted}")
    said = folder / "healthy"
    for file in (said, place.in_job):
        if file:
            file.unlink(missing_ok=True)
    env = {"CHEAP_HEALTHY": str(said), "CHEAP_START_S": "1"}
    slow = {"workers": 2, "tp": 1, "env": env | {"CHEAP_START_S": str(SLOWEST_S)}}
    workers = {"prefill": {"tp": 1, "env": env}, "decode": slow}
    called = time.monotonic()
    launch = CheapLaunch(folder, "--exit-after-eval", within=place.within, **workers, **place.changes)
    try:
        assert launch.process.wait(120) == 0, launch.said
    finally:
        launch.kill()
    names = {process["url"]: process["name"] for process in launch.state["processes"]}
    lines = map(str.split, said.read_text().splitlines())
    servers = {names[url]: (float(begun), float(healthy)) for begun, healthy, url in lines}
    if place.in_job:
        called += waited(launch, called, place.job_began())
    overhead(called, times(launch.run), servers)


def waited(launch, called, began):
    """Seconds that Slurm took to start a job, once it was asked for one."""
    on_the_wall = time.time() - time.monotonic()
    submitted = [event["at"] - on_the_wall for event in launch.events("slurm") if "submitted" in event["text"]]
    wait = began - (submitted or [called])[0]
    print(f"Slurm took {wait:.2f} s to start the job, which are not counted")
    return wait


def real_overhead(home, *flags):
    """The demo with real servers."""
    print(f"\nreal servers, {' '.join(flags) or 'forked from a parent of their own'}")
    env = {**os.environ, "DISAGG_HOME": str(home)}
    config = ROOT / "configs/1p2d-cpu.yaml"
    urls = {one.name: f"{one.url}/health" for one in resolve(load_topology(config)).workers}
    argv = [sys.executable, "-m", "disagg_cli", "launch", str(config), "--exit-after-eval", *flags]
    called = time.monotonic()
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL) as launch, ThreadPoolExecutor() as pool:
        healthy = {name: pool.submit(when, partial(answers, url), launch) for name, url in urls.items()}
        ready = pool.submit(when, lambda: any(home.glob("runs/*/logs/warm-parent.socket")), launch)
        assert launch.wait() == 0
    events = times(home / "current")
    started, noticed = of(events, "starting"), of(events, "healthy")
    servers = {name: (started[name], min(healthy[name].result(), noticed[name])) for name in urls}
    imported = 0.0 if "--cold" in flags else ready.result() - of(events, "starting", "run")["run"]
    overhead(called, events, servers, imported)


def when(true, launch):
    """When it became true, as another process sees it: at the latest at the launch's end."""
    while launch.poll() is None and not true():
        time.sleep(0.02)
    return time.monotonic()


def answers(url):
    """Whether something answers there."""
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return response.status == 200
    except OSError:
        return False


def many(folder):
    """Four prefills and sixty decodes, while they serve."""
    print()
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
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["DISAGG_HOME"] = str(folder / "home")
        if "--real" in sys.argv:
            real_overhead(folder / "cold", "--cold")
            real_overhead(folder / "warm")
        else:
            with contextlib.closing(places(folder)) as all_places:
                for place in all_places:
                    cheap_overhead(folder, place)
            many(folder)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
