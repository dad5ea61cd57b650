"""Messages without sockets, and threads that run only when told to."""

import threading

import pytest

from disagg_cli.connector.conformance.wire import Inbox, Silence, Threads, Wire


def test_what_is_sent_to_an_endpoint_waits_at_its_port():
    wire = Wire()
    wire.connect("tcp://127.0.0.1:20001").send_multipart((b"room", b"1"))
    assert wire.inbox(20001).recv_multipart() == [b"room", b"1"]
    assert not wire.inbox(20001)


def test_an_empty_inbox_is_silent():
    with pytest.raises(Silence):
        Inbox().get()


def test_no_exception_handler_of_a_loop_catches_the_silence():
    assert not issubclass(Silence, Exception)


def test_a_thread_runs_when_told_to_until_there_is_nothing_to_read():
    inbox, seen, threads = Inbox(), [], Threads()

    def transfer_worker(queue):
        while True:
            seen.append(queue.get())

    threads.module().Thread(target=transfer_worker, args=(inbox,), daemon=True).start()
    inbox.put(1)
    inbox.put(2)
    assert seen == []
    threads.run("bootstrap_thread")
    assert seen == []
    threads.run("transfer_worker", inbox)
    assert seen == [1, 2]


def test_the_rest_of_the_module_is_threadings():
    assert Threads().module().Lock is threading.Lock
