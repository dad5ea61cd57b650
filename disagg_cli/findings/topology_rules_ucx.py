"""Rules about what UCX is told: which transports it may use, and so by what KV can travel."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from disagg_cli.facts import read_facts
from disagg_cli.findings.finding import Finding, finding
from disagg_cli.findings.topology_case import Case, noted
from disagg_cli.topology.deployment import Pool
from disagg_cli.topology.flags import nearest

SEES_GPUS = {"cuda_copy", "cuda", "all", "rocm_copy", "rocm"}
NVLINK = {"cuda_ipc", "cuda", "all"}
MNNVL = "UCX_CUDA_IPC_ENABLE_MNNVL"
EFA = ("rdmap", "efa")


@cache
def ucx_facts() -> Mapping[str, Any]:
    """UCX's transports and settings."""
    facts: Mapping[str, Any] = read_facts(Path(__file__).parents[1] / "topology" / "ucx.yaml")
    return facts


def used(pool: Pool) -> bool:
    """Whether NIXL moves the pool's KV by UCX."""
    return pool.worker.env.get("SGLANG_DISAGGREGATION_NIXL_BACKEND", "UCX").upper() == "UCX"


def mnnvl(pool: Pool) -> bool:
    """Whether UCX is told to use NVLink between hosts."""
    return pool.worker.env.get(MNNVL, "").lower() in ("y", "yes", "1", "on", "try")


def over_nvlink(case: Case) -> bool:
    """Whether every pair is in one NVLink domain that reaches beyond a host, and UCX is told to use it."""
    domains = {worker.host.domain for worker in case.deployment.workers}
    return len(domains) == 1 and None not in domains and all(mnnvl(pool) for pool in case.deployment.pools)


@dataclass(frozen=True, kw_only=True, slots=True)
class Transports:
    """UCX_TLS: the words that it lists, or those that it excludes."""

    text: str
    words: frozenset[str]
    excluded: bool

    def has(self, any_of: set[str]) -> bool:
        """Whether one of these transports may be used."""
        return not self.words & (any_of | {"all"}) if self.excluded else bool(self.words & any_of)

    @property
    def between_hosts(self) -> frozenset[str]:
        """The families of transports that reach another host."""
        families = {name: set(words.split()) for name, words in ucx_facts()["families"].items()}
        if self.excluded:
            return frozenset(name for name, words in families.items() if not words & self.words)
        return frozenset(name for name, words in families.items() if words & self.words)

    @property
    def network(self) -> bool:
        """Whether an adapter's own transport may be used, and not TCP alone."""
        return bool(self.between_hosts - {"tcp"})


def transports(pool: Pool) -> Transports | None:
    """A pool's UCX_TLS, None where it is not set."""
    text = pool.worker.env.get("UCX_TLS", "").strip()
    words = frozenset(word.strip().lower() for word in text.lstrip("^").split(",") if word.strip())
    return Transports(text=text, words=words, excluded=text.startswith("^")) if words else None


def _told(case: Case) -> Iterator[tuple[Pool, Transports, str]]:
    """Each pool that tells UCX its transports, and where."""
    for pool in case.deployment.pools:
        tls = transports(pool) if case.nixl and used(pool) else None
        if tls:
            yield pool, tls, case.at(pool, "env", "UCX_TLS")


def blind_to_gpus(case: Case) -> Iterator[Finding]:
    """DSG605: UCX_TLS without the transport by which UCX knows GPU memory."""
    for _, tls, where in () if case.deployment.platform.on_cpu else _told(case):
        if not tls.has(SEES_GPUS):
            yield finding("DSG605", f"UCX_TLS={tls.text} leaves cuda_copy out", where=where)


def mnnvl_contradicted(case: Case) -> Iterator[Finding]:
    """DSG606: NVLink between hosts is asked for and its transport is excluded."""
    for pool, tls, where in _told(case):
        if mnnvl(pool) and not tls.has(NVLINK):
            yield finding("DSG606", f"{MNNVL} is on and UCX_TLS={tls.text} leaves cuda_ipc out", where=where)


def nvlink_left_out(case: Case) -> Iterator[Finding]:
    """DSG610: UCX may not use NVLink, and some pair has nothing else between it. A note inside a host."""
    workers = case.deployment.workers
    domains = {worker.host.domain for worker in workers if worker.role == "prefill"}
    near = any(worker.host.domain in domains - {None} for worker in workers if worker.role == "decode")
    wide = case.deployment.platform.nodes_per_domain > 1
    for pool, tls, where in _told(case) if near and case.deployment.platform.device == "cuda" else ():
        if not tls.has(NVLINK) and tls.has(SEES_GPUS) and not mnnvl(pool):
            message = f"UCX_TLS={tls.text} leaves cuda_ipc out: KV goes over the NIC although NVLink reaches"
            found = finding("DSG610", message, where=where)
            yield found if wide else noted(found)


