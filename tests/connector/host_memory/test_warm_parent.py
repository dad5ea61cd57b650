"""The process that forks servers, asked over its socket. Tiny programs stand where SGLang would be."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waiting import wait_until

from disagg_cli.executors import sessions

TINY_PARENT = Path(__file__).parents[2] / "tiny_parent.py"
FOREVER = "import time; print('ready', flush=True); time.sleep(60)"


def server(code, log, env=None, argv=()):
    """What to start, from here."""
    return {
        "name": "server",
        "module": "sglang.launch_server",
        "argv": [code, *argv],
        "env": env or {},
        "log": str(log),
        "folder": str(Path.cwd()),
        "umask": 0o022,
        "cores": sorted(os.sched_getaffinity(0)),
        "nice": os.nice(0),
        "limits": [],
    }


class Client:
    """One connection to a parent."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.file = self.socket.makefile("rwb")

    def ask(self, **request):
        self.send(request)
        return self.answer()

    def send(self, *requests):
        self.file.write(b"".join(json.dumps(request).encode() + b"\n" for request in requests))
        self.file.flush()

    def answer(self):
        return json.loads(self.file.readline())

    def start(self, code, log, env=None, argv=()):
        return self.ask(start=server(code, log, env, argv))["pid"]

    def exit_code(self, pid):
        """Its exit code, once there is one."""
        while (code := self.ask(poll=pid)["exit"]) is None:
            pass
        return code

    def close(self):
        self.file.close()
        self.socket.close()


@pytest.fixture
def parent(tmp_path):
    command = [sys.executable, TINY_PARENT, tmp_path / "s"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    # Of its own: other tests leave variables behind that servers here do not have.
    with subprocess.Popen(command, env={"HERE": "1"}, start_new_session=True, **pipes) as process:
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.stdin.close()
        process.wait(10)  # it has ended its servers then


@pytest.fixture
def client(parent, tmp_path):
    client = Client(tmp_path / "s")
    yield client
    client.close()


def runs(pid):
    return bool(sessions.members(pid))


def test_only_its_owner_may_ask(parent, tmp_path):
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600


def test_a_server_runs_in_a_session_of_its_own(client, parent, tmp_path):
    pid = client.start(FOREVER, tmp_path / "log")
    wait_until(lambda: runs(pid))
    assert client.ask(poll=pid) == {"exit": None}
    assert os.getsid(pid) == pid != parent.pid


@pytest.mark.parametrize(
    ("code", "exit_code", "log"),
    [
        ("print('done')", 0, "done\n"),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('the reason')", 1, "the reason\n"),
        ("raise SystemExit", 0, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV, ""),
    ],
)
def test_exit_codes_and_logs(client, tmp_path, code, exit_code, log):
    assert client.exit_code(client.start(code, tmp_path / "log")) == exit_code
    assert (tmp_path / "log").read_text() == log


def test_an_exception_is_in_the_servers_log(client, tmp_path):
    assert client.exit_code(client.start("1 / 0", tmp_path / "log")) == 1
    assert (tmp_path / "log").read_text().endswith("ZeroDivisionError: division by zero\n")


def test_the_environment_is_the_one_that_was_asked_for(client, tmp_path):
    """And nothing of the parent's."""
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    client.exit_code(client.start(show, tmp_path / "log", env={"A": "b c"}))
    assert json.loads((tmp_path / "log").read_text()) == {"A": "b c"}


def test_the_command_line_is_as_if_it_had_been_started(client, tmp_path):
    client.exit_code(client.start("import sys; print(sys.argv[0], sys.argv[2:])", tmp_path / "log", argv=["--tp", "2"]))
    assert (tmp_path / "log").read_text() == "sglang.launch_server ['--tp', '2']\n"


def test_siblings_draw_different_random_numbers(client, tmp_path):
    for name in ("0", "1"):
        client.exit_code(client.start("import random; print(random.random())", tmp_path / name))
    assert (tmp_path / "0").read_text() != (tmp_path / "1").read_text()


def test_a_server_holds_nothing_of_its_parents(client, tmp_path):
    """Three descriptors of its own, and no socket: else a dead parent's connections would look alive."""
    show = "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')[:-1]])"
    client.exit_code(client.start(show, tmp_path / "log"))
    assert "socket:" not in (tmp_path / "log").read_text()


def test_several_requests_in_one_packet(client):
    client.send({"poll": 1}, {"poll": 2}, {"poll": 3})
    assert [client.answer() for _ in range(3)] == [{"exit": None}] * 3


def test_a_request_in_pieces(client):
    client.socket.sendall(b'{"po')
    other = b'll": 1}\n'
    client.socket.sendall(other)
    assert client.answer() == {"exit": None}


def test_a_closed_connection_ends_its_servers_and_no_others(client, parent, tmp_path):
    other = Client(tmp_path / "s")
    mine, theirs = client.start(FOREVER, tmp_path / "0"), other.start(FOREVER, tmp_path / "1")
    wait_until(lambda: runs(mine) and runs(theirs))
    other.close()
    wait_until(lambda: not runs(theirs))
    assert client.ask(poll=mine) == {"exit": None}


def test_a_closed_connection_ends_children_too(client, parent, tmp_path):
    other = Client(tmp_path / "s")
    pid = other.start(f"import subprocess; subprocess.Popen(['sleep', '60']); {FOREVER}", tmp_path / "log")
    wait_until(lambda: len(sessions.members(pid)) == 2)
    other.close()
    wait_until(lambda: not runs(pid))


def test_a_client_that_is_killed_leaves_no_server(parent, tmp_path):
    code = (
        "import json, socket, time; s = socket.socket(socket.AF_UNIX); s.connect(SOCKET);"
        "s.sendall(json.dumps(REQUEST).encode() + b'\\n'); print(s.recv(99).decode(), flush=True); time.sleep(60)"
    )
    request = {"start": server(FOREVER, tmp_path / "log")}
    code = code.replace("SOCKET", repr(str(tmp_path / "s"))).replace("REQUEST", repr(request))
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE) as owner:
        pid = json.loads(owner.stdout.readline())["pid"]
        wait_until(lambda: runs(pid))
        owner.kill()
    wait_until(lambda: not runs(pid))


