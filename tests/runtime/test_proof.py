"""What a launch makes of its pairs' answers: who is proven, what is written down, and what is said of a failure."""

import dataclasses

import pytest
from deployments import write_topology
from fake_workers import good, hang, says, serving

from disagg_cli.errors import ProbeFailed
from disagg_cli.runtime import rundir
from disagg_cli.runtime.launch import record
from disagg_cli.runtime.prepare import prepare
from disagg_cli.runtime.proof import Proof
from disagg_cli.settings import Timeouts


@pytest.fixture
def proof(home, tmp_path):
    """Proof of the smallest topology whose workers, in order, are these servers."""

    def of(servers, timeout_s=5.0):
        prepared = prepare(write_topology(tmp_path, probe={"parity": False, "timeout_s": timeout_s}))
        deployment = prepared.deployment
        workers = tuple(
            dataclasses.replace(w, ports=dataclasses.replace(w.ports, http=server.port))
            for w, server in zip(deployment.workers, servers, strict=False)
        )
        router = dataclasses.replace(deployment.router, port=servers[-1].port)
        moved = dataclasses.replace(deployment, workers=workers, router=router)
        recorder = record(prepared, rundir.create("demo"))
        for name in recorder.state.processes:
            recorder.process_phase(name, "starting")
        for worker in workers:
            recorder.directory.log(worker.name).write_text(f"the last line of {worker.name}\n")
        return Proof(dataclasses.replace(prepared, deployment=moved), recorder, Timeouts(router=timeout_s))

    return of


async def completion(response):
    await response.write(b'{"usage": {"completion_tokens": 4}}')


def written(proof):
    return proof.recorder.directory.read("probe.json")


async def test_everything_is_proven(proof):
    async with serving(good, good, good, completion) as servers:
        one = proof(servers)
        await one.obtain()
    assert {process.phase for process in one.recorder.state.processes.values()} == {"proven"}
    assert [(pair["prefill"], pair["decode"], pair["ok"]) for pair in written(one)["pairs"]] == [
        ("prefill-0", "decode-0", True),
        ("prefill-0", "decode-1", True),
    ]
    assert written(one)["router"]["tokens"] == 4


async def test_a_pair_that_failed_is_named_with_both_workers_last_lines(proof):
    async with serving(good, says(then=hang), good, completion) as servers:
        one = proof(servers, timeout_s=0.3)
        with pytest.raises(ProbeFailed) as caught:
            await one.obtain()
    assert caught.value.what.splitlines() == [
        "1 of 2 pair(s) did not move KV: prefill-0 -> decode-0: no answer within 0 s",
        (
            "likely cause: prefill has sent everything, and decode still waits: it counts the completions of "
            "2 different senders, and some are lost or look alike"
        ),
        "prefill-0, last lines:",
        "  | the last line of prefill-0",
        "decode-0, last lines:",
        "  | the last line of decode-0",
    ]
    assert caught.value.where == str(one.recorder.directory.logs)
    assert "disagg plan --releases" in caught.value.fix


async def test_what_there_is_of_a_proof_is_written_down(proof):
    async with serving(good, 500, good, completion) as servers:
        one = proof(servers)
        with pytest.raises(ProbeFailed):
            await one.obtain()
    assert [pair["error"] for pair in written(one)["pairs"]] == ["decode-0 answered HTTP 500: the reason", None]
    assert written(one)["router"] == {}


async def test_the_plans_verdict_is_the_likely_cause(proof, monkeypatch):
    monkeypatch.setattr("disagg_cli.topology.survey.version", {"sglang": "0.5.10"}.get)
    async with serving(500, 500, 500, completion) as servers:
        with pytest.raises(ProbeFailed) as caught:
            await proof(servers).obtain()
    assert "likely cause: DSG1" in caught.value.what
    assert "install sglang>=0.5.12.post1" in caught.value.fix


async def test_a_router_that_does_not_answer(proof):
    async with serving(good, good, good, 503) as servers:
        one = proof(servers, timeout_s=0.5)
        with pytest.raises(ProbeFailed, match=r"the router at .* answered no request within 0 s: HTTP 503: the reason"):
            await one.obtain()
    assert one.recorder.state.processes["router"].phase == "starting"
