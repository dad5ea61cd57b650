"""How fast `disagg eval gsm8k` is, beside a minimal client: 1,319 questions, 512 in flight, 200 ms, 100 tokens.

    python tests/evals/bench_eval.py [rounds]

Builds the C mock server of ../shared/bench, runs ours between two runs of the reference, prints the least and median
of each figure, and exits 1 where a limit of ours does not hold. What neighbours on the machine do is kept out of it:
a rate is compared with those of the references just before and just after, and the median of these ratios counts; a
wall time counts as the least of the rounds, which is the one least disturbed; CPU and memory count as medians.
"""

import itertools
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

SHARED = Path(__file__).parents[3] / "shared"
WALL_S = {"stream": 2.5, "whole": 1.5}
LEAST_RATE, MOST_CPU, MOST_MB = 0.9, 1.5, 150.0


@dataclass(frozen=True)
class Run:
    wall_s: float
    cpu_s: float
    rss_mb: float
    span_s: float
    most_in_flight: int


def measure(command: list[str], folder: Path, port: int) -> Run:
    """One process from exec to exit; the span and the requests in flight as the server saw them."""
    get(port, "reset")
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    assert status == 0, process.stderr.read().decode()
    stats = json.loads(get(port, "stats"))
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, stats["span_s"], stats["max_inflight"])


def get(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as response:
        return response.read()


def commands(port: int) -> dict[str, list[str]]:
    url = f"http://127.0.0.1:{port}"
    ours = [sys.executable, "-m", "disagg_cli", "eval", "gsm8k", "--url", url, "--data", "gsm8k_test.jsonl"]
    ours += ["--questions", "1319", "--concurrency", "512", "--out", "out"]
    reference = [sys.executable, "refclient.py", "--client", "aiohttp", "--api", "completions", "--url", url]
    reference += ["--concurrency", "512"]
    idle = [sys.executable, "-c", "import aiohttp, asyncio, json, re, typer"]
    return {
        "reference, stream": [*reference, "--stream"],
        "ours, stream": ours,
        "reference, whole": reference,
        "ours, whole": [*ours, "--no-stream"],
        "imports alone": idle,
    }


def bench(rounds: int) -> dict[str, list[Run]]:
    with tempfile.TemporaryDirectory() as name, socket.socket() as free:
        folder = Path(name)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        subprocess.run(["cc", "-O2", "-w", "-o", folder / "mockllm", SHARED / "bench/mockllm.c"], check=True)
        shutil.copy(SHARED / "bench/refclient.py", folder)
        shutil.copy(SHARED / "data/gsm8k/test.jsonl", folder / "gsm8k_test.jsonl")
        server = subprocess.Popen(
            [folder / "mockllm", "--port", str(port), "--latency-ms", "200", "--spread"], stderr=subprocess.DEVNULL
        )
        try:
            time.sleep(0.3)
            cases = commands(port)
            measure(cases["imports alone"], folder, port)  # into the page cache
            return {case: [] for case in cases} | _rounds(cases, rounds, folder, port)
        finally:
            server.kill()
            server.wait()


def _rounds(cases: dict[str, list[str]], rounds: int, folder: Path, port: int) -> dict[str, list[Run]]:
    """Each kind's reference, ours, and the reference again; a round's last reference is the next one's first."""
    runs: dict[str, list[Run]] = {case: [] for case in cases}
    for kind in WALL_S:
        runs[f"reference, {kind}"].append(measure(cases[f"reference, {kind}"], folder, port))
        for _ in range(rounds):
            for case in (f"ours, {kind}", f"reference, {kind}"):
                runs[case].append(measure(cases[case], folder, port))
            runs["imports alone"].append(measure(cases["imports alone"], folder, port))
    return runs


def rate(ours: list[Run], reference: list[Run]) -> float:
    """Requests per second, of the reference's: the median over rounds of what stood on both sides of each."""
    around = [(before.span_s + after.span_s) / 2 for before, after in itertools.pairwise(reference)]
    return statistics.median(theirs / run.span_s for theirs, run in zip(around, ours, strict=True))


def limits(runs: dict[str, list[Run]]) -> list[tuple[str, float, float, bool]]:
    """(what, figure, limit, holds)."""
    found = []
    startup = median(runs["imports alone"], "cpu_s")
    for kind, wall in WALL_S.items():
        ours, reference = runs[f"ours, {kind}"], runs[f"reference, {kind}"]
        cpu = median(ours, "cpu_s")
        most = MOST_CPU * median(reference, "cpu_s") + startup
        found += [
            (f"{kind}: wall seconds, exec to exit", w := least(ours, "wall_s"), wall, w <= wall),
            (f"{kind}: request rate, of the reference's", r := rate(ours, reference), LEAST_RATE, r >= LEAST_RATE),
            (f"{kind}: CPU seconds", cpu, most, cpu <= most),
            (f"{kind}: peak memory, MB", m := max(run.rss_mb for run in ours), MOST_MB, m <= MOST_MB),
            (f"{kind}: in flight", n := median(ours, "most_in_flight"), 512, n == 512),
        ]
    return found


def median(runs: list[Run], name: str) -> float:
    return statistics.median(getattr(run, name) for run in runs)


def least(runs: list[Run], name: str) -> float:
    return min(getattr(run, name) for run in runs)


def main() -> int:
    runs = bench(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
    for case, measured in runs.items():
        names = ("wall_s", "cpu_s", "rss_mb", "span_s")
        figures = (f"{name} {least(measured, name):6.2f} {median(measured, name):6.2f}" for name in names)
        print(f"{case:20}" + "   ".join(figures))
    checked = limits(runs)
    for what, figure, limit, holds in checked:
        print(f"{'ok  ' if holds else 'FAIL'} {what}: {figure:.2f} (limit {limit:.2f})")
    return 0 if all(holds for *_, holds in checked) else 1


if __name__ == "__main__":
    sys.exit(main())
