"""Run one prefill/decode case on the installed connector, and say what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from disagg_cli.connector.case import Outcome
from disagg_cli.connector.conformance.agent import NixlRefused
from disagg_cli.connector.conformance.installed import (
    ConnectorChanged,
    Installed,
    PrefillRank,
    Worker,
    target_ranks,
)
from disagg_cli.connector.conformance.ranks import Rank, Side, build_rank
from disagg_cli.kv.layout import KVLayout, LayoutKind
from disagg_cli.kv.parallelism import Parallelism
from disagg_cli.kv.stages import layers_of_stage


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """What the installed connector did. `wrong_ranks` are (pool, decode rank) whose bytes are not the model's."""

    outcome: Outcome
    detail: str
    keys_expected: int | None = None
    wrong_ranks: tuple[int, ...] = ()


def observe(installed: Installed, layout: KVLayout, prefill: Parallelism, pools: Sequence[Parallelism]) -> Observed:
    """Move one request to every rank of every decode pool, one pool after another, and compare the bytes.

    Raises ConnectorChanged where this release cannot be driven.
    """
    source = Worker(layout=layout, tp=prefill.attention_tp, pp=prefill.pp)
    senders = _senders(installed, source)
    wrong: list[int] = []
    keys: int | None = None
    for number, pool in enumerate(pools):
        target = Worker(layout=layout, tp=pool.attention_tp, pp=pool.pp)
        try:
            keys, faulty = _serve(installed, senders, source, target, number)
        except ConnectorChanged:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the installed code raises is the observation
            return Observed(outcome=_outcome(error), detail=f"{type(error).__name__}: {error}", keys_expected=keys)
        wrong += faulty
    if wrong:
        ranks = ", ".join(str(rank) for rank in wrong[:8])
        return Observed(
            outcome=Outcome.WRONG_BYTES,
            detail=f"wrong or missing bytes on decode rank(s) {ranks}",
            keys_expected=keys,
            wrong_ranks=tuple(wrong),
        )
    return Observed(outcome=Outcome.OK, detail="every byte is right", keys_expected=keys)


def _senders(installed: Installed, source: Worker) -> dict[tuple[int, int], PrefillRank]:
    """Every prefill rank of every stage, with its request's KV in place."""
    made = {}
    for stage in range(source.pp):
        layers = layers_of_stage(source.layout.num_layers, source.pp, stage)
        for number in range(source.tp):
            rank = build_rank(source.layout, Side(source.tp, number, layers, prefill=True), filled=True)
            made[number, stage] = PrefillRank(installed, source, rank, stage)
    return made


def _serve(
    installed: Installed,
    senders: dict[tuple[int, int], PrefillRank],
    source: Worker,
    target: Worker,
    pool: int,
) -> tuple[int, list[int]]:
    """Fill every rank of one decode pool; return the keys each waits for, and the ranks whose bytes are wrong."""
    keys, wrong = 0, []
    for stage in range(target.pp):
        layers = layers_of_stage(target.layout.num_layers, target.pp, stage)
        for number in range(target.tp):
            side = Side(target.tp, number, layers, prefill=False)
            empty, right = (build_rank(target.layout, side, filled=filled) for filled in (False, True))
            info = target_ranks(installed, target.layout, target, source, number)
            keys = info.required_prefill_response_num
            stages = range(source.pp) if target.pp == 1 else (stage,)
            for sender in _real(source.layout, info):
                for of in stages:
                    _deliver(senders[sender, of], f"decode-{pool}-{stage}-{number}", target, empty)
            if not _same(empty, right):
                wrong.append(number)
    return keys, wrong


def _real(layout: KVLayout, info: object) -> list[int]:
    """The ranks that send; for MLA all but one are contacted in vain (`_setup_bootstrap_infos`)."""
    ranks: list[int] = list(getattr(info, "target_tp_ranks"))  # noqa: B009 - SGLang's record is untyped
    return [getattr(info, "target_tp_rank")] if layout.kind is LayoutKind.MLA else ranks  # noqa: B009


def _deliver(sender: PrefillRank, name: str, target: Worker, peer: Rank) -> None:
    sender.register(name, target, peer)
    sender.send(name)


def _same(got: Rank, right: Rank) -> bool:
    """Whether every cell is the model's, written or left empty."""
    pairs = zip(got.buffers, right.buffers, strict=True)
    return all(np.array_equal(one.cells, other.cells) for one, other in pairs)


def _outcome(error: Exception) -> Outcome:
    """Name what the installed code raised."""
    if isinstance(error, NixlRefused):
        if "empty list" in str(error):
            return Outcome.EMPTY_TRANSFER
        return Outcome.NOT_FOUND if error.code == "NIXL_ERR_NOT_FOUND" else Outcome.RUNTIME_ERROR
    if isinstance(error, AssertionError):
        return Outcome.ASSERTION
    return Outcome.ZERO_DIVISION if isinstance(error, ZeroDivisionError) else Outcome.RUNTIME_ERROR
