"""A live sweep: real SGLang servers for every class of plans that fits this machine, stock and with the overlay.

    python tests/e2e/sweep.py [CELL ...]

Each cell launches its workers, whatever the plan says of them, and holds what the proof shows (KV right, wrong, or not
moved at all) against what the plan foresees. A cell is `P:D:T`, where D may be several decode pools (`2:1+4:4`) and a
fourth number gives query heads (`1:3:3:6`), or one of the names in NAMED. Prints a table and exits 1 where a cell
disagrees. About 15 s for each launch on two free cores; not a test.
"""

import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from disagg_cli.connector.case import Outcome
from disagg_cli.connector.verdict import judge_pools
from disagg_cli.errors import DisaggError, LaunchFailed, ProbeFailed
from disagg_cli.findings.report import PlanReport
from disagg_cli.runtime import rundir
from disagg_cli.runtime.drill import _shared_parent, _shown, _Silent
from disagg_cli.runtime.launch import Launch, Options, check_machine, record
from disagg_cli.runtime.prepare import Prepared, prepare_deployment
from disagg_cli.runtime.rehearse import prepare_rehearsal
from disagg_cli.topology.loading import load_topology
from disagg_cli.topology.resolve import resolve
from disagg_cli.topology.spec import EvalSpec

SIZES = (
    *("1:1:4", "2:2:2", "4:4:2", "2:1:4", "4:1:8", "4:2:8", "4:1:2", "4:2:1"),  # classes A, B, C, Dd
    *("1:4:8", "2:4:4", "2:4:2", "1:2:1", "1:4:2", "3:1:3:6", "1:3:3:6", "2:4:1"),  # E, F, G, three ranks, H
    *("2:1+4:4", "4:1+2:8", "1:1+2:4"),  # one prefill, decode pools of different TP
)
GPT_OSS, DEEPSEEK, TINY = "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-R1", {"synthetic": {}}
NAMED: dict[str, dict[str, Any]] = {
    "stages": {"model": TINY, "prefill": {"tp": 1, "pp": 2}, "decode": {"tp": 1}},
    "even stages": {"model": {"synthetic": {"layers": 4}}, "prefill": {"tp": 2, "pp": 2}, "decode": {"tp": 1}},
    "uneven stages": {"model": {"synthetic": {"layers": 3}}, "prefill": {"tp": 2, "pp": 2}, "decode": {"tp": 1}},
    "latent 2:1": {"model": DEEPSEEK, "prefill": {"tp": 2}, "decode": {"tp": 1}},
    "latent 1:2": {"model": DEEPSEEK, "prefill": {"tp": 1}, "decode": {"tp": 2}},
    "latent groups": {
        "model": DEEPSEEK,
        "prefill": {"tp": 2, "dp": 2, "dp_attention": True},
        "decode": {"tp": 2, "dp": 2, "dp_attention": True},
    },
    "groups 4:2": {"model": TINY, "prefill": {"tp": 4, "dp": 2, "dp_attention": True}, "decode": {"tp": 2}},
    "window 2:1": {"model": GPT_OSS, "prefill": {"tp": 2}, "decode": {"tp": 1}},
    "window 2:2": {"model": GPT_OSS, "prefill": {"tp": 2}, "decode": {"tp": 2}},
}
"""What P, D and T do not say: pipeline stages, latents (MLA), DP attention, sliding windows."""
COMMON = {"name": "sweep", "ports": 24000, "router": {"port": 24900}, "probe": {"timeout_s": 60}}

MOVED, WRONG, STUCK = "KV right", "KV wrong", "no KV"
FORESEEN = {Outcome.OK: MOVED, Outcome.WRONG_BYTES: WRONG, Outcome.EARLY_DONE: WRONG}
SEEN = {"proven": MOVED, "wrong": WRONG, "hang": STUCK, "refused": STUCK, "late": "KV late"}


