"""Which flags and variables of a GPU topology a rehearsal passes on. Facts in flags.yaml. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from disagg_cli.connector.host_memory import mode
from disagg_cli.engine.start import flags
from disagg_cli.facts import read_facts
from disagg_cli.rehearsal.notes import Note
from disagg_cli.secrets import is_secret
from disagg_cli.topology.synthetic import CONTEXT
from disagg_cli.topology.values import FlagValue

LARGEST_CHUNK = 2048
"""Tokens. The proof of KV sends a prompt beyond the chunk; torch_native takes seconds for longer ones."""

MOST_REQUESTS = 64
"""Requests at once: each has a row of page indices as long as the context."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One entry of flags.yaml."""

    names: tuple[str, ...]
    why: str
    keep: bool = False

    def meets(self, name: str) -> bool:
        """Whether this rule is about that flag or variable."""
        return any(fnmatchcase(name, pattern) for pattern in self.names)


def translate_flags(args: Mapping[str, FlagValue]) -> tuple[dict[str, Any], list[Note]]:
    """The flags that CPU servers get, as YAML has them, and what became of the others."""
    kept: dict[str, Any] = {}
    notes = []
    for flag, value in args.items():
        if rule := next((rule for rule in _rules("flags") if rule.meets(flag)), None):
            notes.append(Note(kind="not covered", what=f"--{flag}", why=rule.why))
            continue
        smaller = _smaller(flag, value)
        kept[flag] = list(smaller) if isinstance(smaller, tuple) else smaller
        if smaller == value:
            notes.append(Note(kind="as written", what=" ".join(flags({flag: value}) or (f"--{flag} false",))))
        else:
            notes.append(Note(kind="reduced", what=f"--{flag} {value} -> {smaller}", why="long prompts, many requests"))
    return kept, notes


def notes_on_defaults(said: Collection[str]) -> list[Note]:
    """What host-memory mode sets where the topology says nothing, and GPUs have otherwise."""
    why = "not said in the topology, and small enough for CPUs"
    unsaid = [flag for flag in ("page-size", "chunked-prefill-size", "max-running-requests") if flag not in said]
    return [
        *(Note(kind="reduced", what=f"--{flag} {mode.ARGS[flag]}", why=why) for flag in unsaid),
        Note(kind="replaced", what="the overlap scheduler by the plain one", why="SGLang's CPU engine"),
    ]


def translate_variables(env: Mapping[str, str]) -> tuple[dict[str, str], list[Note]]:
    """The same for variables. Values are not told: some are secrets."""
    kept, notes = {}, []
    for name, value in env.items():
        rule = next(rule for rule in _rules("variables") if rule.meets(name))
        if rule.keep and not (is_secret(name, value) and not _number(value)):
            kept[name] = value
            notes.append(Note(kind="as written", what=name))
        else:
            notes.append(Note(kind="not covered", what=name, why=rule.why))
    return kept, notes


def _number(value: str) -> bool:
    """Whether this is a setting that only sounds like a secret, such as SGLANG_INIT_NEW_TOKEN_RATIO."""
    return value.replace(".", "", 1).isdecimal()


def _smaller(flag: str, value: FlagValue) -> FlagValue:
    """Sizes that a small machine can rehearse. The mechanism is the same."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if flag == "chunked-prefill-size" and value > LARGEST_CHUNK:
        return mode.ARGS["chunked-prefill-size"]
    if flag == "max-running-requests":
        return min(value, MOST_REQUESTS)
    return min(value, CONTEXT) if flag == "context-length" else value


@cache
def _rules(kind: str) -> tuple[Rule, ...]:
    facts = read_facts(Path(__file__).with_name("flags.yaml"))[kind]
    return tuple(
        Rule(names=tuple(fact["names"].split()), why=fact["why"], keep=fact.get("keep", False)) for fact in facts
    )
