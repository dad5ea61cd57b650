"""The proof of readiness once more, for a run that serves, from another terminal."""

from dataclasses import dataclass, fields
from typing import Any

from disagg_cli.errors import UsageError
from disagg_cli.probe.pairs import PairResult, prove_pairs
from disagg_cli.probe.parity import ParityResult, prove_parity
from disagg_cli.runtime.control import status
from disagg_cli.runtime.rundir import RunDir
from disagg_cli.topology.deployment import Host, Ports, Share, Worker


@dataclass(frozen=True, kw_only=True, slots=True)
class Reprobe:
    """What every pair of a run shows now. Pairs that moved nothing are not compared."""

    run: str
    pairs: tuple[PairResult, ...]
    parity: tuple[ParityResult, ...]

    @property
    def ok(self) -> bool:
        """Whether every pair moved the right KV."""
        return all(pair.ok for pair in self.pairs) and all(one.ok for one in self.parity)

    def document(self) -> dict[str, Any]:
        """The result as JSON."""
        return {
            "schema": "disagg.probe/1",
            "run": self.run,
            "ok": self.ok,
            "pairs": [one.document() for one in self.pairs],
            "parity": [one.document() for one in self.parity],
        }


async def probe_run(run: RunDir) -> Reprobe:
    """Drive and compare every pair. UsageError if the run does not serve."""
    if (phase := status(run).phase) != "serving":
        raise UsageError(f"{run.path.name} does not serve (it is {phase})", fix="launch it, or name another with --run")
    deployment, plan = run.read("deployment.json"), run.read("plan.json")
    pairs, timeout = _pairs(deployment["workers"]), deployment["probe"]["timeout_s"]
    moved = await prove_pairs(pairs, timeout_s=timeout, done=lambda _one: None)
    names = {(one.prefill, one.decode) for one in moved if one.ok}
    compared = [(prefill, decode) for prefill, decode in pairs if (prefill.name, decode.name) in names]
    model = (plan.get("plans") or [plan])[0]["model"]
    parity = await prove_parity(compared, kv_dtype=model["kv_dtype"], timeout_s=timeout)
    return Reprobe(run=run.path.name, pairs=moved, parity=parity)


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
