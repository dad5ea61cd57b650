"""What a request moves: bytes per rank, fan-in and fan-out, and the least time that a link needs for it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from disagg_cli.errors import UsageError
from disagg_cli.facts import read_facts
from disagg_cli.kv.plan import SlicePlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A way between two GPUs, with its line rate in one direction."""

    name: str
    label: str
    bytes_per_s: float
    transport: str
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """One request of `tokens` tokens through a plan.

    `request_bytes` counts every byte of the model once; `wire_bytes` counts what is written, replicas included.
    `sent` and `received` are bytes of the busiest prefill rank (of its largest stage) and the busiest decode rank;
    `fan_out` and `fan_in` count decode ranks per prefill rank and senders per decode rank.
    """

    tokens: int
    request_bytes: int
    wire_bytes: int
    sent: int
    received: int
    fan_out: int
    fan_in: int

    def seconds(self, link: Link) -> float:
        """The least time on a link that each rank has for itself: its line rate, no latency, no protocol."""
        return max(self.sent, self.received) / link.bytes_per_s

    def document(self) -> dict[str, Any]:
        """The traffic as JSON shows it, with the least time on every known link."""
        return {
            "tokens": self.tokens,
            "request_bytes": self.request_bytes,
            "wire_bytes": self.wire_bytes,
            "sent_by_busiest_prefill_rank": self.sent,
            "received_by_busiest_decode_rank": self.received,
            "fan_out": self.fan_out,
            "fan_in": self.fan_in,
            "least_seconds": {name: self.seconds(link) for name, link in links().items()},
        }


@cache
def links() -> Mapping[str, Link]:
    """Every known link, fastest first."""
    facts = read_facts(Path(__file__).with_name("links.yaml"))
    return MappingProxyType({name: Link(name=name, **fact) for name, fact in facts.items()})


def find_link(name: str) -> Link:
    """Find a link by name. Raises UsageError for an unknown one."""
    if name not in links():
        raise UsageError(f"unknown link {name!r}", fix=f"one of {', '.join(links())}")
    return links()[name]


def measure(plan: SlicePlan, tokens: int) -> Traffic:
    """Count what one request of so many tokens moves. Raises UsageError for less than one token."""
    if tokens < 1:
        raise UsageError(f"tokens must be at least 1, not {tokens}")
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    share = plan.layout.request_bytes(tokens) - plan.layout.state_bytes
    per_token = plan.layout.bytes_per_token
    for route in plan.routes:
        size = route.bytes_per_token * share // per_token
        sent[route.prefill_rank] += size
        received[route.decode_rank] += size
    for move in plan.state_routes:
        sent[move.prefill_rank] += move.bytes_per_request
        received[move.decode_rank] += move.bytes_per_request
    out = Counter(route.prefill_rank for route in plan.routes)
    into = Counter(route.decode_rank for route in plan.routes)
    largest = max((len(stage.layers) for stage in plan.stages), default=plan.layout.num_layers)
    return Traffic(
        tokens=tokens,
        request_bytes=plan.layout.request_bytes(tokens),
        wire_bytes=sum(received.values()),
        sent=max(sent.values(), default=0) * largest // plan.layout.num_layers,
        received=max(received.values(), default=0) // plan.decode.pp,
        fan_out=max(out.values(), default=0),
        fan_in=max(into.values(), default=0) * (plan.prefill.pp if plan.decode.pp == 1 else 1),
    )
