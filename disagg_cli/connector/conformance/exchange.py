"""Run one prefill/decode case on the installed connector, and say what came of it."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from disagg_cli.connector.case import Outcome
from disagg_cli.connector.conformance.agent import NixlRefused
from disagg_cli.connector.conformance.installed import ConnectorChanged, Installed, Worker
from disagg_cli.connector.conformance.manager import Place
from disagg_cli.connector.conformance.ranks import Side, build_rank
from disagg_cli.connector.conformance.sides import (
    DecodeRank,
    Letters,
    PrefillRank,
    decode_port,
    prefill_port,
    same,
)
from disagg_cli.connector.conformance.wire import Wire
from disagg_cli.kv.layout import KVLayout
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.kv.stages import layers_of_stage


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """What the installed connector did: `wrong_ranks` are decode ranks whose bytes are not the model's.

    `agent_calls` counts the calls of all prefill ranks to NIXL, by name.
    """

    outcome: Outcome
    detail: str
    keys_expected: int | None = None
    wrong_ranks: tuple[int, ...] = ()
    agent_calls: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Served:
    """What one decode rank has: whether its bytes are right, and how its count of senders went."""

    rank: int
    keys: int
    right: bool
    finishes: bool
    early: bool


def observe(installed: Installed, layout: KVLayout, prefill: Parallelism, pools: Sequence[Parallelism]) -> Observed:
    """Move a request to every rank of each decode pool in turn; compare the bytes, and count. The first fault is shown.

    Raises ConnectorChanged where this release cannot be driven.
    """
    source = Worker(layout=layout, tp=prefill.attention_tp, pp=prefill.pp)
    wire = Wire()
    senders: dict[tuple[int, int], PrefillRank] = {}
    seen = Observed(outcome=Outcome.OK, detail="no decode pool")
    for number, pool in enumerate(pools):
        target = Worker(layout=layout, tp=pool.attention_tp, pp=pool.pp)
        try:
            senders = senders or _senders(installed, source, wire)
            seen = _observed(_serve(installed, senders, wire, source, target, number))
        except ConnectorChanged:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the installed code raises is the observation
            seen = Observed(outcome=_outcome(error), detail=f"{type(error).__name__}: {error}")
        if seen.outcome is not Outcome.OK:
            break
    return replace(seen, agent_calls=sum((sender.agent_calls for sender in senders.values()), Counter()))


def _observed(served: Sequence[_Served]) -> Observed:
    """What the client sees first: a wait without end, garbage, a race; with it, all that is wrong."""
    findings: list[tuple[Outcome, str, Callable[[_Served], bool]]] = [
        (Outcome.HANG, "never done", lambda one: not one.finishes),
        (Outcome.WRONG_BYTES, "wrong or missing bytes", lambda one: not one.right),
        (Outcome.EARLY_DONE, "done before all have sent", lambda one: one.early),
    ]
    found = [
        (outcome, f"{what} on decode rank(s) {_some(ranks)}")
        for outcome, what, at in findings
        if (ranks := [one.rank for one in served if at(one)])
    ]
    wrong = tuple(one.rank for one in served if not one.right)
    outcome = found[0][0] if found else Outcome.OK
    return Observed(
        outcome=outcome,
        detail="; ".join(text for _, text in found) or "every byte is right, and every sender is waited for",
        keys_expected=served[-1].keys,
        wrong_ranks=wrong if outcome is Outcome.WRONG_BYTES else (),
    )


def _some(ranks: Sequence[int]) -> str:
    return ", ".join(str(rank) for rank in ranks[:8])


def _senders(installed: Installed, source: Worker, wire: Wire) -> dict[tuple[int, int], PrefillRank]:
    """Every prefill rank of every stage, with its request's KV in place."""
    made = {}
    for stage, number in _ranks(source):
        rank = build_rank(source.layout, _side(source, stage, number, prefill=True), filled=True)
        place = Place(worker=source, stage=stage, rank=rank, wire=wire, port=prefill_port(number, stage))
        made[number, stage] = PrefillRank(installed, place)
    return made


def _serve(
    installed: Installed,
    senders: dict[tuple[int, int], PrefillRank],
    wire: Wire,
    source: Worker,
    target: Worker,
    pool: int,
) -> list[_Served]:
    """Serve one request to every rank of a decode pool."""
    room = pool + 1
    asking = []
    for stage, number in _ranks(target):
        rank = build_rank(target.layout, _side(target, stage, number, prefill=False), filled=False)
        place = Place(worker=target, stage=stage, rank=rank, wire=wire, port=decode_port(number, stage, pool))
        asking.append(DecodeRank(installed, place, source, room))
    told: dict[str, list[Letters]] = {peer.name: [] for peer in asking}
    for key, sender in senders.items():
        peers = [peer for peer in asking if key in peer.asked]
        sender.meet(peers)
        if peers:
            sender.serve(room)
        for peer in peers:
            told[peer.name] += [letters] if (letters := sender.letters(peer)) else []
    return [_count(installed, peer, source, room, told[peer.name]) for peer in asking]


def _count(installed: Installed, peer: DecodeRank, source: Worker, room: int, told: Sequence[Letters]) -> _Served:
    """Let a decode rank count its senders, in the order in which they sent and in the opposite one."""
    filled = build_rank(peer.place.worker.layout, peer.place.rank.side, filled=True)
    done_after = []
    for order in (list(told), list(reversed(told))):
        counting = DecodeRank(installed, replace(peer.place, wire=Wire()), source, room)
        done_after.append(next((i for i, letters in enumerate(order, 1) if counting.done(letters)), None))
    return _Served(
        rank=peer.place.rank.side.rank,
        keys=peer.keys_expected,
        right=same(peer.place.rank, filled),
        finishes=None not in done_after,
        early=any(after is not None and after < len(told) for after in done_after),
    )


def _ranks(worker: Worker) -> Iterator[tuple[int, int]]:
    return ((stage, number) for stage in range(worker.pp) for number in range(worker.tp))


def _side(worker: Worker, stage: int, number: int, *, prefill: bool) -> Side:
    return Side(worker.tp, number, layers_of_stage(worker.layout.num_layers, worker.pp, stage), prefill=prefill)


def _outcome(error: Exception) -> Outcome:
    """Name what the installed code raised."""
    if isinstance(error, NixlRefused):
        if "empty list" in str(error):
            return Outcome.EMPTY_TRANSFER
        return Outcome.NOT_FOUND if error.code == "NIXL_ERR_NOT_FOUND" else Outcome.RUNTIME_ERROR
    if isinstance(error, AssertionError):
        return Outcome.ASSERTION
    return Outcome.ZERO_DIVISION if isinstance(error, ZeroDivisionError) else Outcome.RUNTIME_ERROR
