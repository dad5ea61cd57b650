"""Where runs are kept, who may read them, and how they are found again."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys

import pytest
from runs import a_run, mode, process

from disagg_cli.errors import UsageError
from disagg_cli.runtime import rundir
from disagg_cli.runtime.rundir import RunDir, event


def test_a_new_run(home):
    run = rundir.create("demo")
    assert run.path.parent == home / "runs"
    assert run.path.name.startswith("demo-2")
    assert run.log("prefill-0") == run.path / "logs" / "prefill-0.log"
    assert rundir.current() == run


def test_nobody_else_may_look(home):
    os.umask(os.umask(0o022))
    run = rundir.create("demo")
    run.write("state.json", {})
    assert [mode(path) for path in (home / "runs", run.path, run.logs)] == [0o700] * 3
    assert mode(run.path / "state.json") == 0o600


def test_runs_of_the_same_second_have_names_of_their_own(home):
    runs = [rundir.create("demo") for _ in range(5)]
    assert len({run.path for run in runs}) == 5
    assert rundir.current() == runs[-1]


def test_a_relative_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(rundir.HOME, "here")
    run = rundir.create("demo")
    assert rundir.current().path == run.path == tmp_path / "here" / "runs" / run.path.name


def test_without_a_home_the_platforms_folders_are_used(monkeypatch, tmp_path):
    monkeypatch.delenv(rundir.HOME, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert (rundir.home(), rundir.cache()) == (tmp_path / "state" / "disagg", tmp_path / "cache" / "disagg")


def test_the_cache_follows_the_home(home):
    assert rundir.cache() == home / "cache"


def test_no_run_yet(home):
    with pytest.raises(UsageError, match="there is no run yet") as caught:
        rundir.find(None)
    assert caught.value.fix == "start one: disagg launch configs/1p2d-cpu.yaml"


def test_the_current_run_was_removed(home):
    run = rundir.create("demo")
    run.logs.rmdir()
    run.path.rmdir()
    with pytest.raises(UsageError, match="there is no run yet"):
        rundir.current()


def test_a_run_by_name(home):
    first, _ = rundir.create("one"), rundir.create("two")
    assert rundir.find(first.path.name) == first


def test_the_newest_run_of_a_topology(home):
    """Of several side by side, each can be named by its topology."""
    runs = [rundir.create(name) for name in ("one", "one", "one-more")]
    for number, run in enumerate(runs):
        os.utime(run.path, (number, number))
    assert rundir.find("one") == runs[1]
    assert rundir.find("one-more") == runs[2]


@pytest.mark.parametrize("name", ["nope", "", ".", "..", "../runs"])
def test_an_unknown_run(home, name):
    """The newest are named, not the last of the alphabet."""
    for number, run in enumerate([rundir.create("z"), rundir.create("b"), rundir.create("a")]):
        os.utime(run.path, (number, number))
    with pytest.raises(UsageError, match="no run called") as caught:
        rundir.find(name)
    newest = caught.value.fix.removeprefix("the newest are: ").split(", ")
    assert [run.partition("-")[0] for run in newest] == ["z", "b", "a"]


def test_an_unknown_run_where_there_is_none(home):
    with pytest.raises(UsageError, match="no run called nope") as caught:
        rundir.find("nope")
    assert "disagg launch" in caught.value.fix


def test_a_home_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(rundir.HOME, str(tmp_path / "file"))
    with pytest.raises(UsageError, match="cannot write to") as caught:
        rundir.create("demo")
    assert caught.value.fix == "set DISAGG_HOME to a folder of yours"


def test_a_home_that_can_only_be_read(home, monkeypatch):
    """Root may write wherever permissions forbid it, but not to a file system that is mounted like this."""
    rundir.create("demo")

    def read_only(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("pathlib.Path.mkdir", read_only)
    with pytest.raises(UsageError, match=r"cannot write to .*: Read-only file system"):
        rundir.create("demo")


def test_a_home_that_has_no_room_is_no_wrong_home(home, monkeypatch):
    """cli/app.py knows a full disk by its number."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.mkdir", full)
    with pytest.raises(OSError, match="No space left"):
        rundir.create("demo")


