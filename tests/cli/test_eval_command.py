"""`disagg eval gsm8k`, from the command line to the exit code."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner
from waiting import wait_until

sys.path.insert(0, str(Path(__file__).parents[1] / "evals"))
from mock_server import MockServer, hangs, says, serving_in_thread, unavailable

from disagg_cli.cli.eval import app
from disagg_cli.errors import UsageError
from disagg_cli.evals.data import load

GOLDS = {question.question: question.answer for question in load("mini").questions}


@pytest.fixture
def server():
    with serving_in_thread(MockServer(GOLDS)) as running:
        yield running


def invoke(server: MockServer, out: Path, *more: str):
    return CliRunner().invoke(app, ["gsm8k", "--url", server.url, "--dataset", "mini", "--out", str(out), *more])


def test_a_good_run(server, tmp_path):
    result = invoke(server, tmp_path)
    assert result.exit_code == 0, result.output
    assert "NO BASELINE" in result.stdout
    assert "accuracy 1.0000 of 40 answered" in result.stdout
    assert "first to second token" in result.stdout
    assert "gsm8k 40/40" in result.stderr


def test_one_json_document_on_stdout(server, tmp_path):
    result = invoke(server, tmp_path, "--json", "--baseline", "0.9", "--margin", "0.1")
    document = json.loads(result.stdout)
    assert (document["schema"], document["verdict"]["outcome"], document["out"]) == (
        "disagg.eval/1",
        "PASS",
        str(tmp_path),
    )
    assert result.exit_code == document["exit_code"] == 0


def test_a_verdict_outlives_whoever_watched_it(server, tmp_path):
    """Both streams lead to a pipe that nobody reads any more."""
    read, write = os.pipe()
    os.close(read)
    words = ["eval", "gsm8k", "--url", server.url, "--dataset", "mini", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "disagg_cli", *words], stdout=write, stderr=write, timeout=60)
    os.close(write)
    assert done.returncode == 0
    assert json.loads((tmp_path / "summary.json").read_text())["answered"] == 40


def test_a_bad_score_exits_6(server, tmp_path):
    server.default = says("#### 7")
    result = invoke(server, tmp_path, "--baseline", "0.961")
    assert (result.exit_code, "FAIL" in result.stdout) == (6, True)


def test_failed_requests_exit_7(server, tmp_path):
    server.default = unavailable
    result = invoke(server, tmp_path)
    assert (result.exit_code, "NOT JUDGED" in result.stdout) == (7, True)
    assert "HTTP 503" in result.stdout


def test_too_few_questions_exit_7(server, tmp_path):
    result = invoke(server, tmp_path, "--baseline", "0.98", "--questions", "5")
    assert (result.exit_code, "INCONCLUSIVE" in result.stdout) == (7, True)
    assert "answers of the same accuracy would decide" in result.stdout


def test_unknown_dataset(server, tmp_path):
    result = invoke(server, tmp_path, "--dataset", "gsm9k")
    assert (result.exit_code, "gsm9k" in result.stderr) == (2, True)


COMMAND = [sys.executable, "-c", "from disagg_cli.cli.eval import app; app()", "gsm8k", "--dataset", "mini"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_writes_what_there_is(server, tmp_path, signum):
    server.default = hangs
    server.behave = {next(iter(GOLDS)): says("#### 1")}
    process = subprocess.Popen(
        [*COMMAND, "--url", server.url, "--out", str(tmp_path)], stderr=subprocess.PIPE, text=True
    )
    log = tmp_path / "samples.jsonl"
    wait_until(lambda: log.exists() and log.read_text(), 60)
    os.kill(process.pid, signum)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode != 0
    assert f"interrupted by {signum.name}" in stderr
    assert json.loads((tmp_path / "summary.json").read_text())["counts"]["skipped"] == 39


def test_help_is_light():
    code = """if True:
        import sys
        from disagg_cli.cli import eval
        sys.exit(" ".join({"aiohttp", "asyncio", "scipy", "rich"} & set(sys.modules)))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == ""


def test_score_and_show(server, tmp_path):
    invoke(server, tmp_path)
    scored = CliRunner().invoke(app, ["score", str(tmp_path), "--json"])
    assert json.loads(scored.stdout)["accuracy"] == 1.0
    assert "40 of 40 answered" in CliRunner().invoke(app, ["score", str(tmp_path)]).stdout
    shown = CliRunner().invoke(app, ["show", str(tmp_path), "--json"])
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert json.loads(shown.stdout) == summary | {"out": str(tmp_path)}
    assert shown.exit_code == 0


def test_plots(server, tmp_path):
    pytest.importorskip("matplotlib")
    invoke(server, tmp_path)
    result = CliRunner().invoke(app, ["show", str(tmp_path), "--plot", str(tmp_path / "run.png")])
    assert result.exit_code == 0, result.exception
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_show_needs_a_run(tmp_path):
    result = CliRunner().invoke(app, ["show", str(tmp_path)])
    assert isinstance(result.exception, UsageError)


def test_compare(server, tmp_path):
    invoke(server, tmp_path / "a")
    server.behave = {next(iter(GOLDS)): says(" #### 7")}
    result = invoke(server, tmp_path / "b", "--compare", str(tmp_path / "a"), "--margin", "0.2")
    assert result.exit_code == 0, result.output
    assert "39 identical (97.5%), 1 lost, 0 gained" in result.stdout
    assert "test-0" in result.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--resume"], "--resume belongs to --out"),
        (["--to", "run"], "--to belongs to --compare"),
        (["--min-identical", "0.9"], "--min-identical belongs to --compare"),
        (["--baseline-n", "5"], "--baseline-n belongs to --baseline"),
        (["--compare", "run", "--baseline", "0.9"], "--baseline belongs to a run without --compare"),
        (["--compare", "run", "--resume", "--out", "o"], "--resume belongs to a run without --compare"),
        (["--compare", "run", "--to", "other"], "--url and --to both name"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(options, told):
    result = CliRunner().invoke(app, ["gsm8k", "--url", "http://h", *options])
    assert isinstance(result.exception, UsageError)
    assert result.exception.what.startswith(told)


def test_without_out_each_run_has_its_own_folder(server, tmp_path, monkeypatch):
    monkeypatch.setenv("DISAGG_HOME", str(tmp_path))
    command = ["gsm8k", "--url", server.url, "--dataset", "mini", "--questions", "2", "--json"]
    folders = {json.loads(CliRunner().invoke(app, command).stdout)["out"] for _ in range(2)}
    assert len(folders) == 2
    assert all(Path(folder).parent == tmp_path / "evals" for folder in folders)
