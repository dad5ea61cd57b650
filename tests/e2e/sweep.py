"""A live sweep: real SGLang servers for every class of plans that fits this machine, stock and with the overlay.

    python tests/e2e/sweep.py [P:D:T[:HEADS] ...]

Each cell launches one prefill and one decode, whatever the plan says of them, and holds what transfer and parity show
against the plan's. Prints a table and exits 1 where a cell disagrees. About 25 s a cell on two free cores; not a test.
"""

import asyncio
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from disagg_cli.errors import LaunchFailed, ProbeFailed
from disagg_cli.runtime import rundir
from disagg_cli.runtime.drill import _shared_parent, _Silent
from disagg_cli.runtime.launch import Launch, Options, check_machine, record
from disagg_cli.runtime.prepare import prepare_deployment
from disagg_cli.topology.loading import load_topology
from disagg_cli.topology.resolve import resolve

STOCK = (
    *("1:1:4", "2:2:2", "4:4:2", "2:1:4", "4:1:8", "4:2:8", "4:1:2", "4:2:1"),  # A, B, C, Dd
    *("1:4:8", "2:4:4", "2:4:2", "1:2:1", "1:4:2", "3:1:3:6", "1:3:3:6", "2:4:1"),  # E, F, G, three ranks, H
)
OVERLAY = ("2:4:1", "2:4:2", "1:2:1", "1:4:2", "1:4:8", "4:1:2")
PORTS, ROUTER, PROBE_S = 24000, 24900, 90


@dataclass(frozen=True)
class Cell:
    sizes: str
    overlay: str
    predicted: bool
    seen: str
    seconds: float

    @property
    def agrees(self) -> bool:
        return self.predicted == (self.seen == "ok")


async def cell(folder: Path, sizes: str, overlay: str) -> Cell:
    prefill, decode, kv_heads, *rest = (int(part) for part in sizes.split(":"))
    config = folder / f"{sizes.replace(':', '-')}-{overlay}.yaml"
    config.write_text(
        f"name: sweep\nplatform: cpu\nports: {PORTS}\nrouter: {{port: {ROUTER}}}\n"
        f"model: {{synthetic: {{attention_heads: {(rest or [8])[0]}, kv_heads: {kv_heads}}}}}\n"
        f"prefill: {{tp: {prefill}}}\ndecode: {{tp: {decode}}}\n"
        f"connector: {{overlay: '{overlay}'}}\nprobe: {{timeout_s: {PROBE_S}}}\n"
    )
    begun = time.monotonic()
    prepared = prepare_deployment(config, resolve(load_topology(config)))
    await check_machine(prepared)
    recorder = record(replace(prepared), rundir.create("sweep"))
    seen = "ok"
    try:
        await Launch(prepared, Options(warm=True, exit_after_eval=True), recorder, _Silent()).run()
    except (ProbeFailed, LaunchFailed) as error:
        seen = error.what.splitlines()[0][:90]
    return Cell(sizes, overlay, prepared.plans[0].ok, seen, time.monotonic() - begun)


async def sweep(folder: Path, sizes: list[str]) -> list[Cell]:
    cells = [(one, "off") for one in sizes or STOCK] + [(one, "require") for one in sizes or OVERLAY]
    done = []
    async with _shared_parent():
        for one, overlay in cells:
            done.append(await cell(folder, one, overlay))
            found = done[-1]
            verdict = "agrees" if found.agrees else "DISAGREES"
            plan = "right" if found.predicted else "wrong"
            print(
                f"{one:<8} overlay {overlay:<8} plan {plan:<6} seen {found.seen}  {verdict} ({found.seconds:.0f} s)",
                flush=True,
            )
    return done


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        results = asyncio.run(sweep(Path(scratch), sys.argv[1:]))
    print(f"{sum(one.agrees for one in results)} of {len(results)} cells agree with the plan")
    sys.exit(not all(one.agrees for one in results))
