"""Rules about flags, their values and environment variables, as the SGLang release and the router take them."""

from collections.abc import Iterator
from dataclasses import dataclass

from disagg_cli.findings.finding import Finding, finding
from disagg_cli.findings.topology_case import Case, doubtful, some
from disagg_cli.topology.flags import FlagList, every_flag, nearest, router_flags
from disagg_cli.topology.values import FlagValue

OURS = ("SGLANG_PLUGINS",)
"""Set by disagg, or read by what is not in SGLang's own sources."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """One flag as it is given. certain: whether the program that gets it is sure to be the one whose list this is."""

    program: str
    flags: FlagList
    flag: str
    value: FlagValue
    where: str
    certain: bool

    @property
    def meant(self) -> tuple[str, ...]:
        """The flags that the spelling stands for."""
        return self.flags.spelt_out(self.flag)

    def judge(self, found: Finding) -> Finding:
        """The finding as it is, or as a warning where the program may be another release."""
        return found if self.certain else doubtful(found)


def _given(case: Case) -> Iterator[Given]:
    """Every flag of every worker, then those of the router."""
    if flags := case.flags:
        certain = case.certain and flags.exact
        for pool in case.deployment.pools:
            for flag, value in pool.worker.args.items():
                where = case.at(pool, "args", flag)
                yield Given(program="SGLang", flags=flags, flag=flag, value=value, where=where, certain=certain)
    known = router_flags()
    certain = case.facts.packages.get("sglang-router") == known.release
    router = case.deployment.router
    for flag, value in {"policy": router.policy, **router.args}.items():
        where = "router.policy" if flag == "policy" else f"router.args.{flag}"
        yield Given(program="sglang-router", flags=known, flag=flag, value=value, where=where, certain=certain)


def unknown_flag(case: Case) -> Iterator[Finding]:
    """DSG701, DSG711: a flag that this SGLang, or the router, does not know.

    A warning where the release is not sure, or its list of flags is a neighbour's; unless no release knows the flag.
    """
    for one in _given(case):
        if one.meant or one.flag in one.flags.removed:
            continue
        near = one.flags.nearest(one.flag)
        fix = f"did you mean --{near}?" if near else None
        message = f"{one.program} {one.flags.release} knows no --{one.flag}"
        if one.program == "SGLang":
            found = finding("DSG701", message, where=one.where, fix=fix)
            invented = case.installed and one.flags.exact and one.flag not in every_flag()
            yield found if invented else one.judge(found)
        else:
            found = finding("DSG711", message, where=one.where, fix=fix)
            yield found if near else one.judge(found)


def removed_flag(case: Case) -> Iterator[Finding]:
    """DSG702: a flag that earlier releases knew."""
    for one in _given(case):
        if one.flag in one.flags.removed and one.flag not in one.flags.known:
            release = one.flags.removed[one.flag]
            message = f"--{one.flag} was removed in SGLang {release} (judged by {one.flags.release})"
            meant = one.meant or (one.flags.nearest(one.flag),)
            names = " or ".join(f"--{name}" for name in meant if name)
            fix = f"leave it out, or use {names} if that is meant" if names else "leave it out"
            yield one.judge(finding("DSG702", message, where=one.where, fix=fix))


def deprecated_flag(case: Case) -> Iterator[Finding]:
    """DSG703: a flag that SGLang calls deprecated."""
    for one in _given(case):
        if one.flag in one.flags.deprecated:
            message = f"--{one.flag} is deprecated in {one.program} {one.flags.release}"
            yield finding("DSG703", message, where=one.where)


def abbreviated_flag(case: Case) -> Iterator[Finding]:
    """DSG704: a flag that is the beginning of another."""
    for one in _given(case):
        if len(one.meant) == 1 and one.meant[0] != one.flag and one.flag not in one.flags.removed:
            message, fix = f"--{one.flag} is short for --{one.meant[0]}", f"write {one.meant[0]}"
            yield finding("DSG704", message, where=one.where, fix=fix)


def ambiguous_flag(case: Case) -> Iterator[Finding]:
    """DSG705: the beginning of several flags, which the parser refuses."""
    for one in _given(case):
        if len(one.meant) > 1 and one.flag not in one.flags.removed:
            message = f"--{one.flag} may be {', '.join(f'--{name}' for name in one.meant[:4])}"
            yield one.judge(finding("DSG705", message, where=one.where))


def value_or_switch(case: Case) -> Iterator[Finding]:
    """DSG706: a value for a switch, none for a flag that wants one, or several for one that takes one."""
    for one, flag in _plain(case):
        message = None
        if flag in one.flags.switches and not isinstance(one.value, bool):
            message = f"--{flag} takes no value, and is given {_shown(one.value)}"
        elif flag in one.flags.values and one.value is True and flag not in one.flags.optional:
            message = f"--{flag} wants a value, and is given none"
        elif flag in one.flags.values and isinstance(one.value, tuple) and flag not in one.flags.lists:
            message = f"--{flag} takes one value, and is given {len(one.value)}"
        if message:
            yield one.judge(finding("DSG706", message, where=one.where))


def wrong_word(case: Case) -> Iterator[Finding]:
    """DSG708, DSG712: a value that is none of the words that a flag accepts. DSG712 is the router's policy."""
    for one, flag in _plain(case):
        words = one.flags.choices.get(flag)
        for value in _values(one.value) if words else ():
            assert words
            if str(value) in words:
                continue
            near = nearest(str(value), words) or nearest(str(value).lower(), words)
            code = "DSG712" if flag == "policy" else "DSG708"
            message = f"--{flag} {_shown(value)}: {one.program} {one.flags.release} takes {some(words, 12)}"
            found = finding(code, message, where=one.where, fix=f"did you mean {near}?" if near else None)
            yield found if one.program != "SGLang" and near else one.judge(found)


def no_number(case: Case) -> Iterator[Finding]:
    """DSG709: text where a flag wants a number, or a fraction where it wants a whole one."""
    for one, flag in _plain(case):
        kind = int if flag in one.flags.ints else float if flag in one.flags.floats else None
        for value in _values(one.value) if kind else ():
            assert kind
            try:
                kind(str(value))
            except ValueError:
                wanted = "a whole number" if kind is int else "a number"
                several = flag in one.flags.lists and isinstance(one.value, str)
                fix = "write several as a list: [1, 2, 4]" if several else None
                message = f"--{flag} wants {wanted}, and is given {_shown(value)}"
                yield one.judge(finding("DSG709", message, where=one.where, fix=fix))


def _plain(case: Case) -> Iterator[tuple[Given, str]]:
    """Every flag that is known by one name, with that name."""
    return ((one, one.meant[0]) for one in _given(case) if len(one.meant) == 1)


def _values(value: FlagValue) -> tuple[FlagValue, ...]:
    return value if isinstance(value, tuple) else () if isinstance(value, bool) else (value,)


def _shown(value: FlagValue) -> str:
    return repr(value)[:80] if not isinstance(value, tuple) else repr(list(value))[:80]


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


RULES = (
    unknown_flag,
    removed_flag,
    deprecated_flag,
    abbreviated_flag,
    ambiguous_flag,
    value_or_switch,
    wrong_word,
    no_number,
    unknown_environment,
)
