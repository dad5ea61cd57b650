"""What a process has from its starter and from Python, whether it is started by a command line or forked."""

import os

import pytest
from places import local_place, warm_place

from disagg_cli.errors import LaunchFailed


@pytest.fixture(params=["local", "warm"])
def place(request, tmp_path):
    """A place of this machine: an async context manager."""
    if request.param == "local":
        return local_place(tmp_path)
    request.getfixturevalue("shared_parent")
    return warm_place(tmp_path)


async def test_an_interrupt_is_pythons_own(place):
    async with place as here:
        handle = await here.start("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
        await here.ended(handle)
        assert handle.log.read_text().endswith("KeyboardInterrupt\n")


async def test_no_signal_is_ignored_that_python_does_not_ignore(place):
    async with place as here:
        show = "import signal; print({s.name for s in signal.Signals if signal.getsignal(s) is signal.SIG_IGN})"
        handle = await here.start(show)
        await here.ended(handle)
        assert set(eval(handle.log.read_text())) == {"SIGPIPE", "SIGXFSZ"}


async def test_output_that_is_buffered_comes_after_errors_that_are_not(place):
    async with place as here:
        handle = await here.start("import sys; print('out'); print('err', file=sys.stderr)", PYTHONUNBUFFERED="")
        await here.ended(handle)
        assert handle.log.read_text() == "err\nout\n"


async def test_output_is_not_buffered_where_the_environment_says_so(place):
    async with place as here:
        handle = await here.start("import sys; print('out'); print('err', file=sys.stderr)", PYTHONUNBUFFERED="1")
        await here.ended(handle)
        assert handle.log.read_text() == "out\nerr\n"


async def test_what_is_left_to_do_at_the_end_is_done(place):
    late = "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()"
    code = f"import atexit, threading, time; atexit.register(print, 'at exit'); {late}; print('main')"
    async with place as here:
        handle = await here.start(code)
        assert await here.ended(handle) == 0
        assert handle.log.read_text() == "main\nthread\nat exit\n"


async def test_a_log_that_cannot_be_written(place, tmp_path):
    async with place as here:
        with pytest.raises(LaunchFailed, match=r"program could not be started: .*No such file"):
            await here.executor.start(here.program("pass"), tmp_path / "no" / "log")
        assert await here.ended(await here.start("pass")) == 0


async def test_it_starts_where_its_starter_is(place, tmp_path, monkeypatch):
    """In its folder, with its umask, on its cores, and with nothing open but its log."""
    monkeypatch.chdir(tmp_path)
    umask, cores = os.umask(0o027), os.sched_getaffinity(0)
    try:
        async with place as here:
            opened = "sorted(int(n) for n in os.listdir('/proc/self/fd'))[:-1]"
            show = f"import os; print(os.getcwd(), os.umask(0), os.sched_getaffinity(0), {opened})"
            os.sched_setaffinity(0, {min(cores)})
            handle = await here.start(show)
            await here.ended(handle)
            assert handle.log.read_text() == f"{tmp_path} {0o027} {{{min(cores)}}} [0, 1, 2]\n"
    finally:
        os.umask(umask)
        os.sched_setaffinity(0, cores)
