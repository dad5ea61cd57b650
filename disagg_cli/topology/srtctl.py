"""Recipes of NVIDIA/srt-slurm (`srtctl`) as topologies. Reads both layouts: `backend` and `resources`, and `roles`.

What has no counterpart here is named, not dropped silently. Source of the layouts: srt-slurm 0.3.0 and 2.x,
docs/config-reference.md, docs/overrides.md, docs/sweeps.md, docs/legacy-v1.md.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from disagg_cli.errors import UsageError
from disagg_cli.topology.managed_flags import ENGINE, ROUTER
from disagg_cli.topology.platforms import platforms

PLATFORMS = {"gb200": "gb200-nvl72", "gb300": "gb300-nvl72"}
RELEASE = re.compile(r"(?:^|[:+-]v?|[:+-])(\d+\.\d+\.\d+(?:\.post\d+)?)\b")
"""In a container's name: lmsysorg/sglang:v0.5.8-cu130, lmsysorg+sglang+v0.5.5.sqsh, or an alias 0.5.8.post1."""
SIZES = {
    "tp": ("tp-size", "tensor-parallel-size", "tp"),
    "dp": ("dp-size", "data-parallel-size", "dp", "attn-dp-size", "attention-data-parallel-size"),
    "pp": ("pp-size", "pipeline-parallel-size", "pp"),
}
COLOCATE = "colocate"
"""A decode that shares the nodes of prefill (schema 2); 0 nodes in schema 1."""
BACKEND = "disaggregation-transfer-backend"
CARRIED = {"name", "model", "resources", "slurm", "frontend", "backend", "benchmark", "roles", "engine", "schema"}
CARRIED |= {"sbatch_directives", "environment"}
READ = {
    "model": ("path", "container", "precision"),
    "resources": (
        *("gpu_type", "gpus_per_node", "prefill_nodes", "decode_nodes", "agg_nodes"),
        *("prefill_workers", "decode_workers", "agg_workers", "gpus_per_prefill", "gpus_per_decode", "gpus_per_agg"),
    ),
    "slurm": ("partition", "account", "time_limit"),
    "backend": ("type", "sglang_config", "prefill_environment", "decode_environment", "aggregated_environment"),
    "engine": ("type",),
}
"""What is read of each part of a recipe; the rest is named as not carried."""
SCHEMAS = (1, 2)
ROUTERS = ("sglang", "sglang-router")
GSM8K = {
    "num_examples": "questions",
    "num_shots": "shots",
    "num_threads": "concurrency",
    "max_tokens": "max_tokens",
}


@dataclass(kw_only=True)
class Notes:
    """What could not be carried, each thing once, in the order in which it was met."""

    lines: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        """Keep a line, unless it was said before."""
        if line not in self.lines:
            self.lines.append(line)


def convert(recipe: Mapping[str, Any], notes: Notes, platform: str | None = None) -> dict[str, Any]:
    """One recipe, its variants resolved, as the values of a topology. platform: in place of the recipe's GPU type."""
    if recipe.get("schema", 1) not in SCHEMAS:
        raise UsageError(f"schema {recipe['schema']!r} is not known; known: {', '.join(map(str, SCHEMAS))}")
    kind = _engine(recipe)
    if kind != "sglang":
        raise UsageError(f"the recipe is for {kind}; disagg starts SGLang", where=str(recipe.get("name")))
    roles = _roles(recipe, notes)
    if missing := [role for role in ("prefill", "decode") if role not in roles]:
        raise UsageError(f"the recipe has no {' and no '.join(missing)} workers; disagg is for both")
    for key in recipe:
        if key not in CARRIED:
            notes.add(f"{key}: has no counterpart")
    for part, known in READ.items():
        value = recipe.get(part)
        for key in value if isinstance(value, Mapping) else ():
            if key not in known:
                notes.add(f"{part}.{key}: has no counterpart")
    topology = {
        "name": _name(recipe),
        "platform": platform or _platform(recipe),
        "model": _model(recipe, roles, notes),
        **_shared(roles, recipe, notes),
        **_router(recipe, notes),
        "executor": {"slurm": _slurm(recipe)},
        **_eval(recipe, notes),
    }
    return {key: value for key, value in topology.items() if value not in ({}, None)}


def _engine(recipe: Mapping[str, Any]) -> str:
    engine = recipe.get("engine")
    if isinstance(engine, Mapping):
        return str(engine.get("type", "sglang"))
    return str(engine or _mapping(recipe, "backend").get("type", "sglang"))


