"""`disagg schema`: what editors complete and complain about."""

import json

import pytest
import yaml
from command_line import disagg
from deployments import ROOT, SMALLEST


def schema():
    return json.loads(disagg("schema").stdout)


def test_the_examples_have_the_schema_beside_them():
    assert json.loads((ROOT / "configs/topology.schema.json").read_text()) == schema(), (
        "disagg schema > configs/topology.schema.json"
    )


def test_every_key_is_known():
    keys = set(schema()["properties"])
    assert {"name", "prefill", "decode", "extends", "matrix", "variants", "topology", "ignore"} <= keys
    assert schema()["additionalProperties"] is False


def test_short_forms():
    properties = schema()["properties"]
    assert properties["model"]["anyOf"][0] == {"type": "string"}
    assert properties["prefill"]["anyOf"][0] == {"$ref": "#/$defs/RoleSpec"}
    assert "gb200-nvl72" in str(properties["platform"])


def test_flags_are_completed():
    definitions = schema()["$defs"]
    assert "page-size" in definitions["EngineArgs"]["properties"]
    assert definitions["RoleSpec"]["properties"]["args"] == {"$ref": "#/$defs/EngineArgs"}


def test_a_number_may_be_a_variable():
    tp = schema()["$defs"]["RoleSpec"]["properties"]["tp"]
    assert tp["anyOf"][0]["type"] == "integer"
    assert tp["anyOf"][1]["type"] == "string"


@pytest.fixture(scope="module")
def validator():
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    return jsonschema.Draft202012Validator(schema())


@pytest.mark.parametrize("config", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_an_editor_accepts_the_examples(validator, config):
    assert list(validator.iter_errors(yaml.safe_load(config.read_text()))) == []


@pytest.mark.parametrize(
    "more",
    [
        {"engine": {"args": {"cuda-graph-bs": [1, 2, 4], "trust-remote-code": True, "page-size": 64}}},
        {"engine": {"env": {"A": 1, "B": True, "C": "x"}}},
        {"prefill": [{"tp": 1}, {"tp": "${TP}"}]},
        {"executor": "slurm"},
        {"executor": {"ssh": {"hosts": ["a", "b"]}}},
        {"variants": {"a": {"engine": {"args": {"page-size": None}}}}},
    ],
)
def test_an_editor_accepts_what_check_accepts(validator, more):
    assert list(validator.iter_errors(SMALLEST | more)) == []


def test_the_words_of_flags_are_offered():
    assert "flashinfer" in schema()["$defs"]["EngineArgs"]["properties"]["attention-backend"]["examples"]


def test_as_a_document():
    document = json.loads(disagg("schema", "--json").stdout)
    assert (document["schema"], document["json_schema"]) == ("disagg.schema/1", schema())


def test_an_editor_complains_about_a_misspelt_key(validator):
    topology = SMALLEST | {"prefil": {"tp": 4}}
    assert [error.validator for error in validator.iter_errors(topology)] == ["additionalProperties"]
