"""Numbers in the units that a person would choose."""

import pytest

from disagg_cli.console.units import duration


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59, "59 s"), (60, "1 min"), (3600, "1 h 0 min"), (90_000, "1 d 1 h"), (1e6, "11 d 13 h")],
)
def test_a_time_in_words(seconds, words):
    assert duration(seconds) == words