@dataclass(frozen=True)
class Result:
    cell: str
    overlay: bool
    foreseen: str
    seen: str
    about: str
    seconds: float

    @property
    def agrees(self) -> bool:
        return self.foreseen == self.seen

    def __str__(self) -> str:
        connector = "overlay" if self.overlay else "stock"
        verdict = "agrees" if self.agrees else "DISAGREES"
        text = f"{self.cell:<14}{connector:<9}foreseen {self.foreseen:<10}seen {self.seen:<10}{verdict}"
        return f"{text} ({self.seconds:.0f} s){f': {self.about}' if self.about else ''}"


def topology(cell: str) -> dict[str, Any]:
    """The topology of a cell; one with a model's name is rehearsed."""
    if cell in NAMED:
        platform = "cpu" if "synthetic" in NAMED[cell]["model"] else "h200"
        return COMMON | {"platform": platform} | NAMED[cell]
    prefill, decode, kv_heads, *rest = cell.split(":")
    synthetic = {"attention_heads": int((rest or ["8"])[0]), "kv_heads": int(kv_heads)}
    pools = [{"tp": int(tp)} for tp in decode.split("+")]
    sizes = {"prefill": {"tp": int(prefill)}, "decode": pools}
    return COMMON | {"platform": "cpu", "model": {"synthetic": synthetic}} | sizes


def prepare(config: Path, topology: dict[str, Any], overlay: str) -> Prepared:
    config.write_text(yaml.safe_dump(topology | {"connector": {"overlay": overlay}}))
    if topology["platform"] != "cpu":
        prepared = prepare_rehearsal(config).prepared
        return replace(prepared, aggregated=None, deployment=replace(prepared.deployment, eval=EvalSpec()))
    return prepare_deployment(config, resolve(load_topology(config)))


def foreseen(plan: PlanReport) -> str:
    """What the plan says that the proof will show."""
    verdicts = [pool.repaired if plan.overlay else pool.verdict for pool in plan.pools]
    if not plan.overlay:
        sizes = [pool.decode.attention_tp for pool in plan.pools]
        layout = plan.layout
        heads = {"kind": layout.kind, "latent": layout.latent}
        verdicts.append(
            judge_pools(plan.choice.release, plan.prefill.attention_tp, sizes, layout.total_kv_heads, **heads)
        )
    outcomes = [FORESEEN.get(verdict.outcome, STUCK) for verdict in verdicts if verdict]
    return next((one for one in outcomes if one != MOVED), MOVED)


async def run(cell: str, prepared: Prepared) -> Result:
    begun = time.monotonic()
    await check_machine(prepared)
    directory = rundir.create("sweep")
    about = ""
    try:
        options = Options(warm=True, exit_after_eval=True)
        await Launch(prepared, options, record(prepared, directory), _Silent()).run()
        seen = MOVED
    except ProbeFailed as error:
        about, seen = error.what.splitlines()[0], SEEN[_shown(directory)]
    except LaunchFailed as error:
        about, seen = error.what.splitlines()[0], "no launch"
    (plan,) = prepared.plans
    return Result(cell, plan.overlay, foreseen(plan), seen, about[:100], time.monotonic() - begun)


async def sweep(folder: Path, cells: list[str]) -> list[Result]:
    """Every cell stock, and with the overlay where it has something to say; a release may not be repairable."""
    results = []
    async with _shared_parent():
        for number, cell in enumerate(cells):
            for overlay in ("off", "require"):
                prepared = prepare(folder / f"{number}.yaml", topology(cell), overlay)
                if overlay == "off" or prepared.plans[0].overlay:
                    results.append(await run(cell, prepared))
                    print(results[-1], flush=True)
    return results


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        try:
            found = asyncio.run(sweep(Path(scratch), sys.argv[1:] or [*SIZES, *NAMED]))
        except DisaggError as error:
            sys.exit(f"{type(error).__name__}: {error.what}")
    print(f"{sum(one.agrees for one in found)} of {len(found)} launches show what the plan foresees")
    sys.exit(not all(one.agrees for one in found))
