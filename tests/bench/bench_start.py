"""How long the demo takes from `disagg launch` to proven, phase by phase. Run it: python tests/bench/bench_start.py

Three ways to start: warm from a parent that is up (`disagg warm up`), warm with a parent of its own, and cold. Each
figure is a median of rounds with the least and the most beside it, and the load that others put on the machine
meanwhile. It exits 1 where a launch fails, or where a parent that is up saves nothing.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from disagg_cli.executors import sessions

ROOT = Path(__file__).parents[2]
DISAGG = [sys.executable, "-m", "disagg_cli"]
DEMO = ["launch", str(ROOT / "configs/1p2d-cpu.yaml"), "--unset", "eval"]
DEMO += ["--set", "ports=29400", "--set", "router.port=29590"]
PHASES = ("parent ready", "decode-0 healthy", "decode-1 healthy", "prefill-0 healthy", "first KV", "proven")


def phases(run: Path) -> dict[str, float]:
    """Seconds from the first event of a run to each of its phases."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    begun, found = events[0]["at"], {}
    for event in events:
        text, after = event["text"], event["at"] - begun
        if text == "starting: workers to be healthy":
            found["parent ready"] = after
        elif event.get("phase") == "healthy":
            found[f"{event['process']} healthy"] = after
        elif event["kind"] == "pair":
            found.setdefault("first KV", after)
        elif text.startswith("router proven"):
            found["proven"] = after
    return found


def launch(home: Path, *flags: str) -> dict[str, float]:
    """Launch the demo, prove it, stop it. Its phases, and the CPU time of all its processes until it was proven."""
    before = set((home / "runs").glob("*"))
    env = {**os.environ, "DISAGG_HOME": str(home)}
    with tempfile.TemporaryFile("w+") as output:
        command = [*DISAGG, *DEMO, *flags]
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        state: dict[str, Any] = {}
        while state.get("phase") != "serving" and process.poll() is None:
            time.sleep(0.05)
            for new in set((home / "runs").glob("*")) - before:
                with contextlib.suppress(FileNotFoundError):
                    state, run = json.loads((new / "state.json").read_text()), new
        spent = cpu_seconds(process.pid, state)
        process.terminate()
        if process.wait():
            output.seek(0)
            sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{output.read()[-3000:]}")
    return phases(run) | {"CPU": spent}


def cpu_seconds(launcher: int, state: dict[str, Any]) -> float:
    """CPU time of a launch's own children, and of the sessions of its servers, wherever they were forked."""
    mine = psutil.Process(launcher)
    found = {process.pid: process for process in [mine, *mine.children(recursive=True)]}
    for server in state.get("processes", []):
        found |= {pid: psutil.Process(pid) for pid in sessions.members(server["pid"])}
    return sum(sum(process.cpu_times()[:2]) for process in found.values())


def warm(home: Path, *args: str) -> dict[str, object]:
    """`disagg warm ...`, as a document."""
    env = {**os.environ, "DISAGG_HOME": str(home)}
    done = subprocess.run([*DISAGG, "warm", *args, "--json"], env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def show(name: str, rounds: list[dict[str, float]], load: float) -> None:
    """One line for each phase."""
    print(f"\n{name}, n={len(rounds)}, load {load:.1f} before")
    for phase in (*PHASES, "CPU"):
        values = [one[phase] for one in rounds if phase in one]
        if values:
            print(f"  {phase:<20}{statistics.median(values):>8.2f} s   ({min(values):.2f} - {max(values):.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold-rounds", type=int, default=1)
    asked = parser.parse_args()
    print(f"{os.cpu_count()} cores; CPU: of all processes, until proven")
    with tempfile.TemporaryDirectory(prefix="disagg-bench-") as folder:
        home = Path(folder)
        own_load, own = os.getloadavg()[0], [launch(home) for _ in range(asked.rounds)]
        show("warm, with a parent of its own", own, own_load)
        up = warm(home, "up")
        print(f"\ndisagg warm up: SGLang imported in {up['import_s']} s, {up['memory'] / 2**20:.0f} MiB")
        try:
            kept_load, kept = os.getloadavg()[0], [launch(home) for _ in range(asked.rounds)]
        finally:
            warm(home, "down", "--force")
        show("warm, from a parent that is up", kept, kept_load)
        cold_load, cold = os.getloadavg()[0], [launch(home, "--cold") for _ in range(asked.cold_rounds)]
        if cold:
            show("cold", cold, cold_load)
    saved = statistics.median(one["parent ready"] for one in own) - statistics.median(
        one["parent ready"] for one in kept
    )
    print(f"\na parent that is up saves {saved:.1f} s before the first worker starts")
    sys.exit(saved < 1)


if __name__ == "__main__":
    main()
