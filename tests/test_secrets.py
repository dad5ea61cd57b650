"""Values of secrets never stand in what disagg writes or shows."""

import json

import pytest

from disagg_cli.secrets import is_secret, is_secret_flag, masked, masked_argv, without


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "DB_PASSWORD", "api_key"])
def test_names_that_hold_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize("name", ["UCX_TLS", "CUDA_VISIBLE_DEVICES", "PYTHONPATH"])
def test_names_that_do_not(name):
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("flag", "secret"),
    [("api-key", True), ("--admin-api-key", True), ("tokenizer-path", False), ("max-total-tokens", False)],
)
def test_flags_that_take_secrets(flag, secret):
    assert is_secret_flag(flag) is secret
    assert masked_argv(["--port", "1", f"--{flag.lstrip('-')}", "x"])[-1] == ("***" if secret else "x")


def test_masked():
    assert masked({"HF_TOKEN": "hf_abc", "UCX_TLS": "rc"}) == {"HF_TOKEN": "***", "UCX_TLS": "rc"}


def test_a_text_that_quotes_one():
    assert without("env: {HF_TOKEN: hf_abc}", {"HF_TOKEN": "hf_abc"}) == "env: {HF_TOKEN: ***}"


def test_a_planted_secret_appears_in_no_record(home, tmp_path):
    from disagg_cli.runtime import rundir
    from disagg_cli.runtime.launch import record
    from disagg_cli.runtime.prepare import prepare

    planted = "hf_planted0123456789"
    config = tmp_path / "x.yaml"
    config.write_text(
        f"name: x\nplatform: cpu\nmodel: synthetic\nprefill: {{tp: 1}}\ndecode: {{tp: 1}}\n"
        f"engine: {{env: {{HF_TOKEN: {planted}}}, args: {{api-key: {planted}}}}}\n"
        f"router: {{args: {{api-key: {planted}}}}}\n"
    )
    prepared = prepare(config)
    recorder = record(prepared, rundir.create("x"))
    written = [path.read_text() for path in recorder.directory.path.rglob("*") if path.is_file()]
    assert not any(planted in text for text in written)
    assert planted not in json.dumps(prepared.document())
    assert any(command.env.get("HF_TOKEN") == planted for command in prepared.workers)
