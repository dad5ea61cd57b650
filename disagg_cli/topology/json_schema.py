"""The JSON Schema of a topology as people may write it: with short forms, `${VAR}` and SGLang's flags."""

from typing import Any

from disagg_cli.topology.flags import FlagList, flags_of, router_flags
from disagg_cli.topology.platforms import platforms
from disagg_cli.topology.spec import TopologySpec
from disagg_cli.topology.values import SHORT

VARIABLE = {"type": "string", "pattern": r"\$\{[A-Za-z_]"}
NEWEST = "99"

SCALAR = {"type": ["string", "number", "boolean"]}
VALUE = {"anyOf": [SCALAR, {"type": "array", "items": SCALAR, "minItems": 1}]}
"""What a flag may be given: a value, true or false, or several values."""

ENVIRONMENT = {
    "type": "object",
    "description": "Environment variables, verbatim: numbers and truth values are passed on as written.",
    "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
    "additionalProperties": SCALAR,
}


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one topology file."""
    schema = _with_variables(TopologySpec.model_json_schema())
    definitions, properties = schema["$defs"], schema["properties"]
    newest = flags_of(NEWEST)
    assert newest is not None
    said = f"Flags of SGLang (here {newest.release}), without their dashes."
    definitions["EngineArgs"] = _flags(newest, said)
    definitions["RouterArgs"] = _flags(router_flags(), "Flags of sglang-router, without their dashes.")
    for name in ("RoleSpec", "EngineSpec"):
        definitions[name]["properties"]["args"] = {"$ref": "#/$defs/EngineArgs"}
        definitions[name]["properties"]["env"] = ENVIRONMENT
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
            "description": "Named topologies that change this one; null takes away what it has.",
        },
        "matrix": {
            "type": "object",
            "additionalProperties": {"type": "array", "minItems": 1},
            "description": "Fields with lists of values: each combination is a topology. `prefill.tp: [2, 4]`",
        },
    } | ({"connector": properties["connector"]} if "connector" in properties else {})


def _flags(flags: FlagList, description: str) -> dict[str, Any]:
    """A mapping with known flags and their words, for completion. It takes others: another release may be meant."""
    properties = {flag: _flag(flags, flag) for flag in sorted(flags.known)}
    return {"type": "object", "description": description, "additionalProperties": VALUE, "properties": properties}


def _flag(flags: FlagList, flag: str) -> dict[str, Any]:
    return {"examples": list(flags.choices[flag])} if flag in flags.choices else {}


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
