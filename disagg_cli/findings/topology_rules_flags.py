"""Rules about flags and environment variables that the SGLang release, or the router, does not know."""

from collections.abc import Iterator

from disagg_cli.engine.flags import FlagList, every_flag, nearest, router_flags
from disagg_cli.findings.finding import Finding, finding
from disagg_cli.findings.topology_case import Case, doubtful
from disagg_cli.topology.deployment import Pool

OURS = ("SGLANG_PLUGINS",)
"""Set by disagg, or read by what is not in SGLang's own sources."""

POLICIES = ("random", "round_robin", "cache_aware", "power_of_two", "manual")


def _certain(case: Case, flags: FlagList) -> bool:
    return case.certain and flags.exact


def _unknown(case: Case) -> Iterator[tuple[Pool, str, FlagList]]:
    """Every flag that this release does not take, with its pool."""
    flags = case.flags
    for pool in case.deployment.pools if flags else ():
        for flag in pool.worker.args:
            if flags and (not flags.spelt_out(flag) or (flag in flags.removed and flag not in flags.known)):
                yield pool, flag, flags


def unknown_flag(case: Case) -> Iterator[Finding]:
    """DSG701: a flag that this SGLang does not know.

    A warning where the release is not sure, or its list of flags is a neighbour's; unless no release knows the flag.
    """
    for pool, flag, flags in _unknown(case):
        if flag in flags.removed:
            continue
        near = flags.nearest(flag)
        fix = f"did you mean --{near}?" if near else None
        message = f"SGLang {flags.release} knows no --{flag}"
        found = finding("DSG701", message, where=case.at(pool, "args", flag), fix=fix)
        invented = flags.exact and flag not in every_flag()
        yield found if _certain(case, flags) or (case.installed and invented) else doubtful(found)


def removed_flag(case: Case) -> Iterator[Finding]:
    """DSG702: a flag that earlier releases knew."""
    for pool, flag, flags in _unknown(case):
        if flag in flags.removed:
            message = f"--{flag} was removed in SGLang {flags.removed[flag]} (judged by {flags.release})"
            meant = flags.spelt_out(flag) or (flags.nearest(flag),)
            names = " or ".join(f"--{name}" for name in meant if name)
            fix = f"leave it out, or use {names} if that is meant" if names else "leave it out"
            found = finding("DSG702", message, where=case.at(pool, "args", flag), fix=fix)
            yield found if _certain(case, flags) else doubtful(found)


def deprecated_flag(case: Case) -> Iterator[Finding]:
    """DSG703: a flag that SGLang calls deprecated."""
    for pool in case.deployment.pools if case.flags else ():
        for flag in pool.worker.args:
            if case.flags and flag in case.flags.deprecated:
                message = f"--{flag} is deprecated in SGLang {case.flags.release}"
                yield finding("DSG703", message, where=case.at(pool, "args", flag))


def abbreviated_flag(case: Case) -> Iterator[Finding]:
    """DSG704: a flag that is the beginning of another, or of several."""
    for pool in case.deployment.pools if case.flags else ():
        for flag in pool.worker.args:
            meant = case.flags.spelt_out(flag) if case.flags else ()
            if case.flags and len(meant) == 1 and meant[0] != flag and flag not in case.flags.removed:
                message, fix = f"--{flag} is short for --{meant[0]}", f"write {meant[0]}"
                yield finding("DSG704", message, where=case.at(pool, "args", flag), fix=fix)


def ambiguous_flag(case: Case) -> Iterator[Finding]:
    """DSG705: the beginning of several flags, which SGLang refuses."""
    for pool in case.deployment.pools if case.flags else ():
        for flag in pool.worker.args:
            meant = case.flags.spelt_out(flag) if case.flags else ()
            if case.flags and len(meant) > 1 and flag not in case.flags.removed:
                message = f"--{flag} may be {', '.join(f'--{name}' for name in meant[:4])}"
                found = finding("DSG705", message, where=case.at(pool, "args", flag))
                yield found if _certain(case, case.flags) else doubtful(found)


def value_or_switch(case: Case) -> Iterator[Finding]:
    """DSG706: a value for a switch, or none for a flag that wants one."""
    for pool in case.deployment.pools if case.flags else ():
        for flag, value in pool.worker.args.items():
            if case.flags is None or flag not in case.flags.known:
                continue
            message = None
            if flag in case.flags.switches and not isinstance(value, bool):
                message = f"--{flag} takes no value, and is given {value!r}"
            elif flag in case.flags.values and flag not in case.flags.switches and value is True:
                message = f"--{flag} wants a value, and is given none"
            if message:
                yield finding("DSG706", message, where=case.at(pool, "args", flag))


def unknown_environment(case: Case) -> Iterator[Finding]:
    """DSG707: an environment variable of SGLang's that this release does not read."""
    flags = case.flags
    for pool in case.deployment.pools if flags and flags.environment else ():
        for name in pool.worker.env:
            if flags and name.startswith("SGLANG_") and name not in flags.environment and name not in OURS:
                near = nearest(name, flags.environment)
                fix = f"did you mean {near}?" if near else None
                message = f"SGLang {flags.release} reads no {name}"
                yield finding("DSG707", message, where=case.at(pool, "env", name), fix=fix)


def unknown_router_flag(case: Case) -> Iterator[Finding]:
    """DSG711: a flag that the router does not know."""
    release, known = router_flags()
    for flag in case.deployment.router.args:
        if not any(name.startswith(flag) for name in known):
            near = nearest(flag, known)
            message = f"sglang-router {release} knows no --{flag}"
            fix = f"did you mean --{near}?" if near else None
            found = finding("DSG711", message, where=f"router.args.{flag}", fix=fix)
            yield found if case.facts.packages.get("sglang-router") == release else doubtful(found)


def unknown_policy(case: Case) -> Iterator[Finding]:
    """DSG712: a balancing policy that the router does not know."""
    policy = case.deployment.router.policy
    if policy not in POLICIES:
        near = nearest(policy, POLICIES)
        message = f"the router knows no policy {policy!r}; known: {', '.join(POLICIES)}"
        yield finding("DSG712", message, where="router.policy", fix=f"did you mean {near}?" if near else None)


RULES = (
    unknown_flag,
    removed_flag,
    deprecated_flag,
    abbreviated_flag,
    ambiguous_flag,
    value_or_switch,
    unknown_environment,
    unknown_router_flag,
    unknown_policy,
)
