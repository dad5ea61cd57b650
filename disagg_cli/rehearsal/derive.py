"""From a topology for GPUs to the one that rehearses it on CPUs. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from disagg_cli.errors import PlanRefused
from disagg_cli.kv.heads import replication
from disagg_cli.kv.models import config_for, layout_from_config
from disagg_cli.rehearsal.flags import notes_on_defaults, translate_flags, translate_variables
from disagg_cli.rehearsal.notes import Note
from disagg_cli.rehearsal.shrink import Shrunk, shrink
from disagg_cli.secrets import is_secret_flag
from disagg_cli.topology.deployment import Role
from disagg_cli.topology.spec import ModelSpec, RoleSpec, TopologySpec
from disagg_cli.topology.synthetic import SyntheticModel
from disagg_cli.topology.values import FlagValue

QUESTIONS = 20
EVAL = {"dataset": "mini", "questions": QUESTIONS, "shots": 2, "concurrency": 8, "max_tokens": 16}
"""Answers mean nothing; that they are the same as an aggregated server's does."""

PAIR_S = 90.0
"""Seconds for each pair's first transfer, at most: on CPUs all ranks that there is room for need less."""

NOT_COVERED = (
    Note(kind="not covered", what="GPU kernels"),
    Note(kind="not covered", what="RDMA and NVLink transport: NIXL moves KV over host memory"),
    Note(kind="not covered", what="memory size, speed and accuracy"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Derived:
    """A topology for CPUs as its YAML says it, and what it has of the one that it stands for.

    pools: a note for each pool, prefill's first. others: notes on all else.
    """

    document: Mapping[str, Any]
    pools: tuple[Note, ...]
    others: tuple[Note, ...]

    @property
    def notes(self) -> tuple[Note, ...]:
        """All notes."""
        return (*self.pools, *self.others)

    @property
    def spec(self) -> TopologySpec:
        """The document, validated."""
        return TopologySpec.model_validate(dict(self.document))

    def fewer_decodes(self, workers: list[int], why: str) -> "Derived":
        """The same with so many workers in each decode pool."""
        decode = [{**pool, "workers": count} for pool, count in zip(self.document["decode"], workers, strict=True)]
        kept, notes = self.pools[: -len(workers)], self.pools[-len(workers) :]
        fewer = [
            note if count == pool["workers"] else Note(kind="reduced", what=f"{note.what}: only {count}", why=why)
            for note, pool, count in zip(notes, self.document["decode"], workers, strict=True)
        ]
        return replace(self, document={**self.document, "decode": decode}, pools=(*kept, *fewer))


def derive(
    spec: TopologySpec, *, installed: str | None = None, pages: Mapping[tuple[Role, int], int] | None = None
) -> Derived:
    """Return the rehearsal of a topology. installed: the SGLang release that it will run.

    pages: page sizes that attention backends make of what each pool says, by its role and number.

    PlanRefused where nothing of it could be rehearsed. UsageError where the model is not known.
    """
    if spec.connector.backend != "nixl":
        raise PlanRefused(
            f"a rehearsal proves NIXL, and this topology moves KV with {spec.connector.backend}",
            where=str(spec.places.at("connector.backend")),
            fix="--set connector.backend=nixl",
        )
    shrunk = _shrink(spec)
    engine_args, arg_notes = translate_flags(spec.engine.args)
    engine_env, env_notes = translate_variables(spec.engine.env)
    prefill, prefill_notes = _pools("prefill", spec.prefill, pages or {})
    decode, decode_notes = _pools("decode", spec.decode, pages or {})
    document = {
        "name": f"rehearse-{spec.name}"[:63],
        "platform": "cpu",
        "model": {"synthetic": _synthetic(shrunk.model)},
        "prefill": prefill,
        "decode": decode,
        "engine": {"args": engine_args, "env": engine_env},
        "connector": {"backend": "nixl", "overlay": spec.connector.overlay},
        "router": {"policy": spec.router.policy, "port": spec.router.port, "args": _router_args(spec)},
        "ports": spec.ports,
        "probe": {"parity": True, "timeout_s": min(spec.probe.timeout_s, PAIR_S)},
        "eval": {"gsm8k": EVAL},
    }
    flags = (*arg_notes, *env_notes, *prefill_notes, *decode_notes)
    said = {*engine_args, *(flag for pool in (*prefill, *decode) for flag in pool.get("args", {}))}
    others = (*shrunk.notes, *flags, *notes_on_defaults(said), *_around(spec, installed), *NOT_COVERED)
    return Derived(document=document, pools=_workers(spec, shrunk.model), others=others)


def _shrink(spec: TopologySpec) -> Shrunk:
    pools = [*spec.prefill, *spec.decode]
    config, name, source = _config(spec.model)
    layout = layout_from_config(config, name=name, source=source)
    architectures = config.get("architectures") or [None]
    return shrink(layout, architectures[0], tps={pool.tp for pool in pools}, pps={pool.pp for pool in pools})


def _config(model: ModelSpec) -> tuple[Mapping[str, Any], str, str]:
    if model.synthetic:
        return SyntheticModel(**model.synthetic.model_dump()).config(), "synthetic", ""
    assert model.path is not None
    return config_for(model.path)


def _synthetic(model: SyntheticModel) -> dict[str, Any]:
    """What the YAML must say of the model: what is not as it is by default."""
    usual = SyntheticModel()
    names = ("family", "attention_heads", "kv_heads", "layers", "head_dim", "hidden", "window", "seed")
    always = ("attention_heads", "kv_heads", "layers")
    return {n: getattr(model, n) for n in names if n in always or getattr(model, n) != getattr(usual, n)}


def _pools(
    role: Role, pools: list[RoleSpec], pages: Mapping[tuple[Role, int], int]
) -> tuple[list[dict[str, Any]], list[Note]]:
    """Pools of the same sizes, without GPUs, hosts and ports."""
    documents, notes = [], []
    for index, pool in enumerate(pools):
        args, arg_notes = translate_flags(pool.args)
        if page := pages.get((role, index)):
            args["page-size"] = page
            notes.append(Note(kind="as written", what=f"{role}: pages of {page} tokens, as its attention backend has"))
        env, env_notes = translate_variables(pool.env)
        notes += [*arg_notes, *env_notes]
        sizes = pool.model_dump(include={"workers", "tp", "dp", "dp_attention", "pp"})
        usual = RoleSpec()
        told = {
            name: value for name, value in sizes.items() if name in ("workers", "tp") or value != getattr(usual, name)
        }
        documents.append(told | ({"args": args} if args else {}) | ({"env": env} if env else {}))
        if pool.ports.model_dump(exclude_none=True):
            notes.append(Note(kind="replaced", what="ports of a pool", why="on one machine each worker has its own"))
    return documents, notes


def _workers(spec: TopologySpec, model: SyntheticModel) -> tuple[Note, ...]:
    roles: tuple[Role, ...] = ("prefill", "decode")
    latent = model.family == "deepseek"
    return tuple(
        Note(kind="as written", what=_pool_in_words(role, pool, None if latent else model.kv_heads))
        for role in roles
        for pool in getattr(spec, role)
    )


def _pool_in_words(role: Role, pool: RoleSpec, kv_heads: int | None) -> str:
    attention_tp = pool.tp // pool.dp if pool.dp_attention else pool.tp
    words = [f"{pool.workers} x {role} TP{pool.tp}"]
    words += [f"PP{pool.pp}"] if pool.pp > 1 else []
    words += [f"DP{pool.dp}{' attention' if pool.dp_attention else ''}"] if pool.dp > 1 else []
    copies = replication(kv_heads, attention_tp) if kv_heads else 1
    return " ".join(words) + (f", each KV head on {copies} ranks" if copies > 1 else "")


def _router_args(spec: TopologySpec) -> dict[str, FlagValue]:
    """Flags of the router, without those that hold secrets: they have no place in the topology of a rehearsal."""
    return {flag: value for flag, value in spec.router.args.items() if not is_secret_flag(flag, value)}


def _around(spec: TopologySpec, installed: str | None) -> list[Note]:
    """The router, hosts, release and eval."""
    notes = [Note(kind="as written", what=f"router policy {spec.router.policy}")]
    notes += [Note(kind="as written", what=f"router --{flag}") for flag in _router_args(spec)]
    secret = [flag for flag, value in spec.router.args.items() if is_secret_flag(flag, value)]
    why = "a secret, and a rehearsal has no clients but its own"
    notes += [Note(kind="not covered", what=f"router --{flag}", why=why) for flag in secret]
    notes.append(Note(kind="as written", what=f"ports from {spec.ports} on, router {spec.router.port}"))
    if spec.executor.ssh or spec.executor.slurm:
        notes.append(Note(kind="replaced", what="all hosts by this machine", why="a rehearsal needs no other"))
    if spec.engine.sglang and spec.engine.sglang != installed:
        why = "a rehearsal runs what is here"
        notes.append(Note(kind="replaced", what=f"SGLang {spec.engine.sglang} by the {installed} installed", why=why))
    notes.append(
        Note(
            kind="replaced",
            what=f"evals by {QUESTIONS} questions to it and to an aggregated server",
            why="random weights",
        )
    )
    return notes
