"""`disagg probe` finds a run's pairs in its record."""

import json

import pytest
from deployments import ROOT, write_topology

from disagg_cli.connector import witness
from disagg_cli.errors import UsageError
from disagg_cli.probe.pairs import PairResult
from disagg_cli.runtime import rundir
from disagg_cli.runtime.launch import record
from disagg_cli.runtime.prepare import prepare
from disagg_cli.runtime.reprobe import _causes, _pairs, probe_run


@pytest.mark.parametrize("name", ["1p2d-cpu", "1p4d-gb200-qwen3-32b", "h200-2p2d"])
def test_pairs_survive_the_record(home, name):
    prepared = prepare(ROOT / f"configs/{name}.yaml")
    document = json.loads(json.dumps(prepared.document()))
    found = [(p.url, p.ports.bootstrap, d.url) for p, d in _pairs(document["workers"])]
    assert found == [(p.url, p.ports.bootstrap, d.url) for p, d in prepared.deployment.pairs]


async def test_a_run_that_does_not_serve(home):
    from runs import a_run

    with pytest.raises(UsageError, match="does not serve"):
        await probe_run(a_run().directory)


def test_a_pair_that_fails_is_explained(home, tmp_path):
    prepared = prepare(write_topology(tmp_path))
    run = rundir.create("demo")
    record(prepared, run)
    room = witness.new_room()
    heard = [witness.heard(room, 0, 0)] * 2
    run.log("decode-0").write_text("\n".join([witness.LISTENS, *heard, ""]))
    failed = PairResult(
        prefill="prefill-0",
        decode="decode-0",
        first_token_s=None,
        total_s=20.0,
        tokens=0,
        error="no answer within 20 s",
        prefill_done=True,
        room=room,
        timed_out=True,
    )
    (found,) = _causes(run, prepared.deployment.pairs, [failed], {})
    assert found.cause == "decode rank 0 heard 2 completions that look alike (from 0) and waits for prefill rank(s) 1"


def test_a_topology_that_can_no_longer_be_planned_explains_nothing(home, tmp_path):
    failed = PairResult(prefill="p", decode="d", first_token_s=None, total_s=1.0, tokens=0, error="no answer")
    assert _causes(rundir.create("demo"), [], [failed], {}) == ()
