"""How fast `disagg eval gsm8k` is, beside a minimal client: 1,319 questions, 512 in flight, 200 ms, 100 tokens.

    python tests/evals/bench_eval.py [rounds]

Builds the C mock server of ../shared/bench, runs ours and the reference in turns, prints medians, and exits 1 where a
limit of ours does not hold. Wall figures mean something on free cores only; CPU figures nearly always.
"""

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
        "ours, stream": ours,
        "reference, stream": [*reference, "--stream"],
        "ours, whole": [*ours, "--no-stream"],
        "reference, whole": reference,
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
    runs: dict[str, list[Run]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case, command in cases.items():
            runs[case].append(measure(command, folder, port))
    return runs


def limits(runs: dict[str, list[Run]]) -> list[tuple[str, float, float, bool]]:
    """(what, figure, limit, holds)."""
    found = []
    startup = median(runs["imports alone"], "cpu_s")
    for kind, wall in WALL_S.items():
        ours, reference = runs[f"ours, {kind}"], runs[f"reference, {kind}"]
        rate = median(reference, "span_s") / median(ours, "span_s")
        cpu = median(ours, "cpu_s")
        most = MOST_CPU * median(reference, "cpu_s") + startup
        found += [
            (f"{kind}: wall seconds, exec to exit", w := median(ours, "wall_s"), wall, w <= wall),
            (f"{kind}: request rate, of the reference's", rate, LEAST_RATE, rate >= LEAST_RATE),
            (f"{kind}: CPU seconds", cpu, most, cpu <= most),
            (f"{kind}: peak memory, MB", m := median(ours, "rss_mb"), MOST_MB, m <= MOST_MB),
            (f"{kind}: in flight", n := min(run.most_in_flight for run in ours), 512, n == 512),
        ]
    return found


def median(runs: list[Run], name: str) -> float:
    return statistics.median(getattr(run, name) for run in runs)


def main() -> int:
    runs = bench(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    for case, measured in runs.items():
        figures = {name: median(measured, name) for name in ("wall_s", "cpu_s", "rss_mb", "span_s")}
        print(f"{case:20}" + "  ".join(f"{name} {value:8.2f}" for name, value in figures.items()))
    checked = limits(runs)
    for what, figure, limit, holds in checked:
        print(f"{'ok  ' if holds else 'FAIL'} {what}: {figure:.2f} (limit {limit:.2f})")
    return 0 if all(holds for *_, holds in checked) else 1


if __name__ == "__main__":
    sys.exit(main())
