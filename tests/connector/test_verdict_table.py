"""Every verdict against the outcomes seen when each release's own code was executed, and against the gate.

The tables below were obtained by running the head-slice functions and `TransferStatus.is_done` of each wheel with
recorded memory. They are written down here by class of sizes, apart from the mechanisms that `verdict` works with.
"""

from itertools import product

import pytest
from packaging.version import Version

from disagg_cli.connector.case import Case
from disagg_cli.connector.releases import find_release, known_releases
from disagg_cli.connector.verdict import counts_all_senders, judge
from disagg_cli.kv.layout import LayoutKind

# Columns of the tables: the first release of each span in which nothing changes.
COLUMNS = ("0.5.6", "0.5.7", "0.5.11", "0.5.12", "0.5.12.post1", "0.5.13", "0.5.17", "0.5.22")

BY_CLASS = {
    "A": "ok ok ok hang ok ok ok ok",
    "B": "early_done hang hang hang ok ok ok ok",
    "C": "wrong_bytes hang hang hang ok ok ok ok",
    "Dd": "wrong_bytes hang hang hang ok ok ok ok",
    "E": "ok ok ok hang ok ok ok ok",
    "F": "zero_division zero_division ok hang ok not_found ok ok",
    "G": "zero_division zero_division wrong_bytes hang wrong_bytes not_found ok ok",
    "H": "zero_division zero_division ok hang ok not_found empty_transfer assertion",
}

# Completion only, by `is_done`: (kind, P, D, T, prefill PP). 0.5.6 with PP 2 finishes with the first stage.
COMPLETION = {
    (LayoutKind.MHA, 4, 4, 8, 1): "ok ok ok hang ok ok ok ok",
    (LayoutKind.MHA, 2, 4, 8, 1): "ok ok ok hang ok ok ok ok",
    (LayoutKind.MHA, 4, 1, 8, 1): "early_done hang hang hang ok ok ok ok",
    (LayoutKind.MLA, 4, 1, 1, 1): "ok ok ok hang ok ok ok ok",
    (LayoutKind.MHA, 4, 4, 8, 2): "early_done ok ok hang hang hang ok ok",
    (LayoutKind.MLA, 4, 4, 1, 2): "early_done ok ok hang hang hang ok ok",
    (LayoutKind.MHA, 4, 1, 8, 2): "early_done hang hang hang hang hang ok ok",
}

POWERS = (1, 2, 4, 8, 16)
GRID = tuple(product(POWERS, POWERS, (*POWERS, 32)))


def column(release):
    """The span of releases to which one belongs."""
    return max(i for i, first in enumerate(COLUMNS) if Version(first) <= Version(release))


def head_class(p, d, t):
    """The class of sizes, as the table defines it."""
    if p == d:
        return "A"
    if p > d:
        return "Dd" if t < p else "B" if d == 1 else "C"
    if d <= t:
        return "E"
    return "F" if p == t else "G" if p < t else "H"


def outcome(release, p, d, t, **rest):
    return judge(find_release(release), p, d, t, **rest).outcome.value


@pytest.mark.parametrize("release", [release.name for release in known_releases()])
def test_every_size_comes_out_as_its_class(release):
    expected = {size: BY_CLASS[head_class(*size)].split()[column(release)] for size in GRID}
    assert {size: outcome(release, *size) for size in GRID} == expected


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("B", [(4, 1, 8), (8, 1, 8), (4, 1, 4)]),
        ("C", [(4, 2, 8), (8, 4, 8), (8, 2, 8)]),
        ("Dd", [(4, 1, 2), (8, 4, 4), (16, 8, 8)]),
        ("E", [(1, 4, 8), (2, 4, 4), (4, 8, 8)]),
        ("F", [(2, 4, 2), (4, 8, 4), (1, 2, 1), (8, 16, 8)]),
        ("G", [(1, 4, 2), (1, 8, 4), (2, 8, 4), (4, 16, 8)]),
        ("H", [(4, 8, 2), (8, 16, 4), (8, 16, 2), (2, 4, 1)]),
    ],
)
def test_the_examples_belong_to_their_class(name, sizes):
    assert {head_class(*size) for size in sizes} == {name}


@pytest.mark.parametrize("release", [release.name for release in known_releases()])
@pytest.mark.parametrize("case", COMPLETION, ids=str)
def test_completion(release, case):
    kind, p, d, t, pp = case
    made = Case(kind=kind, prefill_tp=p, decode_tp=d, kv_heads=t, pp=pp)
    finishes = COMPLETION[case].split()[column(release)] != "hang"
    assert counts_all_senders(find_release(release).connector, made) is finishes


@pytest.mark.parametrize("case", COMPLETION, ids=str)
def test_0_5_6_is_done_before_all_senders_are(case):
    kind, p, d, t, pp = case
    assert outcome("0.5.6", p, d, t, pp=pp, kind=kind) == COMPLETION[case].split()[0]


def gate(version, p, d, t, *, pp=1, kind=LayoutKind.MHA):
    """The one-line gate: whether a release is safe."""
    v = Version(version)

    def since(text):
        return v >= Version(text)

    mla, swa, mamba = (kind is one for one in (LayoutKind.MLA, LayoutKind.SWA, LayoutKind.HYBRID))
    hybrid = swa or mamba
    return (
        max(p, d) % min(p, d) == 0
        and (version != "0.5.12" or hybrid)
        and (
            mla
            or p == d
            or (p > d and since("0.5.12.post1"))
            or (
                p < d and (d <= t or (p <= t and since("0.5.17")) or (p >= t and version in ("0.5.11", "0.5.12.post1")))
            )
        )
        and (
            pp == 1
            or since("0.5.17")
            or (not since("0.5.12") and (mla or p <= d) and not (hybrid and version == "0.5.11"))
        )
        and (p == d or not swa or (since("0.5.22") and pp == 1))
        and (p == d or not mamba or since("0.5.16"))
    )


def layers_pair(release, p, d, _t, kind):
    """Whether two prefill stages find their layers in a decode of one, as seen when 0.5.13 to 0.5.23 were executed."""
    v = Version(release)
    if kind is LayoutKind.MLA:
        return not Version("0.5.17") <= v < Version("0.5.21")
    if kind is LayoutKind.MHA:
        return p != d or v < Version("0.5.17")
    if kind is LayoutKind.SWA:
        return False
    return v >= Version("0.5.17" if p == d else "0.5.19")


@pytest.mark.parametrize("release", [release.name for release in known_releases()])
@pytest.mark.parametrize("kind", LayoutKind)
@pytest.mark.parametrize("pp", [1, 2])
def test_the_gate_agrees(release, kind, pp):
    """All but its blind spots: the race of 0.5.6 with PP, extra state before 0.5.9 (sglang #18939), and the layers of
    prefill stages, which the gate does not look at."""
    races = pp > 1 and Version(release) < Version("0.5.7")
    loses_state = kind in (LayoutKind.SWA, LayoutKind.HYBRID) and Version(release) < Version("0.5.9")
    for size in GRID:
        if pp > 1 and not layers_pair(release, *size, kind):
            continue
        safe = gate(release, *size, pp=pp, kind=kind) and not races and not loses_state
        assert judge(find_release(release), *size, pp=pp, kind=kind).ok is safe, size
