"""The proof of readiness once more, for a run that serves, from another terminal."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from disagg_cli.api_key import VARIABLE, api_key_header
from disagg_cli.errors import DisaggError, UsageError
from disagg_cli.probe.diagnosis import Diagnosis
from disagg_cli.probe.pairs import PairResult, prove_pairs
from disagg_cli.probe.parity import ParityResult, prove_parity
from disagg_cli.runtime.cause import cause_of, log_sizes
from disagg_cli.runtime.control import status
from disagg_cli.runtime.prepare import prepare
from disagg_cli.runtime.rundir import RunDir
from disagg_cli.topology.deployment import Host, Ports, Share, Worker
from disagg_cli.topology.platforms import platforms


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """What every pair of a run shows at one time. Pairs that moved nothing are not compared. seconds: it took."""

    pairs: tuple[PairResult, ...]
    parity: tuple[ParityResult, ...]
    seconds: float
    causes: tuple[Diagnosis, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every pair moved KV, and the right KV where that was compared."""
        return all(pair.ok for pair in self.pairs) and all(one.ok for one in self.parity)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reprobe:
    """One round of probes, or several, one after another."""

    run: str
    rounds: tuple[Round, ...]

    @property
    def ok(self) -> bool:
        """Whether every round was right."""
        return all(one.ok for one in self.rounds)

    @property
    def shown(self) -> Round:
        """The round to look at: the first that failed, else the last."""
        return next((one for one in self.rounds if not one.ok), self.rounds[-1])

    def document(self) -> dict[str, Any]:
        """The result as JSON; pairs and parity are those of the round to look at."""
        return {
            "schema": "disagg.probe/1",
            "run": self.run,
            "ok": self.ok,
            "rounds": [{"ok": one.ok, "seconds": one.seconds} for one in self.rounds],
            "pairs": [one.document() for one in self.shown.pairs],
            "parity": [one.document() for one in self.shown.parity],
            "causes": [one.document() for one in self.shown.causes],
        }


async def probe_run(
    run: RunDir, *, parity: bool = True, times: int = 1, done: Callable[[Round], None] = lambda _: None
) -> Reprobe:
    """Drive every pair, and compare it, so many times. UsageError if the run does not serve."""
    if (phase := status(run).phase) != "serving":
        raise UsageError(f"{run.path.name} does not serve (it is {phase})", fix="launch it, or name another with --run")
    _require_key(run)
    rounds = []
    for _ in range(times):
        rounds.append(await _round(run, parity=parity))
        done(rounds[-1])
    return Reprobe(run=run.path.name, rounds=tuple(rounds))


def _require_key(run: RunDir) -> None:
    """The key that workers ask for is in no record."""
    workers = run.read("deployment.json")["workers"]
    if any(worker["args"].get("api-key") for worker in workers) and not api_key_header():
        raise UsageError(f"the workers of {run.path.name} ask for a key", fix=f"export {VARIABLE}")


async def _round(run: RunDir, *, parity: bool) -> Round:
    begun = time.monotonic()
    deployment, plan = run.read("deployment.json"), run.read("plan.json")
    pairs, timeout = _pairs(deployment["workers"]), deployment["probe"]["timeout_s"]
    marks = log_sizes(run, (worker for pair in pairs for worker in pair))
    moved = await prove_pairs(pairs, timeout_s=timeout, done=lambda _one: None)
    names = {(one.prefill, one.decode) for one in moved if one.ok}
    compared = [(prefill, decode) for prefill, decode in pairs if parity and (prefill.name, decode.name) in names]
    model = (plan.get("plans") or [plan])[0]["model"]
    on_cpu = platforms()[deployment["platform"]].on_cpu
    found = await prove_parity(compared, kv_dtype=model["kv_dtype"], timeout_s=timeout, on_cpu=on_cpu)
    seconds = round(time.monotonic() - begun, 1)
    return Round(pairs=moved, parity=found, seconds=seconds, causes=_causes(run, pairs, (*moved, *found), marks))


def _causes(
    run: RunDir,
    pairs: Sequence[tuple[Worker, Worker]],
    results: Sequence[PairResult | ParityResult],
    marks: Mapping[str, int],
) -> tuple[Diagnosis, ...]:
    """Why pairs failed, by the topology as it was launched; nothing where that can no longer be planned here."""
    failed = [one for one in results if not one.ok]
    if not failed:
        return ()
    try:
        plans = prepare(run.path / "topology.yaml").plans
    except DisaggError:
        return ()
    by_name = {(prefill.name, decode.name): (prefill, decode) for prefill, decode in pairs}
    found = [cause_of(one, by_name[one.prefill, one.decode], plans, run, marks) for one in failed]
    return tuple(dict.fromkeys(one for one in found if one))


def _pairs(workers: list[dict[str, Any]]) -> list[tuple[Worker, Worker]]:
    """Every pair of the workers that a run's deployment.json lists."""
    found = [_worker(document) for document in workers]
    prefill = [worker for worker in found if worker.role == "prefill"]
    decode = [worker for worker in found if worker.role == "decode"]
    return [(p, d) for p in prefill for d in decode]


def _worker(document: dict[str, Any]) -> Worker:
    known = {field.name for field in fields(Worker)}
    shares = tuple(Share(host=Host(**share["host"]), gpus=tuple(share["gpus"])) for share in document["shares"])
    kept = {name: value for name, value in document.items() if name in known}
    return Worker(**kept | {"shares": shares, "ports": Ports(**document["ports"])})
