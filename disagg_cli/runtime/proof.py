"""Why a deployment may call itself ready: KV moved between every pair, it was the right KV, and the router answers."""

from collections.abc import Sequence
from typing import Any

from disagg_cli.errors import ProbeFailed
from disagg_cli.findings.finding import Finding, Severity
from disagg_cli.probe.diagnosis import Diagnosis
from disagg_cli.probe.pairs import PairResult, prove_pairs
from disagg_cli.probe.parity import ParityResult, prove_parity
from disagg_cli.probe.router import prove_router
from disagg_cli.runtime.cause import cause_of, planned
from disagg_cli.runtime.logs import indented, tail
from disagg_cli.runtime.prepare import Prepared
from disagg_cli.runtime.state import Recorder
from disagg_cli.settings import Timeouts
from disagg_cli.topology.deployment import Worker


class Proof:
    """Obtains the proof step by step; probe.json keeps what there is of it, also when a step fails."""

    def __init__(self, prepared: Prepared, recorder: Recorder, timeouts: Timeouts) -> None:
        self.prepared = prepared
        self.deployment = prepared.deployment
        self.recorder = recorder
        self.timeouts = timeouts
        self.document: dict[str, Any] = {
            "schema": "disagg.probe/1",
            "pairs": [],
            "parity": [],
            "router": {},
            "causes": [],
        }

    async def obtain(self) -> None:
        """Prove it. ProbeFailed names the pairs that did not, with both workers' last lines and the likely cause."""
        try:
            await self._transfers()
            if self.deployment.probe.parity:
                await self._parity()
            await self._router()
        finally:
            self.recorder.write("probe.json", self.document)

    async def of_router(self) -> None:
        """Prove a router that has been started anew in front of workers that are proven. ProbeFailed as above."""
        self.document = self.recorder.directory.read("probe.json") or self.document
        await self._router()
        self.recorder.write("probe.json", self.document)

    async def _transfers(self) -> None:
        pairs = self.deployment.pairs
        self.recorder.run_phase("probing", f"{len(pairs)} pair(s) to move KV")
        results = await prove_pairs(pairs, timeout_s=self.deployment.probe.timeout_s, done=self._pair_done)
        self.document["pairs"] = [result.document() for result in results]
        failed = [result for result in results if not result.ok]
        if failed:
            what = "; ".join(f"{result.prefill} -> {result.decode}: {result.error}" for result in failed)
            raise self._failure(f"{len(failed)} of {len(results)} pair(s) did not move KV: {what}", failed)
        if not self.deployment.probe.parity:
            self._all_proven()

    def _pair_done(self, result: PairResult) -> None:
        text = f"first token {result.first_token_s:.2f} s, all {result.total_s:.2f} s" if result.ok else result.error
        moved = "KV moved" if result.ok else "FAILED"
        self.recorder.event("pair", f"{result.prefill} -> {result.decode}: {moved}, {text}")

    async def _parity(self) -> None:
        self.recorder.run_phase("probing", "decode's log-probabilities to agree with prefill's")
        results = await prove_parity(
            self.deployment.pairs,
            kv_dtype=self.prepared.plans[0].layout.kv_dtype,
            timeout_s=self.deployment.probe.timeout_s,
            on_cpu=self.deployment.platform.on_cpu,
        )
        self.document["parity"] = [result.document() for result in results]
        for result in results:
            self.recorder.event("parity", f"{result.prefill} -> {result.decode}: {result.sentence()}")
        failed = [result for result in results if not result.ok]
        if failed:
            what = "; ".join(f"{result.prefill} -> {result.decode}: {result.sentence()}" for result in failed)
            raise self._failure(f"{len(failed)} of {len(results)} pair(s) failed the comparison of KV: {what}", failed)
        self._all_proven()

    async def _router(self) -> None:
        self.recorder.run_phase("probing", "a request through the router")
        url, model = self.deployment.router.url, self.deployment.model.served_name
        self.document["router"] = answer = await prove_router(url, model, timeout_s=self.timeouts.router)
        self.recorder.process_phase("router", "proven", f"answered after {answer['total_s']:.1f} s")

    def _all_proven(self) -> None:
        """A worker is proven once all its pairs are, on all of its hosts: each rank has had its part of the KV."""
        for name in (name for worker in self.deployment.workers for name in worker.processes):
            self.recorder.process_phase(name, "proven")

    def _failure(self, what: str, failed: Sequence[PairResult | ParityResult]) -> ProbeFailed:
        """The plan's word first, then what both sides' logs say, then their last lines."""
        directory = self.recorder.directory
        causes = [
            Diagnosis(cause=f"{finding.code} {finding.message}", fix=finding.fix)
            for result in failed
            for finding in self._foreseen(result)
        ]
        causes += [cause for cause in map(self._cause, failed) if cause]
        causes = list(dict.fromkeys(causes))
        causes = [cause for cause in causes if cause.known] or causes
        self.document["causes"] = [cause.document() for cause in causes]
        names = list(dict.fromkeys(name for result in failed for name in (result.prefill, result.decode)))
        logs = "\n".join(f"{name}, last lines:\n{indented(tail(directory.log(name)))}" for name in names)
        likely = "\n".join(f"likely cause: {cause.cause}" for cause in causes)
        return ProbeFailed(
            f"{what}\n{likely}\n{logs}",
            where=str(directory.logs),
            fix="; ".join(dict.fromkeys(cause.fix for cause in causes)),
        )

    def _foreseen(self, result: PairResult | ParityResult) -> list[Finding]:
        """The plan's errors for this pair's pools; what it says of another pool explains nothing here."""
        plan, pool = planned(self.prepared.plans, *self._pair(result))
        elsewhere = {found for other in plan.pools for found in other.findings} - set(pool.findings)
        return [found for found in plan.findings if found.severity is Severity.ERROR and found not in elsewhere]

    def _cause(self, result: PairResult | ParityResult) -> Diagnosis | None:
        return cause_of(result, self._pair(result), self.prepared.plans, self.recorder.directory)

    def _pair(self, result: PairResult | ParityResult) -> tuple[Worker, Worker]:
        workers = {worker.name: worker for worker in self.deployment.workers}
        return workers[result.prefill], workers[result.decode]
