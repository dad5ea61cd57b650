"""Which findings a plan gets."""

import pytest

from disagg_cli.connector.releases import choose_release
from disagg_cli.findings.report import report_plan
from disagg_cli.kv.layout import KVLayout
from disagg_cli.kv.parallelism import Parallelism


def findings(prefill, *decode, total=8, sglang="0.5.23", attention_heads=None):
    layout = KVLayout(name="m", total_kv_heads=total, num_layers=8, head_dim=64, attention_heads=attention_heads)
    return report_plan(layout, _side(prefill), [_side(pool) for pool in decode], choose_release(sglang)).findings


def _side(sizes):
    return Parallelism(**sizes) if isinstance(sizes, dict) else Parallelism(tp=sizes)


def codes(*args, **kwargs):
    return [found.code for found in findings(*args, **kwargs)]


def test_a_good_plan_has_none():
    assert codes(4, 1) == []


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((2, 3), {"total": 6}, ["DSG101"]),
        ((3, 3), {}, ["DSG102", "DSG102"]),
        ((8, 8), {"attention_heads": 12}, ["DSG102", "DSG102"]),
        (({"tp": 2, "pp": 4}, {"tp": 2, "pp": 2}), {}, ["DSG103"]),
        (({"tp": 4, "dp_attention": True}, 4), {}, ["DSG104"]),
        (({"tp": 4, "dp": 2}, 4), {}, ["DSG105"]),
        ((4, 1), {"sglang": "0.5.11"}, ["DSG111"]),
        ((1, 4), {"total": 2, "sglang": "0.5.11"}, ["DSG112"]),
        ((4, 1), {"sglang": "0.5.6"}, ["DSG113"]),
        ((1, 4), {"total": 2, "sglang": "0.5.10"}, ["DSG114"]),
        ((1, 4), {"total": 2, "sglang": "0.5.16"}, ["DSG115"]),
        ((4, 8), {"total": 2}, ["DSG115", "DSG121"]),
        ((2, 1, 4), {"total": 4}, ["DSG122"]),
        ((4, 1), {"sglang": "0.5.24"}, ["DSG131"]),
        ((4, 1), {"sglang": "0.5.22.dev1"}, ["DSG131"]),
        (({"tp": 2, "pp": 9}, 2), {}, ["DSG106", "DSG117", "DSG121"]),
        (({"tp": 2, "pp": 2}, 2), {}, ["DSG117", "DSG121"]),
        (({"tp": 2, "pp": 3}, 1), {}, ["DSG112", "DSG121"]),
    ],
)
def test_each_fault_has_its_code(args, kwargs, expected):
    assert codes(*args, **kwargs) == expected


def test_the_fix_names_the_first_right_release():
    assert findings(4, 1, sglang="0.5.10")[0].fix == "install sglang>=0.5.12.post1"


def test_where_the_overlay_repairs_the_plan_the_fix_names_it():
    assert findings(4, 1, sglang="0.5.11")[0].fix.endswith("or `connector: {overlay: auto}`: disagg's fix repairs it")


def test_where_no_release_is_right_the_fix_names_sizes_that_are():
    found = findings(4, 8, total=2)[-1]
    assert found.fix.startswith(
        "use a prefill attention TP of at most 2 (the KV heads), or of 8 and more (the decode's)"
    )
    assert codes(2, 8, total=2) == codes(8, 8, total=2) == []


def test_a_release_that_happens_to_be_right_is_not_refused():
    assert codes(4, 8, total=2, sglang="0.5.12.post1") == []


def test_places_name_the_pool():
    assert [found.where for found in findings(8, 3, 8)] == ["decode[0].tp", "decode[0].tp"]


def test_messages_carry_the_sizes():
    assert findings(4, 8, total=2)[1].message.startswith("TP4 -> TP8 with 2 KV heads (both sides replicate heads")


def test_what_concerns_the_whole_deployment_is_said_once():
    assert codes(3, 3, 3, sglang="0.5.24").count("DSG131") == 1
