"""`disagg probe` finds a run's pairs in its record."""

import json

import pytest
from deployments import ROOT

from disagg_cli.errors import UsageError
from disagg_cli.runtime.prepare import prepare
from disagg_cli.runtime.reprobe import _pairs, probe_run


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
