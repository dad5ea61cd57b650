"""The JSON Schema of a topology as people may write it: with short forms, `${VAR}` and SGLang's flags."""

from typing import Any

from disagg_cli.engine.flags import flags_of, router_flags
from disagg_cli.topology.platforms import platforms
from disagg_cli.topology.spec import SHORT, TopologySpec

VARIABLE = {"type": "string", "pattern": r"\$\{[A-Za-z_]"}
NEWEST = "99"

SCALAR = {"type": ["string", "number", "boolean"]}


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one topology file."""
    schema = _with_variables(TopologySpec.model_json_schema())
    definitions, properties = schema["$defs"], schema["properties"]
    definitions["EngineArgs"] = _flags()
    definitions["RouterArgs"] = _named(sorted(router_flags()[1]), "Flags of sglang-router, without their dashes.")
    for name in ("RoleSpec", "EngineSpec"):
        definitions[name]["properties"]["args"] = {"$ref": "#/$defs/EngineArgs"}
    definitions["RouterSpec"]["properties"]["args"] = {"$ref": "#/$defs/RouterArgs"}
    properties["platform"] = {"enum": list(platforms()), "description": "What machines there are. See platforms.yaml."}
    properties |= _short_forms(properties)
    schema["required"] = ["name", "platform", "model"]
    schema["anyOf"] = [
        {"required": ["prefill", "decode"]},
        {"required": ["topology"]},
        {"required": ["extends"]},
        {"required": ["variants"]},
        {"required": ["matrix"]},
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "disagg topology",
        **{key: value for key, value in schema.items() if key not in ("title", "required")},
        "if": {"not": {"required": ["extends"]}},
        "then": {"required": schema["required"]},
    }


def _short_forms(properties: dict[str, Any]) -> dict[str, Any]:
    """A name for a model, one pool for a list of them, and keys that are gone once a file is read."""
    pool = {"$ref": "#/$defs/RoleSpec"}
    pools = {"anyOf": [pool, {"type": "array", "items": pool, "minItems": 1}]}
    change = {"type": "object"}
    return {
        "model": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/ModelSpec"}]},
        "executor": {"anyOf": [{"enum": ["local", "slurm"]}, {"$ref": "#/$defs/ExecutorSpec"}]},
        "restart": {"anyOf": [{"enum": ["never", "gang"]}, {"$ref": "#/$defs/RestartSpec"}]},
        "prefill": pools,
        "decode": pools,
        "topology": {
            "type": "string",
            "pattern": f"^{SHORT.pattern}$",
            "description": "1P4D: one prefill worker and four decode workers.",
        },
        "extends": {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
            "description": "Files, relative to this one, that it changes and adds to.",
        },
        "variants": {
            "type": "object",
            "additionalProperties": change,
            "description": "Named topologies that change this one.",
        },
        "matrix": {
            "type": "object",
            "additionalProperties": {"type": "array", "minItems": 1},
            "description": "Fields with lists of values: each combination is a topology. `prefill.tp: [2, 4]`",
        },
    } | ({"connector": properties["connector"]} if "connector" in properties else {})


def _flags() -> dict[str, Any]:
    """SGLang's flags of the newest known release. Others are allowed: another release may be meant."""
    flags = flags_of(NEWEST)
    assert flags is not None
    return _named(sorted(flags.known), f"Flags of SGLang (here {flags.release}), without their dashes.")


def _named(names: list[str], description: str) -> dict[str, Any]:
    """A mapping with known names, for completion, that takes others too."""
    values = {"additionalProperties": SCALAR, "properties": {name: {} for name in names}}
    return {"type": "object", "description": description, **values}


def _with_variables(node: Any) -> Any:
    """Let `${VAR}` stand for every number, truth value and word of a list."""
    if isinstance(node, list):
        return [_with_variables(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: _with_variables(value) for key, value in node.items()}
    if node.get("type") in ("integer", "number", "boolean") or ("enum" in node and "anyOf" not in node):
        outer = {key: node.pop(key) for key in ("default", "title", "description") if key in node}
        return outer | {"anyOf": [node, VARIABLE]}
    return node