def test_a_file_that_is_not_there_is_empty(tmp_path):
    assert RunDir(tmp_path).read("state.json") == {}


DAMAGED = [b"", b'{"schema": "disagg.sta', b"\xff\xfe\x00\n", b"[]", b"null"]
"""A file after a power cut, on a disk that was full, or written by nobody of ours."""


@pytest.mark.parametrize("content", DAMAGED)
def test_a_file_that_is_damaged_is_named(tmp_path, content):
    (tmp_path / "probe.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"^probe.json of .* cannot be read: ") as caught:
        RunDir(tmp_path).read("probe.json")
    assert caught.value.where == str(tmp_path / "probe.json")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": "disagg.state/0"}, "its schema is disagg.state/0, and not disagg.state/1"),
        ({"pid": ...}, "it lacks pid"),
        ({"processes": {}}, "it lacks processes"),
        ({"processes": [{"name": "decode-0"}]}, "it lacks log of a process, "),
    ],
)
def test_a_state_of_another_disagg_says_what_is_amiss(home, changes, said):
    run = a_run(process("decode-0")).directory
    state = run.state() | changes
    run.write("state.json", {key: value for key, value in state.items() if value is not ...})
    with pytest.raises(UsageError, match=f"state.json of .* cannot be read: {said}"):
        run.state()


@pytest.mark.parametrize("line", [b"\x00\x00", b'{"kind": "run"}', b'{"text": "serv', b"7"])
def test_an_event_whose_line_is_damaged(line):
    assert event(line) == {"text": "(a line of events.jsonl is damaged)"}


def test_a_reader_never_sees_half_a_file(tmp_path):
    """A writer in another process; every look here finds a whole document."""
    run = RunDir(tmp_path)
    run.write("state.json", {"text": "x"})
    write = (
        "import sys; from pathlib import Path; from disagg_cli.runtime.rundir import RunDir\n"
        "for n in range(200): RunDir(Path(sys.argv[1])).write('state.json', {'text': 'x' * (n * 997 % 99991)})"
    )
    with subprocess.Popen([sys.executable, "-c", write, tmp_path]) as writer:
        while writer.poll() is None:
            assert set(run.read("state.json")["text"]) <= {"x"}
    assert writer.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_lines_are_appended(tmp_path):
    for number in range(3):
        RunDir(tmp_path).append("events.jsonl", {"n": number})
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["n"] for line in lines] == [0, 1, 2]


def test_a_full_disk_takes_no_half_a_line(tmp_path, monkeypatch):
    """It takes what there is room for; the rest of the line would make one with the next."""
    monkeypatch.setattr("disagg_cli.runtime.rundir.json.dumps", lambda record: "x" * 100)
    RunDir(tmp_path).append("events.jsonl", {})
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, before[1]))
    try:
        with pytest.raises(OSError, match="No space left"):
            RunDir(tmp_path).append("events.jsonl", {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert (tmp_path / "events.jsonl").read_text() == "x" * 100 + "\n"


def test_a_document_that_does_not_fit_leaves_the_old_one_and_no_draft(tmp_path, monkeypatch):
    RunDir(tmp_path).write("state.json", {"n": 1})

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.rename", full)
    with pytest.raises(OSError, match="No space left"):
        RunDir(tmp_path).write("state.json", {"n": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
    assert RunDir(tmp_path).read("state.json") == {"n": 1}


@pytest.mark.parametrize("phase", ["serving", "evaluating"])
def test_where_the_current_run_answers(home, phase):
    recorder = a_run()
    recorder.run_phase(phase)
    assert rundir.serving().url == "http://127.0.0.1:8000"


def test_a_run_that_does_not_serve_answers_nobody(home):
    a_run().run_phase("probing")
    with pytest.raises(UsageError, match=r"the last run does not serve \(it is probing\)"):
        rundir.serving()
