"""`disagg models` and `disagg connector releases`, called as Typer would."""

import json

import pytest
from typer.testing import CliRunner

from disagg_cli.cli import connector, models
from disagg_cli.errors import UsageError


def run(app, *args):
    done = CliRunner().invoke(app, args)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_all_models_are_listed():
    text = run(models.app).stdout
    assert "Qwen/Qwen3-32B" in text
    assert "deepseek-ai/DeepSeek-R1" in text


def test_the_list_as_json():
    document = json.loads(run(models.app, "--json").stdout)
    assert document["schema"] == "disagg.models/1"
    assert {model["layout"] for model in document["models"]} == {"mha", "mla", "swa", "hybrid"}


def test_one_models_pools():
    text = run(models.app, "openai/gpt-oss-120b").stdout
    assert "18 of 36 layers" in text
    assert "last 128 tokens" in " ".join(text.split())


def test_one_model_as_json():
    document = json.loads(run(models.app, "Qwen/Qwen3.5-27B", "--json").stdout)
    assert (document["schema"], document["layout"], document["state"]["layers"]) == ("disagg.model/1", "hybrid", 48)


def test_an_unknown_model_is_a_usage_error():
    with pytest.raises(UsageError, match="no KV layout"):
        run(models.app, "nope")


def test_every_release_stands_in_the_table():
    text = run(connector.app, "releases").stdout
    assert "0.5.12.post1" in text
    assert "T < P < D" in text


def test_the_releases_as_json():
    document = json.loads(run(connector.app, "releases", "--json").stdout)
    assert document["schema"] == "disagg.connector-releases/1"
    assert document["releases"]["0.5.23"]["outcomes"]["H"]["outcome"] == "assertion"
    assert document["releases"]["0.5.11"]["connector"]["kv_key"] == "pp_rank"


@pytest.mark.parametrize("args", [["--prefill-tp", "4"], ["--decode-tp", "4"]])
def test_one_plan_needs_both_sides(args):
    with pytest.raises(UsageError, match="one plan needs"):
        run(connector.app, "verify", *args)
