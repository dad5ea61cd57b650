"""The report that launch and the command line share, as a document."""

import json

from disagg_cli.connector.releases import choose_release
from disagg_cli.findings.report import report_plan
from disagg_cli.kv.models import layout_for
from disagg_cli.kv.parallelism import Parallelism


def report(prefill, *decode, sglang="0.5.23"):
    pools = [Parallelism(tp=tp) for tp in decode]
    return report_plan(layout_for("Qwen/Qwen3-32B"), Parallelism(tp=prefill), pools, choose_release(sglang))


def test_the_document_has_the_contracts_keys():
    document = report(4, 1).document()
    keys = "schema model prefill decode routes coverage completion connector findings ok"
    assert [key for key in document if key in keys.split()] == keys.split()
    assert document["schema"] == "disagg.plan/1"


def test_the_seeds_case():
    document = report(4, 1).document()
    assert document["completion"] == {"keys_expected": 4}
    assert document["prefill"]["heads_per_rank"] == 2
    assert document["routes"][3] == {
        "prefill_rank": 3,
        "decode_rank": 0,
        "heads": [6, 8],
        "src_head_offset": 0,
        "dst_head_offset": 6,
        "num_heads": 2,
        "bytes_per_token": 64 * 1024,
    }


def test_a_refused_plan_says_why_and_what_helps():
    document = report(4, 1, sglang="0.5.10").document()
    assert document["ok"] is False
    assert document["connector"]["outcome"] == "hang"
    assert document["connector"]["minimum_release"] == "0.5.12.post1"
    assert [found["code"] for found in document["findings"]] == ["DSG111"]


def test_several_pools_stand_in_a_list():
    document = report(4, 1, 2).document()
    assert [pool["decode"]["tp"] for pool in document["pools"]] == [1, 2]
    assert "routes" not in document


def test_what_does_not_load_is_null_not_a_guess():
    document = report(4, 3).document()
    assert document["decode"]["heads_per_rank"] is None
    assert document["routes"] == []
    assert document["completion"] == {"keys_expected": None}
    assert document["coverage"]["ok"] is False


def test_gaps_are_listed_with_rank_and_heads():
    layout = layout_for("Qwen/Qwen3-32B")
    made = report_plan(layout, Parallelism(tp=16), [Parallelism(tp=24)], choose_release("0.5.23"))
    gaps = made.document()["coverage"]["gaps"]
    assert gaps[0] == {"decode_rank": 2, "heads": [0, 1]}


def test_it_is_json():
    json.dumps(report(4, 3).document())
