"""A topology's values as a file that says the same."""

import yaml

from disagg_cli.topology.loading import load_topology
from disagg_cli.topology.written import written_out

TEXT = """
name: demo
platform: cpu
model: synthetic
prefill: {tp: 2, env: {MY_TOKEN: "${PLANTED}", MARK: "$${HOME}"}}
decode: {tp: 1}
"""


def written(tmp_path, monkeypatch):
    monkeypatch.setenv("PLANTED", "the secret")
    (tmp_path / "t.yaml").write_text(TEXT)
    return load_topology(tmp_path / "t.yaml").written


def test_secrets_are_masked(tmp_path, monkeypatch):
    assert yaml.safe_load(written_out(written(tmp_path, monkeypatch)))["prefill"]["env"]["MY_TOKEN"] == "***"


def test_unmasked_it_is_the_same_topology_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "again.yaml").write_text(written_out(written(tmp_path, monkeypatch), masked=False))
    monkeypatch.delenv("PLANTED")
    assert load_topology(tmp_path / "again.yaml").prefill[0].env == {"MY_TOKEN": "the secret", "MARK": "${HOME}"}
