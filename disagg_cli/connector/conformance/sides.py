"""Both ends of a request: the real managers, receiver and sender of a release, talking to each other over a wire.

A decode rank finds out which prefill ranks to ask, and writes to them; a prefill rank reads that, prepares its
transfers and sends; the decode rank counts who has finished. All of it is the release's own code, from the form of its
messages to the tags of its notices. What differs between releases is here and in kv_args.py, each difference with the
release that made it.
"""

import inspect
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from disagg_cli.connector.conformance.installed import ConnectorChanged, Installed, Worker, changes_named, known
from disagg_cli.connector.conformance.kv_args import page_indices, state_indices
from disagg_cli.connector.conformance.manager import Made, Place, make_manager, surroundings
from disagg_cli.connector.conformance.ranks import PAGE, Rank

ADDRESS = "prefill:8998"
"""The bootstrap server of the one prefill worker."""


@dataclass(slots=True)
class Letters:
    """What one sender told one decode rank: notices of its NIXL transfers, and messages."""

    notices: list[bytes] = field(default_factory=list)
    messages: list[list[bytes]] = field(default_factory=list)


def prefill_port(rank: int, stage: int) -> int:
    """Where a prefill rank listens."""
    return 10_000 + 1_000 * stage + rank


def decode_port(rank: int, stage: int, pool: int) -> int:
    """Where a decode rank listens."""
    return 20_000 + 5_000 * pool + 1_000 * stage + rank


class DecodeRank:
    """One decode rank: asks for one request, and counts."""

    def __init__(self, installed: Installed, place: Place, prefill: Worker, room: int) -> None:
        self.name = f"decode-{place.port}"
        self.place = place
        self._installed = installed
        self._room = room
        self._made = make_manager(installed, place, self.name)
        self.asked: list[tuple[int, int]] = []
        with self._at_work(), changes_named():
            self._receiver = self._ask(prefill)

    @property
    def keys_expected(self) -> int:
        """How many senders it waits for."""
        return int(self._receiver.required_prefill_response_num)

    def done(self, letters: Letters) -> bool:
        """Read what a sender told, and say whether the request now counts as done.

        Raises RuntimeError where it has failed.
        """
        self._made.agent.arrived += letters.notices
        for message in letters.messages:
            self.place.wire.inbox(self.place.port).put(message)
        poll = self._installed.base.KVPoll
        with self._at_work(), changes_named():
            self._made.threads.run("decode_")  # since 0.5.23 it listens; before, polling reads NIXL's notices
            status = self._receiver.poll()
        if status == poll.Failed:
            raise RuntimeError(f"decode gives up: {self._made.manager.failure_records}")
        return bool(status == poll.Success)

    def _ask(self, prefill: Worker) -> Any:
        """Map ranks, register, and ask for the request: all as the release does it, but for HTTP."""
        installed, manager = self._installed, self._made.manager
        receiver_type = self._receiver_type(prefill)
        rank = self.place.rank
        request = {
            "kv_indices": page_indices(rank),
            "aux_index": rank.side.aux,
            "state_indices": state_indices(installed, self.place.worker.layout, rank),
        }
        if not installed.maps_ranks_once:
            receiver = receiver_type(manager, ADDRESS, self._room, 0)
            receiver.init(**request)
            return receiver
        manager.prefill_info_table[ADDRESS] = info = _prefill_info(prefill)
        manager._resolve_rank_mapping(info)
        receiver = receiver_type(manager, ADDRESS, self._room)
        receiver.init(0)
        receiver.send_metadata(**request)
        return receiver

    def _receiver_type(self, prefill: Worker) -> Any:
        """The release's receiver, with its three ways out of the process replaced."""
        base, wire, asked = self._installed.nixl.NixlKVReceiver, self.place.wire, self.asked
        parameters = inspect.signature(base._get_bootstrap_info_from_server)
        page = (PAGE,) if self._installed.compares_pages else ()

        def bootstrap_info(receiver: Any, *args: Any) -> dict[str, Any] | None:
            wanted = parameters.bind(receiver, *args).arguments
            rank, stage = wanted.get("target_tp_rank", wanted.get("engine_rank")), wanted.get("target_pp_rank")
            if rank is None or stage is None:
                raise ConnectorChanged(f"_get_bootstrap_info_from_server{parameters}")
            if rank >= prefill.tp:
                return None
            asked.append((rank, stage))
            return {"rank_ip": wire.HOST, "rank_port": prefill_port(rank, stage), "pp_rank": stage}

        ways_out = {
            "_get_bootstrap_info_from_server": bootstrap_info,
            "_get_prefill_parallel_info_from_server": lambda _receiver: (prefill.tp, 1, prefill.pp, *page),
            "_connect": classmethod(lambda _type, endpoint, **_how: (wire.connect(endpoint), _NoLock())),
        }
        return type("Receiver", (base,), ways_out)

    def _at_work(self) -> Any:
        return surroundings(self._installed, self.place.worker)


