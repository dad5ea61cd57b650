"""Sessions of real processes, and ports."""

import contextlib
import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest
from waiting import wait_until

from disagg_cli.executors import sessions

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]


@contextlib.contextmanager
def leader(argv=tuple(SLEEP), **more):
    """A process in a session of its own, which is not waited for until the end."""
    child = subprocess.Popen(argv, start_new_session=True, **more)
    try:
        yield child
    finally:
        sessions.kill_session(child.pid)
        child.wait(10)


def test_a_session_of_one():
    with leader() as child:
        assert sessions.members(child.pid) == (child.pid,)


def test_a_session_of_nobody():
    with leader() as child:
        child.kill()
        child.wait(10)
        assert sessions.members(child.pid) == ()


def test_this_process_is_in_no_session_of_its_children():
    with leader() as child:
        assert os.getpid() not in sessions.members(child.pid)


def test_a_zombie_is_no_member():
    with leader() as child:
        child.kill()
        wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
        assert sessions.members(child.pid) == ()
        assert not sessions.same_process(child.pid, sessions.born(child.pid))


def test_children_outlive_the_leader():
    code = "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL).pid)"
    with leader((sys.executable, "-S", "-c", code), stdout=subprocess.PIPE, text=True) as child:
        grandchild = int(child.stdout.read())
        child.wait(10)
        assert sessions.members(child.pid) == (grandchild,)
        sessions.kill_session(child.pid)
        wait_until(lambda: not sessions.members(child.pid))


def test_a_group_of_its_own_does_not_leave_the_session():
    code = "import subprocess; subprocess.Popen(['sleep', '60'], process_group=0).wait()"
    with leader((sys.executable, "-S", "-c", code)) as child:
        wait_until(lambda: len(sessions.members(child.pid)) == 2)
        sessions.kill_session(child.pid)
        wait_until(lambda: not sessions.members(child.pid))


def test_a_process_is_told_from_another_with_its_pid():
    with leader() as child:
        born = sessions.born(child.pid)
        assert sessions.same_process(child.pid, born)
        assert not sessions.same_process(child.pid, born - 100)
        assert not sessions.same_process(child.pid, 0.0)


def test_a_pid_that_nobody_has():
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait(10)
    assert sessions.born(gone.pid) == 0.0
    assert not sessions.same_process(gone.pid, 0.0)
    sessions.send(gone.pid, signal.SIGTERM)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_port_that_someone_listens_on(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        assert sessions.taken(address, [port]) == (port,)
    assert sessions.taken(address, [port]) == ()


def test_a_port_that_someone_listens_on_at_every_address():
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        assert sessions.taken("127.0.0.1", [port]) == (port,)


def test_only_the_taken_ones():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        busy, free = server.getsockname()[1], other.getsockname()[1]
        other.close()
        assert sessions.taken("127.0.0.1", [busy, free]) == (busy,)


def test_a_connection_that_lingers_does_not_take_its_port():
    """The side that closes first keeps TIME_WAIT; servers bind all the same."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()
            assert client.recv(1) == b""
    assert sessions.taken("127.0.0.1", [port]) == ()
