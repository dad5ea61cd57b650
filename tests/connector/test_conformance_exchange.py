"""How what decode ranks saw becomes one outcome."""

import pytest

from disagg_cli.connector.conformance.exchange import _observed, _Served


def served(rank=0, **changes):
    return _Served(**{"rank": rank, "keys": 2, "right": True, "finishes": True, "early": False, **changes})


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [
        ({}, "ok"),
        ({"early": True}, "early_done"),
        ({"right": False}, "wrong_bytes"),
        ({"finishes": False}, "hang"),
        ({"right": False, "early": True}, "wrong_bytes"),
        ({"right": False, "finishes": False}, "hang"),
    ],
)
def test_a_client_sees_a_wait_before_garbage_and_garbage_before_a_race(seen, outcome):
    assert _observed([served(), served(1, **seen)]).outcome == outcome


def test_what_else_is_wrong_is_told_too():
    seen = _observed([served(0, finishes=False, right=False), served(1, right=False)])
    assert seen.detail == "never done on decode rank(s) 0; wrong or missing bytes on decode rank(s) 0, 1"
