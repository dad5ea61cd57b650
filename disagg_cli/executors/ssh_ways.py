"""The ways between machines, tried before the first server: from here to each host, and from host to host.

Health checks, the proof and the eval are plain connections from here. The router asks every worker, decode asks
prefill's bootstrap server, and the nodes of a worker meet at its first. Listeners that live for a moment stand where
the servers will. What NIXL and NCCL open beside that, at ports of the kernel's choice, is left to the proof.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from disagg_cli.errors import DisaggError
from disagg_cli.executors.ssh_connection import Connection
from disagg_cli.topology import survey
from disagg_cli.topology.deployment import Host
from disagg_cli.topology.machine import HostFacts

Ports = Mapping[Host, Mapping[int, str]]
Places = dict[str, list[int]]
"""Ports by address."""
EVERYWHERE = ("0.0.0.0", "::")
ASKED = ("router", " http", " bootstrap", " dist-init")
"""How those that somebody on another machine connects to are called."""


async def with_ways(
    facts: Sequence[HostFacts], ports: Ports, at: Callable[[str], Connection], within: float
) -> tuple[HostFacts, ...]:
    """The same facts, with what cannot be reached of each host.

    ports: what will listen where. at: the connection to a host. within: seconds for an answer.
    """
    there = {one.host: _bindable(one, ports) for one in facts if not one.problem}
    problems: dict[str, DisaggError] = {}

    async def ask(host: str, do: str, **what: Any) -> Places:
        try:
            return await at(host).ask(do, **what) or {}
        except DisaggError as error:
            problems[host] = error
            return {}

    async def of_all(do: str, where: Callable[[str], Mapping[str, Any]]) -> list[Places]:
        return await asyncio.gather(*(ask(host, do, **where(host)) for host in there))

    await of_all("listen", lambda host: {"where": _ports(there[host])})
    ours = _together(_ports(places, _asked_from_here) for places in there.values())
    here = asyncio.to_thread(survey.unreached, ours, within)
    from_here, from_hosts = await asyncio.gather(
        here, of_all("reach", lambda host: {"where": _peers(host, there, ports), "timeout": within})
    )
    await of_all("hang_up", lambda _: {})
    lost = dict(zip(there, from_hosts, strict=True))
    return tuple(
        not_looked_at(one.host, problems[one.host])
        if one.host in problems
        else replace(
            one,
            unreachable=_of(there.get(one.host, {}), from_here),
            cut_off={peer: mine for peer in lost if (mine := _of(there.get(one.host, {}), lost[peer]))},
        )
        for one in facts
    )


def not_looked_at(host: str, error: DisaggError) -> HostFacts:
    """What is known of a host that cannot be asked."""
    return HostFacts(host=host, problem=error.what.removeprefix(f"{host}: "), fix=error.fix or "")


def _bindable(host: HostFacts, ports: Ports) -> dict[str, dict[int, str]]:
    """What is asked on a host from others, by address, but for what cannot listen: that has findings of its own."""
    return {
        at.address: {
            port: who
            for port, who in wanted.items()
            if who.endswith(ASKED) and port not in host.taken.get(at.address, ())
        }
        for at, wanted in ports.items()
        if at.name == host.host and at.address not in (*host.foreign, *EVERYWHERE)
    }


def _asked_from_here(who: str) -> bool:
    return who == "router" or who.endswith(" http")


def _asked_by(servers: Collection[str], who: str) -> bool:
    """Whether one of these servers of another host connects to that one."""
    if who.endswith(" http"):
        return "router" in servers
    if who.endswith(" bootstrap"):
        return any(server.startswith("decode-") for server in servers)
    return who.endswith(" dist-init") and who in servers


def _peers(host: str, there: Mapping[str, Mapping[str, Mapping[int, str]]], ports: Ports) -> Places:
    """What the servers of a host connect to on the others."""
    mine = {who for at, wanted in ports.items() if at.name == host for who in wanted.values()}
    others = (places for other, places in there.items() if other != host)
    return _together(_ports(places, lambda who: _asked_by(mine, who)) for places in others)


def _together(several: Iterable[Places]) -> Places:
    """Hosts may have one address: 127.0.0.1, say, where ssh reaches them at ports that are forwarded."""
    found: Places = {}
    for places in several:
        for address, ports in places.items():
            found.setdefault(address, []).extend(ports)
    return found


def _ports(places: Mapping[str, Mapping[int, str]], which: Callable[[str], bool] = lambda _: True) -> Places:
    found = {address: [port for port, who in listens.items() if which(who)] for address, listens in places.items()}
    return {address: chosen for address, chosen in found.items() if chosen}


def _of(places: Mapping[str, Collection[int]], lost: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """What is lost of these places; other hosts may have lost theirs at the same address."""
    found = {address: tuple(port for port in lost.get(address, ()) if port in mine) for address, mine in places.items()}
    return {address: ports for address, ports in found.items() if ports}
