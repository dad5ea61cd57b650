"""Run `disagg connector verify` on every known release's own code, and keep what came of it as data.

    python tests/connector/verify_releases.py [--wheels FOLDER] [--jobs N] [RELEASE ...]

Each release's wheel is fetched into a folder that is deleted afterwards, and put before the installed SGLang on the
path of one process; stock, and from 0.5.11 on with the overlay. What is written (verified.yaml) is what was observed,
never what was expected. Exits 1 where the two differ. About a minute of one core for each release; not a test.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import yaml

from disagg_cli.connector.classes import CLASSES
from disagg_cli.connector.releases import find_release, known_releases
from disagg_cli.connector.repairs import loads
from disagg_cli.connector.verified import PATH

COMPAT = Path(__file__).with_name("compat")
HEADER = """\
# What every release did when its own code was executed: written by `make verify-releases`, not by hand.
#
# stock, overlay   the connector as released, and with disagg's overlay loaded; null where it was not executed
# plans, agree     plans that were run (disagg connector verify), and how many did what disagg says of the release
# right            plans in which every byte arrived, and every sender was waited for
# classes, pools   what the example of each class (classes.py) did, and each pair of decode pools behind one prefill
# more_calls       plans, right without the overlay too, in which it called NIXL more often than stock does
#
# source: the wheels on PyPI, by their SHA-256
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--wheels", type=Path, help="a folder that holds the wheels already")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("releases", nargs="*")
    asked = parser.parse_args()
    names = asked.releases or [release.name for release in known_releases()]
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(asked.jobs) as pool:
        fresh = list(pool.map(lambda name: release(name, Path(scratch), asked.wheels), names))
    kept = {entry["release"]: entry for entry in (yaml.safe_load(PATH.read_text()) if PATH.exists() else [])}
    kept |= {entry["release"]: entry for entry in fresh}
    entries = [kept[known.name] for known in known_releases() if known.name in kept]
    PATH.write_text(HEADER + yaml.safe_dump(entries, sort_keys=False, default_flow_style=None, width=118))
    return 0 if all(agrees(entry) for entry in fresh) else 1


def release(name: str, scratch: Path, wheels: Path | None) -> dict:
    """Fetch, unpack and run one release."""
    folder = scratch / name
    folder.mkdir()
    wheel = fetch(name, wheels or folder, known=wheels is not None)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    stock = run(name, folder)
    overlaid = run(name, folder, "--overlay") if loads(find_release(name)) else None
    entry = {
        "release": name,
        "wheel": wheel.name,
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "executed": datetime.now(UTC).date().isoformat(),
        "stock": stock and summary(stock),
        "overlay": overlaid and stock and {**summary(overlaid), "more_calls": more_calls(stock, overlaid)},
    }
    for how in ("stock", "overlay"):
        done = entry[how]
        print(name, how, f"{done['agree']} of {done['plans']} agree" if done else "not executed", flush=True)
    return entry


def fetch(name: str, folder: Path, *, known: bool) -> Path:
    if not known:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--only-binary", ":all:", "--dest", str(folder), f"sglang=={name}"], check=True)
    return next(folder.glob(f"sglang-{name}-*.whl"))


def run(name: str, folder: Path, *options: str) -> dict | None:
    """One `disagg connector verify` in a process of its own; None, with the reason printed, where it cannot be run."""
    command = [sys.executable, "-m", "disagg_cli", "connector", "verify", "--json", *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(COMPAT), str(folder)])}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode not in (0, 3) or not done.stdout:
        print(f"{name} {' '.join(options)}: exit {done.returncode}\n{done.stderr[-3000:]}", flush=True)
        return None
    document = json.loads(done.stdout)
    assert document["sglang"] == document["judged_as"] == name, document["sglang"]
    for cell in document["cells"]:
        if not cell["agrees"]:
            print(name, *options, cell, flush=True)
    return document


def summary(document: dict) -> dict:
    cells = document["cells"]
    seen = {cell["class"]: cell["observed"] for cell in cells if cell["class"]}
    return {
        "plans": document["total"],
        "agree": document["agree"],
        "right": document["right"],
        "classes": {one.letter: seen[one.letter] for one in CLASSES if one.letter in seen},
        "pools": {plan(cell): cell["observed"] for cell in cells if len(cell["decode_tp"]) > 1},
    }


def plan(cell: dict) -> str:
    """A plan in a word, such as TP2 -> TP1 + TP4, T 4."""
    return f"TP{cell['prefill_tp']} -> {' + '.join(f'TP{tp}' for tp in cell['decode_tp'])}, T {cell['kv_heads']}"


def more_calls(stock: dict, overlaid: dict) -> int:
    def right(document: dict) -> dict:
        cells = [cell for cell in document["cells"] if cell["observed"] == "ok"]
        return {(plan(cell), cell["layout"], cell["prefill_pp"], *cell["decode_pp"]): cell for cell in cells}

    before, after = right(stock), right(overlaid)
    calls = {
        key: [sum(side[key]["agent_calls"].values()) for side in (before, after)]
        for key in before.keys() & after.keys()
    }
    return sum(overlay > without for without, overlay in calls.values())


def agrees(entry: dict) -> bool:
    done = [entry["stock"], entry["overlay"] or {"plans": 0, "agree": 0, "more_calls": 0}]
    return all(one and one["plans"] == one["agree"] and not one.get("more_calls") for one in done)


if __name__ == "__main__":
    sys.exit(main())
