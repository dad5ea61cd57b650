"""What a person sees of a plan."""

from io import StringIO

import pytest
from rich.console import Console

from disagg_cli.connector.releases import choose_release
from disagg_cli.console.plan_view import human_bytes, plan_view
from disagg_cli.findings.report import report_plan
from disagg_cli.kv.models import layout_for
from disagg_cli.kv.parallelism import Parallelism


def seen(prefill, *decode, sglang="0.5.23", width=100):
    pools = [Parallelism(tp=tp) for tp in decode]
    report = report_plan(layout_for("Qwen/Qwen3-32B"), Parallelism(tp=prefill), pools, choose_release(sglang))
    out = Console(file=StringIO(), width=width)
    out.print(plan_view(report))
    return out.file.getvalue()


def test_each_route_is_a_row():
    rows = [line.split() for line in seen(4, 1).splitlines() if "64 KiB" in line]
    assert rows[0] == ["0", "0-7", "0", "0-1", "0", "0", "64", "KiB"]
    assert rows[3] == ["3", "6-7", "0", "6", "64", "KiB"]


def test_many_routes_are_folded():
    text = seen(64, 1)
    assert "folded" in text
    assert "write at" not in text


def test_faults_are_told_with_their_fix():
    text = seen(4, 1, sglang="0.5.12")
    assert "error DSG111" in text
    assert "install sglang>=0.5.12.post1" in text
    assert "does not hold: 1 error" in text


def test_sizes_that_do_not_load_still_show():
    assert "8 KV heads do not load" in seen(4, 3)


def test_pools_are_named():
    assert "decode[1] TP2" in seen(4, 1, 2)


@pytest.mark.parametrize(("count", "text"), [(512, "512 B"), (65536, "64 KiB"), (1536 * 1024, "1.5 MiB")])
def test_bytes_for_people(count, text):
    assert human_bytes(count) == text