class PrefillRank:
    """One prefill rank: hears what decode ranks ask, and sends."""

    def __init__(self, installed: Installed, place: Place) -> None:
        self.place = place
        self._installed = installed
        self._made: Made = make_manager(installed, place, f"prefill-{place.port}")
        self._failures: list[BaseException] = []
        for name in ("record_failure", "conclude_failure"):
            setattr(self._made.manager, name, self._fail)

    @property
    def agent_calls(self) -> Counter[str]:
        """Its calls to NIXL for transfers."""
        return self._made.agent.calls

    def meet(self, peers: Sequence[DecodeRank]) -> None:
        """Know the memory of decode ranks."""
        memories = {peer.name: peer.place.rank.memory for peer in peers}
        self._made.agent.memories = {**self._made.agent.memories, **memories}

    def serve(self, room: int) -> None:
        """Begin a request, hear who wants it, and send it to them.

        Raises what the connector raises, also where it would only log that.
        """
        rank, manager = self.place.rank, self._made.manager
        poll = self._installed.base.KVPoll
        with surroundings(self._installed, self.place.worker), changes_named():
            sender = self._sender(room)
            self._made.threads.run("bootstrap_thread")
            if manager.request_status.get(room) != poll.WaitingForInput:
                return  # it has not heard from all whom it waits for
            sender.init(len(rank.side.pages), rank.side.aux)
            sender.send(page_indices(rank), state_indices(self._installed, self.place.worker.layout, rank))
            for queue in getattr(manager, "transfer_queues", ()):  # since 0.5.12; before, `send` itself transfers
                if queue:
                    self._made.threads.run("transfer_worker", queue)
            if self._failures:
                raise self._failures[0]

    def letters(self, peer: DecodeRank) -> Letters | None:
        """Take what this rank has told a decode rank; None where it has not sent it anything."""
        messages = self.place.wire.inbox(peer.place.port).drain()
        notices = self._made.agent.sent.pop(peer.name, None)
        return Letters(notices or [], messages) if messages or notices is not None else None

    def _sender(self, room: int) -> Any:
        """The release's sender of one request."""
        make = self._installed.nixl.NixlKVSender
        values = {"mgr": self._made.manager, "bootstrap_addr": ADDRESS, "bootstrap_room": room}
        return make(
            **known(make, {**values, "dest_tp_ranks": [self.place.rank.side.rank], "pp_rank": self.place.stage})
        )

    def _fail(self, *_args: Any, **_kwargs: Any) -> None:
        """Keep what went wrong: the transfer threads catch it, and only log it."""
        self._failures.append(sys.exc_info()[1] or RuntimeError("the request failed"))


class _NoLock:
    def __enter__(self) -> None: ...

    def __exit__(self, *_exc: object) -> None: ...


def _prefill_info(prefill: Worker) -> SimpleNamespace:
    """What decode would read from the prefill's bootstrap server."""
    return SimpleNamespace(
        attn_tp_size=prefill.tp,
        attn_cp_size=1,
        dp_size=1,
        pp_size=prefill.pp,
        page_size=PAGE,
        enable_kv_cache_sharding=False,
        enable_dsa_cache_layer_split=False,
        decode_allocation_policy="early",
    )


def same(got: Rank, right: Rank) -> bool:
    """Whether every cell is the model's, written or left empty."""
    pairs = zip(got.buffers, right.buffers, strict=True)
    return all((one.cells == other.cells).all() for one, other in pairs)