def test_it_leaves_when_its_standard_input_closes(client, parent, tmp_path):
    pid = client.start(FOREVER, tmp_path / "log")
    wait_until(lambda: runs(pid))
    parent.stdin.close()
    assert parent.wait(10) == 0
    wait_until(lambda: not runs(pid))


def test_servers_do_not_keep_its_output_open(client, parent, tmp_path):
    """Whoever reads the parent's output sees its end when the parent is gone."""
    pid = client.start(FOREVER, tmp_path / "log")
    wait_until(lambda: runs(pid))
    parent.kill()
    assert parent.stdout.read() == b""


def test_a_log_that_cannot_be_opened(client, tmp_path):
    answer = client.ask(start=server("pass", tmp_path / "no" / "log"))
    assert "No such file" in answer["error"]
    assert client.exit_code(client.start("pass", tmp_path / "log")) == 0


def test_a_log_that_does_not_open(client, tmp_path):
    """A pipe that nobody reads, or a disk that hangs, holds up one server and no others."""
    os.mkfifo(tmp_path / "log")
    assert client.ask(start=server("pass", tmp_path / "log")) == {"error": "not ready to start after 5 s"}
    assert client.exit_code(client.start("pass", tmp_path / "other")) == 0


@pytest.mark.parametrize("request_", [b"not JSON\n", b"7\n", b'{"start": {}}\n', b'{"start": {"name": 1}}\n'])
def test_who_does_not_speak_its_language_is_let_go(client, parent, tmp_path, request_):
    other = Client(tmp_path / "s")
    other.socket.sendall(request_)
    assert other.file.readline() == b""
    assert client.ask(unknown=1) == {"error": "unknown request: unknown"}


def test_many_servers_leave_nothing_behind(client, parent, tmp_path):
    """Descriptors, zombies, memory: as before, however many servers have come and gone."""

    def round_of_servers(number):
        """Half of them by their own end, half with their connection."""
        other = Client(tmp_path / "s")
        for one in range(number // 2):
            client.exit_code(client.start("pass", tmp_path / f"{one}"))
            other.start(FOREVER, tmp_path / f"other-{one}")
        other.close()
        wait_until(lambda: not psutil.Process(parent.pid).children())

    def held():
        return len(list(Path(f"/proc/{parent.pid}/fd").iterdir())), psutil.Process(parent.pid).memory_info().rss

    round_of_servers(6)
    descriptors, memory = held()
    round_of_servers(20)
    assert held()[0] == descriptors
    assert held()[1] - memory < 512 * 1024


def test_servers_die_with_it(client, parent, tmp_path):
    """Whoever asked for them may be gone by then, too, and nobody would end them."""
    pid = client.start(FOREVER, tmp_path / "log")
    parent.kill()
    wait_until(lambda: not runs(pid))


def test_the_end_of_one_server_is_no_other_ones(client, tmp_path):
    victim, other = client.start(FOREVER, tmp_path / "0"), client.start(FOREVER, tmp_path / "1")
    os.kill(victim, signal.SIGKILL)
    assert client.exit_code(victim) == -signal.SIGKILL
    assert client.ask(poll=other) == {"exit": None}


def test_exit_codes_are_told_only_to_whom_they_concern(client, tmp_path):
    """Pids are given again: an old exit code must not be taken for that of a younger server."""
    pid = client.start("raise SystemExit(3)", tmp_path / "log")
    client.exit_code(pid)
    other = Client(tmp_path / "s")
    assert other.ask(poll=pid) == {"exit": None}
    other.close()


def test_what_the_import_has_read_must_be_the_same(client, parent, tmp_path):
    wanted = server("pass", tmp_path / "log", env={"TINY_IMPORT": "2"})
    assert client.ask(start=wanted) == {"differs": ["TINY_IMPORT"]}
    assert client.ask(fits=wanted["env"]) == {"changed": [], "differs": ["TINY_IMPORT"]}
    assert client.ask(fits={"OTHER": "2"}) == {"changed": [], "differs": []}
    wanted |= {"module": "sglang_router.launch_router"}
    assert "pid" in client.ask(start=wanted)  # it reads its environment when it runs


def test_it_says_what_it_is_doing(client, parent, tmp_path):
    assert client.ask(look=True)["servers"] == []
    pid = client.start(FOREVER, tmp_path / "log")
    found = client.ask(look=True)
    assert found["pid"] == parent.pid
    assert found["idle_since"] is None
    assert [(one["name"], one["pid"], one["log"]) for one in found["servers"]] == [
        ("server", pid, str(tmp_path / "log"))
    ]


def test_it_ends_when_it_is_told_to(client, parent, tmp_path):
    pid = client.start(FOREVER, tmp_path / "log")
    assert client.ask(end=True) == {"pid": parent.pid}
    assert parent.wait(10) == 0
    wait_until(lambda: not runs(pid))
    assert not (tmp_path / "s").exists()
