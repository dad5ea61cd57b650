"""Head ownership against the weights that the installed SGLang loads, rank by rank, with its own loader."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from disagg_cli.kv.heads import loadable, owned

SIZES = [(total, tp) for total in (1, 2, 3, 4, 8, 12) for tp in (1, 2, 3, 4, 6, 8, 16) if loadable(total, tp)]


@pytest.mark.e2e
def test_every_rank_holds_the_heads_whose_weights_it_loads():
    if find_spec("sglang") is None:
        pytest.skip("sglang is not installed")
    probe = Path(__file__).with_name("weights_probe.py")
    done = subprocess.run([sys.executable, probe, json.dumps(SIZES)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    loaded = json.loads(done.stdout.splitlines()[-1])
    ours = [[owned(total, tp, rank) for rank in range(tp)] for total, tp in SIZES]
    assert loaded == [[list(range(h.first, h.past_end)) for h in ranks] for ranks in ours]
