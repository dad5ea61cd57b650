"""All rules about a topology, and the one way to apply them. One function per rule, in files by theme."""

from collections.abc import Iterator, Sequence

from disagg_cli.findings import (
    topology_rules_flags,
    topology_rules_hosts,
    topology_rules_machine,
    topology_rules_memory,
    topology_rules_placement,
    topology_rules_roles,
    topology_rules_router,
    topology_rules_state,
    topology_rules_transport,
    topology_rules_ucx,
)
from disagg_cli.findings.finding import Finding, catalogue, finding
from disagg_cli.findings.topology_case import Case
from disagg_cli.kv.layout import KVLayout
from disagg_cli.topology.deployment import Deployment
from disagg_cli.topology.machine import Facts

THEMES = (
    topology_rules_placement,
    topology_rules_hosts,
    topology_rules_roles,
    topology_rules_state,
    topology_rules_transport,
    topology_rules_ucx,
    topology_rules_flags,
    topology_rules_machine,
    topology_rules_memory,
    topology_rules_router,
)
RULES = tuple(rule for theme in THEMES for rule in theme.RULES)


def judge_topology(
    deployment: Deployment, facts: Facts | None = None, *, layout: KVLayout | None = None
) -> tuple[Finding, ...]:
    """All findings about a topology, but for those that it ignores. Pure: facts of the machine come in as values.

    layout: the model's KV layout, where it is known; rules that need it stay silent without.
    """
    case = Case(deployment=deployment, facts=facts or Facts(), layout=layout)
    found = tuple(dict.fromkeys(found for rule in RULES for found in rule(case)))
    return kept(deployment, found)[0]


def kept(deployment: Deployment, found: Sequence[Finding]) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Divide findings into those that count and those that the topology ignores."""
    ignored = tuple(one for one in found if one.code in deployment.ignore)
    return tuple(one for one in found if one.code not in deployment.ignore), ignored


def needless_ignores(deployment: Deployment, found: Sequence[Finding]) -> Iterator[Finding]:
    """DSG204: a code that is ignored and was not found, or that there is none of."""
    codes = {one.code for one in found}
    for code in deployment.ignore:
        if code not in codes:
            why = "there is no such code" if code not in catalogue() else "there is no such finding here"
            yield finding("DSG204", f"{code} is ignored, and {why}", where=f"ignore.{code}")
