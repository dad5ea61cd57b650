"""How long a plan takes, and how long `disagg plan` takes from exec to exit. Run it: python tests/bench/bench_plan.py

Nothing here is a timed test: it prints figures beside the bounds that the project sets itself, and exits 1 where one is
missed. Command lines alternate with a bare Typer program, so that a busy machine slows all of them.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from disagg_cli.kv.coverage import cover
from disagg_cli.kv.layout import KVLayout
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.kv.plan import plan_slices

HELLO = """
import typer

app = typer.Typer()


@app.command()
def hello(name: str = "x") -> None:
    print(f"hello {name}")


app()
"""
ROUNDS = 9
failures = []


def report(what, value, bound, unit):
    """Print one figure with its bound, and remember a miss."""
    verdict = "ok" if value <= bound else "MISSED"
    print(f"{what:<58} {value:>9.3f} {unit:<3} (bound {bound:g} {unit}) {verdict}")
    if value > bound:
        failures.append(what)


def plan_seconds(ranks):
    """CPU seconds to plan and cover so many prefill and decode ranks."""
    layout = KVLayout(name="m", total_kv_heads=8, num_layers=64, head_dim=128)
    start = time.process_time()
    made = plan_slices(layout, Parallelism(tp=ranks), Parallelism(tp=ranks))
    assert cover(made).ok
    return time.process_time() - start


def cpu_seconds(argv):
    """CPU seconds of one command, children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, check=False, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def medians(commands):
    """The median CPU time of each command, over rounds in which all of them run in turn."""
    times = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, argv in commands.items():
            times[name].append(cpu_seconds(argv))
    return {name: statistics.median(taken) for name, taken in times.items()}


def main():
    report("4,096 x 4,096 ranks planned and covered, CPU", plan_seconds(4096), 1.0, "s")
    report("peak memory of this process", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 200, "MB")
    small, large = (min(plan_seconds(ranks) for _ in range(3)) for ranks in (1024, 8192))
    report("8 times the ranks cost, against 8 times as much", large / small / 8, 1.5, "x")
    disagg = str(Path(sys.executable).with_name("disagg"))
    with tempfile.TemporaryDirectory() as folder:
        hello = Path(folder) / "hello.py"
        hello.write_text(HELLO)
        commands = {
            "hello": [sys.executable, str(hello)],
            "hello --help": [sys.executable, str(hello), "--help"],
            "plan": [disagg, "plan", "--prefill-tp", "4", "--decode-tp", "1"],
            "plan --json": [disagg, "plan", "--prefill-tp", "4", "--decode-tp", "1", "--json"],
            "--help": [disagg, "--help"],
        }
        taken = medians(commands)
    print("CPU seconds, median of", ROUNDS, {name: round(seconds, 3) for name, seconds in taken.items()})
    report("disagg plan, against a Typer hello-world", taken["plan"] / taken["hello"], 2.0, "x")
    report("disagg plan --json, against a Typer hello-world", taken["plan --json"] / taken["hello"], 2.0, "x")
    report("disagg --help, against a Typer hello-world's --help", taken["--help"] / taken["hello --help"], 1.5, "x")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
