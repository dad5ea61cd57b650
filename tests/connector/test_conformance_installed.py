"""The installed SGLang's own connector, cell by cell, against what disagg says of it."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_spec("sglang") is None, reason="sglang is not installed"),
]


def verify(*args):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from disagg_cli.cli.connector import app; app()",
            "verify",
            *args,
            "--json",
        ],
        capture_output=True,
        text=True,
        timeout=290,
    )
    assert done.stdout, done.stderr[-2000:]
    return done.returncode, json.loads(done.stdout)


def test_the_whole_grid_agrees():
    code, document = verify()
    assert [cell for cell in document["cells"] if not cell["agrees"]] == []
    assert (code, document["ok"], document["agree"]) == (0, True, document["total"])


def test_one_plan_that_the_installed_connector_gets_wrong_exits_3():
    code, document = verify("--prefill-tp", "4", "--decode-tp", "8", "--kv-heads", "2")
    assert (code, document["ok"]) == (3, False)
    assert document["cells"][0]["observed"] == document["cells"][0]["expected"] != "ok"
