"""Numbers as models write them."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cli.evals.numerals import canonical, first_number, last_number, normalize, value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("18", "18"),
        ("She pays $1,080.50 now", "1080.5"),
        ("-3 degrees", "-3"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("12-9", "9"),
        ("from 5-10", "10"),
        ("5\u201310", "10"),
        ("(2)-3", "3"),
        ("\u22124", "-4"),
        ("12,15 as a list", "15"),
        ("12345,678", "678"),
        ("18...", "18"),
        ("18.", "18"),
        ("half is .5", "0.5"),
        ("3/4 of it", "0.75"),
        ("\\frac{36}{2}", "18"),
        ("-\\dfrac{1}{2}", "-0.5"),
        ("1/3", "1/3"),
        ("1{,}080", "1080"),
        ("1,\\!080", "1080"),
        ("1\\,080\\text{ kg}", "1080"),
        ("1\u2009080", "1080"),
        ("\uff11\uff18", "18"),
        ("18 m\u00b2", "18"),
        ("18 m^2", "18"),
        ("1.8e1", "18"),
        ("2.88 million", "2.88"),
        ("75%", "75"),
        ("007", "7"),
        ("no number", None),
        ("9" * 31, None),
        ("1e999999999", None),
        ("5/0", None),
    ],
)
def test_last_number(text, expected):
    assert canonical(value(last_number(normalize(text)))) == expected


def test_first_and_last():
    text = "16 - 3 - 4 = 9"
    assert (value(first_number(text)), value(last_number(text))) == (16, 9)


@settings(deadline=None)
@given(st.integers(-(10**12), 10**12))
def test_integers_survive_thousands_groups(number):
    assert value(last_number(f"It is {number:,}.")) == number


@settings(deadline=None)
@given(st.integers(-(10**6), 10**6), st.integers(0, 4))
def test_decimals_are_exact(number, places):
    exact = Fraction(number, 10**places)
    assert value(last_number(f"= {number / 10**places:.{places}f}")) == exact


@settings(deadline=None)
@given(st.fractions(max_denominator=1000))
def test_canonical_names_one_number(number):
    text = canonical(number)
    assert text is not None
    assert Fraction(text) == number