def _mapping(recipe: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return _as_mapping(recipe.get(key), key)


def _as_mapping(value: Any, what: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise UsageError(f"{what}: expected a mapping")
    return value or {}


def _name(recipe: Mapping[str, Any]) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", str(recipe.get("name", "imported"))).strip("-._")
    return name[:63] or "imported"


def _platform(recipe: Mapping[str, Any]) -> str:
    gpu = str(_mapping(recipe, "resources").get("gpu_type", "")).lower()
    name = PLATFORMS.get(gpu, gpu)
    if name not in platforms():
        said = (
            f"resources.gpu_type: unknown {gpu!r}" if gpu else "resources.gpu_type: the recipe leaves it to the cluster"
        )
        raise UsageError(f"{said}; known: {', '.join([*PLATFORMS, *platforms()])}", fix="say it with --platform")
    return name


def _roles(recipe: Mapping[str, Any], notes: Notes) -> dict[str, dict[str, Any]]:
    """Each role with workers, nodes, gpus, args and env, from either layout."""
    if "roles" in recipe:
        given = {role: dict(_as_mapping(value, role)) for role, value in _mapping(recipe, "roles").items()}
    else:
        given = _roles_of_schema_1(recipe)
    for role in [name for name in given if name not in ("prefill", "decode")]:
        notes.add(f"roles.{role}: disagg has prefill and decode workers only")
        del given[role]
    per_node = _number(_mapping(recipe, "resources").get("gpus_per_node"), "resources.gpus_per_node")
    return {role: _role(role, value, per_node, notes) for role, value in given.items()}


def _roles_of_schema_1(recipe: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    resources, backend = _mapping(recipe, "resources"), _mapping(recipe, "backend")
    roles: dict[str, dict[str, Any]] = {}
    for role, long in (("prefill", "prefill"), ("decode", "decode"), ("agg", "aggregated")):
        if resources.get(f"{role}_workers") or resources.get(f"{role}_nodes"):
            roles[role] = {
                "workers": resources.get(f"{role}_workers"),
                "nodes": resources.get(f"{role}_nodes"),
                "gpus": resources.get(f"gpus_per_{role}"),
                "args": _mapping(backend, "sglang_config").get(long) or {},
                "env": backend.get(f"{long}_environment") or {},
            }
    return roles


def _number(value: Any, what: str) -> int | None:
    """A whole number above 0, None for nothing and for 0. UsageError for anything else, such as a {placeholder}."""
    if value in (None, 0, "0", COLOCATE):
        return None
    text = str(value)
    if isinstance(value, bool) or not text.isdigit() or len(text) > 6:
        raise UsageError(f"{what}: expected a whole number, got {value!r}")
    return int(text)


def _role(role: str, given: Mapping[str, Any], per_node: int | None, notes: Notes) -> dict[str, Any]:
    args = {
        str(key).lstrip("-").replace("_", "-"): value
        for key, value in _as_mapping(given.get("args"), f"{role} flags").items()
    }
    workers = _number(given.get("workers"), f"{role}.workers") or 1
    nodes, gpus = _number(given.get("nodes"), f"{role}.nodes"), _number(given.get("gpus"), f"{role}.gpus")
    if gpus is None and nodes and per_node and nodes * per_node % workers == 0:
        gpus = nodes * per_node // workers
    for key in given:
        if key not in ("workers", "nodes", "gpus", "args", "env"):
            notes.add(f"{role}.{key}: has no counterpart")
    pool: dict[str, Any] = {"workers": workers, **_sizes(role, args), "gpus": gpus, "nodes": nodes}
    pool["args"] = _args(args, notes)
    pool["env"] = _env(role, _as_mapping(given.get("env"), f"{role} environment"), notes)
    pool["served"] = args.get("served-model-name")
    pool["path"] = args.get("model-path")
    return pool


def _sizes(role: str, args: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {
        size: next((_number(args[name], f"{role} {name}") for name in names if name in args), None)
        for size, names in SIZES.items()
    }
    attention = bool(args.get("enable-dp-attention")) or any(
        "attn-dp" in name or "attention-data" in name for name in args
    )
    found: dict[str, Any] = {"tp": sizes["tp"] or 1}
    if (sizes["dp"] or 1) > 1:
        found |= {"dp": sizes["dp"]} | ({"dp_attention": True} if attention else {})
    if (sizes["pp"] or 1) > 1:
        found["pp"] = sizes["pp"]
    return found


def _args(args: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    kept = {}
    for name, value in args.items():
        if name == "disaggregation-bootstrap-port":
            notes.add(f"--{name} {value}: disagg gives each worker ports of its own, and tells the router")
        elif name in ENGINE:
            if name not in KNOWN_ELSEWHERE:
                notes.add(f"--{name} {value}: disagg sets it; say it with `{ENGINE[name]}`")
        elif value is not None:
            kept[name] = _value(value)
    return kept


KNOWN_ELSEWHERE = {name for names in SIZES.values() for name in names}
KNOWN_ELSEWHERE |= {"enable-dp-attention", "model-path", "model", "served-model-name", "disaggregation-mode"}


def _value(value: Any) -> Any:
    """A flag's value: several stay a list, a mapping becomes the JSON text that SGLang reads."""
    if isinstance(value, list) and value and all(isinstance(item, str | int | float | bool) for item in value):
        return value
    return value if isinstance(value, str | int | float | bool) else json.dumps(value)


def _env(role: str, env: Mapping[str, Any], notes: Notes) -> dict[str, str]:
    kept = {}
    for name, value in env.items():
        if str(name).startswith("DYN_"):
            notes.add(f"{name}: Dynamo's, and disagg starts SGLang and its router")
        elif re.search(r"\{node(_id)?\}", str(value)):
            notes.add(f"{role} {name}={value}: the node's name is not filled in")
        elif value is None:
            notes.add(f"{role} {name}: has no value")
        else:
            kept[str(name)] = str(value).lower() if isinstance(value, bool) else str(value)
    return kept


def _model(recipe: Mapping[str, Any], roles: Mapping[str, Any], notes: Notes) -> Any:
    """The hub id that the recipe serves the model as; its path is an alias that only the cluster knows."""
    path = str(_mapping(recipe, "model").get("path") or roles["prefill"]["path"] or "")
    if not path:
        raise UsageError("model.path: the recipe names no model")
    served = roles["prefill"]["served"] or roles["decode"]["served"]
    for key in ("container", "precision"):
        if value := _mapping(recipe, "model").get(key):
            notes.add(f"model.{key}: {value}")
    if served and "/" in str(served) and not path.startswith(("/", "hf:")):
        notes.add(f"model.path: {path} is the cluster's name for it; {served} is what it is served as")
        return str(served)
    path = path.removeprefix("hf:")
    return {"path": path, "served_name": str(served)} if served and served != path else path


def _shared(roles: dict[str, dict[str, Any]], recipe: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    """The pools, and under `engine` and `connector` what they have in common."""
    prefill, decode = roles["prefill"], roles["decode"]
    for pool in (prefill, decode):
        pool.pop("served")
        pool.pop("path")
    backends = {prefill["args"].get(BACKEND), decode["args"].get(BACKEND)}
    connector = {}
    if len(backends) == 1 and (backend := backends.pop()) in ("nixl", "mooncake"):
        connector = {"backend": backend}
        del prefill["args"][BACKEND], decode["args"][BACKEND]
    engine: dict[str, Any] = {}
    if release := RELEASE.search(str(_mapping(recipe, "model").get("container", ""))):
        engine["sglang"] = release[1]
    for kind in ("args", "env"):
        ours, theirs = prefill[kind], decode[kind]
        common = {key: value for key, value in ours.items() if key in theirs and _same(theirs[key], value)}
        outer = _env("all", _mapping(recipe, "environment"), notes) if kind == "env" else {}
        engine |= {kind: outer | common} if outer | common else {}
        for pool in (prefill, decode):
            pool[kind] = {key: value for key, value in pool[kind].items() if key not in common}
    pools = {role: {k: v for k, v in pool.items() if v not in (None, {})} for role, pool in roles.items()}
    return pools | {"engine": engine, "connector": connector}


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def _router(recipe: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    frontend = _mapping(recipe, "frontend")
    kind = str(frontend.get("type", "dynamo"))
    for key in frontend:
        if key not in ("type", "args", "nginx_container"):
            notes.add(f"frontend.{key}: disagg starts one router")
    if kind not in ROUTERS:
        notes.add(f"frontend.type: {kind}; disagg starts sglang-router")
        return {}
    args = {str(key).replace("_", "-"): value for key, value in _mapping(frontend, "args").items()}
    router: dict[str, Any] = {"policy": args.pop("policy")} if "policy" in args else {}
    kept = {key: _value(value) for key, value in args.items() if value is not None and key not in ROUTER}
    for key in args:
        if key in ROUTER:
            notes.add(f"frontend.args.{key}: disagg sets it; say it with `{ROUTER[key]}`")
    return {"router": router | ({"args": kept} if kept else {})} if router or kept else {}


def _slurm(recipe: Mapping[str, Any]) -> dict[str, Any]:
    slurm = _mapping(recipe, "slurm")
    names = {"partition": "partition", "account": "account", "time_limit": "time"}
    found: dict[str, Any] = {ours: str(slurm[theirs]) for theirs, ours in names.items() if slurm.get(theirs)}
    directives = {str(key): value for key, value in _mapping(recipe, "sbatch_directives").items()}
    return found | ({"args": directives} if directives else {})


def _eval(recipe: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    benchmark = _mapping(recipe, "benchmark")
    if benchmark.get("type") != "gsm8k":
        if benchmark:
            notes.add(f"benchmark: {benchmark.get('type')}; disagg runs GSM8K only")
        return {}
    names = {
        "num_examples": "questions",
        "num_shots": "shots",
        "max_tokens": "max_tokens",
        "num_threads": "concurrency",
    }
    found = {ours: benchmark[theirs] for theirs, ours in names.items() if benchmark.get(theirs) is not None}
    return {"eval": {"gsm8k": {"dataset": "gsm8k", **found}}}
