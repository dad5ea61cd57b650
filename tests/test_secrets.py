"""Values of secrets never stand in what disagg writes or shows."""

import json

import pytest

from disagg_cli.secrets import is_secret, is_secret_flag, masked, without


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "DB_PASSWORD", "api_key"])
def test_names_that_hold_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        ("http://me:hunter2@proxy:3128", True),
        ("http://proxy:3128/a@b:c", False),
        ("tcp://:9000", False),
        ("a:b@c", False),
    ],
)
def test_values_that_hold_secrets(value, secret):
    """As HTTPS_PROXY has it where a proxy asks for a password."""
    assert is_secret("HTTPS_PROXY", value) is secret
    assert is_secret_flag("otlp-traces-endpoint", value) is secret


@pytest.mark.parametrize("name", ["UCX_TLS", "CUDA_VISIBLE_DEVICES", "PYTHONPATH"])
def test_names_that_do_not(name):
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("flag", "secret"),
    [
        *(("api-key", True), ("--admin-api-key", True), ("control-plane-api-keys", True), ("redis-url", True)),
        *(("tokenizer-path", False), ("max-total-tokens", False), ("bucket-time-to-first-token", False)),
    ],
)
def test_flags_that_take_secrets(flag, secret):
    assert is_secret_flag(flag) is secret


def test_masked():
    assert masked({"HF_TOKEN": "hf_abc", "UCX_TLS": "rc"}) == {"HF_TOKEN": "***", "UCX_TLS": "rc"}


def test_a_text_that_quotes_one():
    assert without("env: {HF_TOKEN: hf_abc}", {"HF_TOKEN": "hf_abc"}) == "env: {HF_TOKEN: ***}"


def test_a_planted_secret_appears_in_no_record_and_on_no_command_line(home, tmp_path, monkeypatch):
    from disagg_cli.runtime import rundir
    from disagg_cli.runtime.launch import record
    from disagg_cli.runtime.prepare import prepare, with_aggregated, with_gsm8k

    planted = "hf_planted0123456789"
    monkeypatch.setenv("PLANTED", planted)
    config = tmp_path / "x.yaml"
    config.write_text(
        "name: x\nplatform: cpu\nmodel: synthetic\nprefill: {tp: 1}\ndecode: {tp: 1}\n"
        'engine: {env: {HF_TOKEN: "${PLANTED}", HTTPS_PROXY: "http://me:${PLANTED}@proxy:3128"},'
        ' args: {api-key: "${PLANTED}", admin-api-key: "${PLANTED}"}}\n'
        'router: {args: {api-key: "${PLANTED}", control-plane-api-keys: ["a:b:admin:${PLANTED}", c]}}\n'
    )
    prepared = with_aggregated(with_gsm8k(prepare(config)))
    recorder = record(prepared, rundir.create("x"))
    written = [path.read_text() for path in recorder.directory.path.rglob("*") if path.is_file()]
    assert not any(planted in text for text in written)
    assert planted not in json.dumps(prepared.document())
    assert all(planted in str(command.env) for command in prepared.commands)
    assert not any(planted in word for command in prepared.commands for word in command.argv)
    assert "--api-key '***' --admin-api-key '***'" in prepared.workers[0].shell()
