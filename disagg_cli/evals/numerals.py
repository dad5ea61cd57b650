"""Numbers as language models write them, read exactly.

A number may carry a sign, a currency, thousands groups, decimals, a power of ten, or be a fraction. Everything is a
`Fraction`: no rounding, so 70001 is never 70000. A number nobody means (over 30 digits, or a power over 30) reads as
None: `10**999999999` would not end, and small models do write digits without end.

All patterns are linear in the text: no input can make them backtrack far.
"""

import re
from fractions import Fraction

MAX_DIGITS = 30
MAX_EXPONENT = 30

_DIGITS = str.maketrans({chr(0xFF10 + d): str(d) for d in range(10)} | {"\u2212": "-", "\u2013": "-"})

_WHOLE, _DECIMALS = re.compile("-?[0-9]*"), re.compile("[0-9]*")

# "1{,}080", "1\,080", "1,\!080" and thin spaces (U+2009, U+200A, U+202F) group thousands in LaTeX and in print.
_GROUPING = re.compile(r"(?<=[0-9])(?:\{,\}|,?\\[,!]|[\u2009\u200a\u202f])(?=[0-9]{3}(?![0-9]))")

_PLAIN = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![0-9.])\.[0-9]+"
# A sign is one only where nothing stands before it to be added to: "12-9" ends in 9, "5-10" is a range.
_SIGN = r"(?<![0-9A-Za-z)\]}])[-+]"
_NUMBER = re.compile(
    rf"""\^\ ?\{{?-?[0-9]+                                    # an exponent is no answer: 18 m^2
    | (?P<sign>{_SIGN})? (?:(?:\\?\$|[€£₹])\ ?(?P<inner>[-+])?)?
      (?: \\[dt]?frac\ ?(?: \{{(?P<over>-?(?:{_PLAIN}))\}}\ ?\{{(?P<under>{_PLAIN})\}} | (?P<halves>[0-9]{{2}}) )
        | (?P<top>{_PLAIN}) (?: \ ?/\ ?(?P<bottom>{_PLAIN}) | [eE](?P<power>[+-]?[0-9]+) )? )""",
    re.VERBOSE | re.ASCII,
)


def normalize(text: str) -> str:
    """Full-width digits and typographic minus signs as ASCII; grouping marks inside numbers removed."""
    return _GROUPING.sub("", text.translate(_DIGITS))


def number_at(text: str, position: int) -> re.Match[str] | None:
    """The number that starts exactly at a position of normalized text."""
    found = _NUMBER.match(text, position)
    return found if found and not found[0].startswith("^") else None


def first_number(text: str) -> re.Match[str] | None:
    """The first number in normalized text."""
    return next((found for found in _NUMBER.finditer(text) if not found[0].startswith("^")), None)


def last_number(text: str) -> re.Match[str] | None:
    """The last number in normalized text."""
    last = None
    for found in _NUMBER.finditer(text):
        if not found[0].startswith("^"):
            last = found
    return last


def value(found: re.Match[str] | None) -> Fraction | None:
    """What a match is worth; None without a match, for a runaway number and for a division by zero."""
    if found is None:
        return None
    if halves := found["halves"]:  # \frac12
        top, under = halves[0], halves[1]
    else:
        top, under = found["over"] or found["top"], found["under"] or found["bottom"]
    number = decimal(top, power=found["power"] or "0")
    if number is not None and under is not None:
        divisor = decimal(under)
        number = number / divisor if divisor else None
    negative = (found["sign"] == "-") != (found["inner"] == "-")
    return -number if number is not None and negative else number


def decimal(digits: str, *, power: str = "0") -> Fraction | None:
    """An optional minus, digits with thousands groups and decimals, times ten to a power. None for anything else."""
    whole, _, decimals = digits.replace(",", "").partition(".")
    if not (_WHOLE.fullmatch(whole) and _DECIMALS.fullmatch(decimals) and (whole + decimals).strip("-")):
        return None
    if len(whole) + len(decimals) > MAX_DIGITS or len(power) > 4 or abs(int(power)) > MAX_EXPONENT:
        return None
    if not decimals and power == "0":
        return Fraction(int(whole))
    return int(whole + decimals) * Fraction(10) ** (int(power) - len(decimals))


def canonical(number: Fraction | None) -> str | None:
    """The shortest exact writing: `18`, `-0.75`, and `1/3` where no decimal is exact."""
    if number is None:
        return None
    if number.denominator == 1:
        return str(number.numerator)
    twos, fives, rest = _count(number.denominator, 2), _count(number.denominator, 5), number.denominator
    rest //= 2**twos * 5**fives
    if rest != 1:
        return f"{number.numerator}/{number.denominator}"
    places = max(twos, fives)
    digits = str(abs(number.numerator) * 10**places // number.denominator).rjust(places + 1, "0")
    return f"{'-' if number < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def _count(number: int, factor: int) -> int:
    times = 0
    while number % factor == 0:
        number //= factor
        times += 1
    return times
