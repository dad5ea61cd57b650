"""What the topology rules look at: a deployment, what is known of the machine, and how to ask about flags."""

import ipaddress
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

from packaging.version import Version

from disagg_cli.connector.releases import Choice, Origin, choose_release
from disagg_cli.findings.finding import Finding, Severity
from disagg_cli.kv.layout import KVLayout
from disagg_cli.topology.deployment import Deployment, Pool, Worker
from disagg_cli.topology.flags import FlagList, flags_of
from disagg_cli.topology.machine import Facts
from disagg_cli.topology.values import Scalar

WILDCARD = ("0.0.0.0", "::", "[::]", "*")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One deployment under judgement. layout: the model's KV layout, None where it is not known.

    host: whose facts these are, and then the deployment's pools are what runs there; None for this machine's.
    """

    deployment: Deployment
    facts: Facts = field(default_factory=Facts)
    layout: KVLayout | None = None
    host: str | None = None

    @cached_property
    def choice(self) -> Choice:
        """The release to judge by: the topology's, else the installed one, else the newest known."""
        return choose_release(self.deployment.sglang, installed=self.facts.installed)

    @cached_property
    def release(self) -> Version:
        """The same as something to compare."""
        return Version(Version(self.choice.sglang).public)

    @property
    def certain(self) -> bool:
        """Whether the workers run this release for sure: the topology says so, or they run what is installed here."""
        origin = self.choice.origin
        return origin is Origin.ASKED or (origin is Origin.INSTALLED and self.deployment.executor == "local")

    @property
    def installed(self) -> bool:
        """Whether the release is at least the one that is installed here."""
        return self.choice.origin is Origin.INSTALLED

    @cached_property
    def flags(self) -> FlagList | None:
        """The flags that this release knows."""
        return (self.facts.flags if self.installed else None) or flags_of(self.choice.sglang)

    def before(self, release: str) -> bool:
        """Whether the workers' release is older."""
        return self.release < Version(release)

    def at(self, pool: Pool, kind: str, name: str) -> str:
        """Where a flag or variable of a pool stands: in the pool, or under `engine`."""
        where = f"{pool.where}.{kind}.{name}"
        return where if self.deployment.places.in_pool(where) else f"engine.{kind}.{name}"

    def role(self, role: str) -> tuple[Pool, ...]:
        """The pools of a role."""
        return tuple(pool for pool in self.deployment.pools if pool.role == role)

    @property
    def pairs(self) -> Iterator[tuple[Pool, Pool]]:
        """Every prefill pool with every decode pool."""
        return product(self.role("prefill"), self.role("decode"))

    @cached_property
    def across_hosts(self) -> bool:
        """Whether some prefill and some decode worker are on different hosts."""
        hosts = {worker.host.name for worker in self.deployment.workers if not worker.host.invented}
        return len(hosts) > 1

    @property
    def nixl(self) -> bool:
        """Whether NIXL moves KV."""
        return all(self.backend(pool) == "nixl" for pool in self.deployment.pools)

    def backend(self, pool: Pool) -> str:
        """What moves a pool's KV."""
        return str(arg(pool, "disaggregation-transfer-backend") or self.deployment.connector.backend)


def arg(pool: Pool, *names: str) -> Scalar | None:
    """A flag's value, by any of its spellings; None where it is not given. Several values come as one text."""
    value = next((pool.worker.args[name] for name in names if name in pool.worker.args), None)
    return " ".join(map(str, value)) if isinstance(value, tuple) else value


def number(pool: Pool, *names: str) -> int | None:
    """The same as a whole number, None where it is none."""
    value = arg(pool, *names)
    try:
        return None if value is None or isinstance(value, bool | float) else int(value)
    except ValueError:
        return None


def fraction(text: Scalar | None) -> float | None:
    """A flag's or variable's text as a number, None where it is none."""
    try:
        number = None if text is None or isinstance(text, bool) else float(text)
    except (ValueError, OverflowError):
        return None
    return None if number is None or math.isnan(number) else number


def context_parallel(pool: Pool) -> int:
    """Ranks that share one sequence's attention."""
    return number(pool, "attn-cp-size", "attention-context-parallel-size") or 1


def attention_tp(worker: Worker) -> int:
    """Ranks that share one copy of the KV heads."""
    return worker.tp // worker.dp if worker.dp_attention else worker.tp


def loopback(address: str) -> bool:
    """Whether an address means the machine that asks."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address.lower().partition(".")[0] in ("localhost", "ip6-localhost", "localhost6")
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def some(words: Sequence[str], most: int = 4) -> str:
    """The words, or the first of many."""
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def doubtful(found: Finding) -> Finding:
    """The finding as a warning: likely, and not certain."""
    return replace(found, severity=Severity.WARNING)


def noted(found: Finding) -> Finding:
    """The finding as a note."""
    return replace(found, severity=Severity.NOTE)