def tcp_only(case: Case) -> Iterator[Finding]:
    """DSG607: nothing but TCP between hosts."""
    for _, tls, where in _told(case) if case.across_hosts and not over_nvlink(case) else ():
        if not tls.network and "tcp" in tls.between_hosts:
            yield finding("DSG607", f"UCX_TLS={tls.text}: KV between hosts goes over TCP", where=where)


def mnnvl_memory(case: Case) -> Iterator[Finding]:
    """DSG608: NVLink between hosts without a network transport to fall back to."""
    for pool, tls, where in _told(case) if case.across_hosts else ():
        if mnnvl(pool) and not tls.network:
            message = f"UCX_TLS={tls.text} carries KV by nothing else where MNNVL fails"
            yield finding("DSG608", message, where=where)


def no_way_between(case: Case) -> Iterator[Finding]:
    """DSG619: two hosts whose UCX has no transport in common."""
    if not (case.nixl and case.across_hosts) or over_nvlink(case):
        return
    for prefill, decode in case.pairs:
        ours, theirs = transports(prefill), transports(decode)
        if not (ours and theirs and used(prefill) and used(decode)):
            continue
        if ours.between_hosts & theirs.between_hosts or _same_host(prefill, decode):
            continue
        message = f"UCX_TLS={ours.text} on {prefill.where} and {theirs.text} on {decode.where}"
        said = (
            "have nothing in common that reaches another host" if ours.text != theirs.text else "reaches no other host"
        )
        message = f"{message} {said}" if ours.text != theirs.text else f"UCX_TLS={ours.text} {said}"
        yield finding("DSG619", message, where=case.at(decode, "env", "UCX_TLS"))


def _same_host(prefill: Pool, decode: Pool) -> bool:
    hosts = {worker.host.name for pool in (prefill, decode) for worker in pool.workers}
    return len(hosts) == 1


def unknown_transport(case: Case) -> Iterator[Finding]:
    """DSG621: a word in UCX_TLS that is no transport: UCX warns, and goes on without it."""
    known = tuple(ucx_facts()["transports"].split())
    for _, tls, where in _told(case):
        for word in sorted(tls.words):
            if (name := word.partition(":")[0]) not in known:
                near = nearest(name, known)
                message = f"UCX {ucx_facts()['release']} has no transport {name!r} (UCX_TLS={tls.text})"
                yield finding("DSG621", message, where=where, fix=f"did you mean {near}?" if near else None)


def unknown_setting(case: Case) -> Iterator[Finding]:
    """DSG622: a variable that is like one of UCX's, and is none."""
    for pool in case.deployment.pools:
        for name in pool.worker.env:
            if name.startswith("UCX_") and (near := _meant(name.removeprefix("UCX_"))):
                message = f"UCX {ucx_facts()['release']} reads no {name}"
                yield finding("DSG622", message, where=case.at(pool, "env", name), fix=f"did you mean UCX_{near}?")


@cache
def _meant(setting: str) -> str | None:
    """The setting that a misspelt one means; None for one that there is, or that is like none."""
    known = frozenset(ucx_facts()["variables"].split())
    return None if setting in known else nearest(setting, known)


def efa_by_ucx(case: Case) -> Iterator[Finding]:
    """DSG624: AWS's EFA through UCX, which falls back to TCP."""
    for pool in case.deployment.pools if case.nixl else ():
        env = pool.worker.env
        devices = env.get("UCX_NET_DEVICES", "").split(",")
        efa = next((name for name in devices if name.startswith(EFA)), None)
        name = "UCX_NET_DEVICES" if efa else "FI_PROVIDER" if env.get("FI_PROVIDER", "").lower() == "efa" else None
        if name and used(pool):
            message = f"{name}={env[name]} on {pool.where} is EFA, and NIXL uses UCX"
            yield finding("DSG624", message, where=case.at(pool, "env", name))


RULES = (
    blind_to_gpus,
    mnnvl_contradicted,
    nvlink_left_out,
    tcp_only,
    mnnvl_memory,
    no_way_between,
    unknown_transport,
    unknown_setting,
    efa_by_ucx,
)
