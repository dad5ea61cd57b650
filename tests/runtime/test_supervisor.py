"""The processes of a run, with real ones: who died, and that all of them end."""

import asyncio
import errno
import time
from typing import ClassVar

import pytest
from supervised import FOREVER, HERE, QUICK, command
from waiting import until

from disagg_cli.engine.commands import Command
from disagg_cli.errors import LaunchFailed
from disagg_cli.executors.local import LocalExecutor
from disagg_cli.runtime.rundir import RunDir
from disagg_cli.runtime.supervisor import ProcessDied, in_words
from disagg_cli.settings import Timeouts

STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {FOREVER}"
STUBBORN_FAMILY = f"import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', {STUBBORN!r}]); {STUBBORN}"


async def test_what_was_started_is_on_record(supervised):
    async with supervised() as run:
        await run.start(command("decode-0", FOREVER))
        pid = run.supervisor.handles["decode-0"].pid
        (on_record,) = run.recorder.directory.read("state.json")["processes"]
        assert (on_record["pid"], on_record["phase"]) == (pid, "starting")


async def test_what_was_started_before_a_start_failed_is_ended_too(supervised):
    async with supervised() as run:
        missing = Command(name="decode-1", host=HERE, argv=("/no/such/python",), env={})
        with pytest.raises(LaunchFailed, match="decode-1 could not be started"):
            await run.start(command("decode-0", FOREVER), missing)
        assert len(run.left()) == 1
        await run.supervisor.stop(asyncio.Event())
        assert run.left() == []


class Slow(LocalExecutor):
    """A place where a start takes a while, as on another host."""

    async def start(self, command, log):
        await asyncio.sleep(0.3)
        return await super().start(command, log)


async def test_processes_start_side_by_side(supervised):
    async with supervised() as run:
        run.supervisor.executor = Slow()
        begun = time.monotonic()
        await run.start(*(command(f"decode-{n}", FOREVER) for n in range(8)))
        assert time.monotonic() - begun < 8 * 0.3
        assert len(run.left()) == 8


async def test_what_is_being_started_when_a_stop_comes_is_ended_too(supervised):
    """It exists a moment later, and nobody else would know of it."""
    async with supervised() as run:
        run.supervisor.executor = Slow()
        start = asyncio.create_task(run.start(command("decode-0", FOREVER)))
        await asyncio.sleep(0.05)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert len(run.left()) == 1
        await run.supervisor.stop(asyncio.Event())
        assert run.left() == []


async def test_watch_names_who_died_with_its_last_lines(supervised):
    async with supervised() as run:
        await run.start(command("prefill-0", FOREVER), command("decode-0", "print('the reason'); raise SystemExit(3)"))
        with pytest.raises(LaunchFailed) as caught:
            await run.supervisor.watch()
        assert caught.value.what == "decode-0 died: exit code 3\ncause: unknown\n  | the reason"
        assert caught.value.where == str(run.recorder.directory.log("decode-0"))
        assert (run.phase("decode-0"), run.phase("prefill-0")) == ("failed", "starting")


async def test_a_death_is_told_although_it_cannot_be_written_down(supervised, monkeypatch):
    async with supervised() as run:
        await run.start(command("decode-0", "print('the reason'); raise SystemExit(3)"))

        def read_only(*_):
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(RunDir, "append", read_only)
        with pytest.raises(ProcessDied, match="decode-0 died: exit code 3"):
            await run.supervisor.watch()


async def test_watch_names_the_signal(supervised):
    async with supervised() as run:
        await run.start(command("decode-0", "import os; os.kill(os.getpid(), 9)"))
        with pytest.raises(
            LaunchFailed, match=r"decode-0 died: killed by SIGKILL\ncause: unknown\n  \| \(the log is empty\)"
        ):
            await run.supervisor.watch()


async def test_watch_notices_a_process_that_is_started_later(supervised):
    async with supervised() as run:
        watch = asyncio.create_task(run.supervisor.watch())
        await run.start(command("router", "raise SystemExit(1)"))
        with pytest.raises(LaunchFailed, match="router died"):
            await watch


async def test_a_secret_that_a_process_prints_stands_in_no_report(supervised):
    async with supervised() as run:
        env = {"HF_TOKEN": "hf_planted"}
        dies = Command(name="decode-0", host=HERE, argv=("/bin/sh", "-c", "echo 401 for $HF_TOKEN; exit 3"), env=env)
        await run.start(dies)
        with pytest.raises(ProcessDied, match=r"401 for \*\*\*"):
            await run.supervisor.watch()
        assert "hf_planted" not in (run.recorder.directory.path / "events.jsonl").read_text()


async def stopped(run):
    """Stop without hurry. How many seconds it took."""
    begun = time.monotonic()
    assert await run.supervisor.stop(asyncio.Event()) == {}
    return time.monotonic() - begun


async def test_stop_asks_first(supervised):
    async with supervised() as run:
        polite = f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: (print('bye'), sys.exit())); {FOREVER}"
        await run.start(command("decode-0", polite))
        await run.ready("decode-0")
        assert await stopped(run) < QUICK.grace
        assert run.recorder.directory.log("decode-0").read_text() == "ready\nbye\n"
        assert (run.phase("decode-0"), run.left()) == ("stopped", [])


async def test_stop_kills_what_does_not_listen(supervised):
    """With its children, within the time of grace and the time to go."""
    times = Timeouts(grace=0.2, gone=5.0, poll=0.01)
    async with supervised(times) as run:
        await run.start(command("decode-0", STUBBORN_FAMILY))
        await run.ready("decode-0")
        await until(lambda: len(run.left()) == 2)
        assert times.grace <= await stopped(run) < times.grace + times.gone
        assert run.left() == []


async def test_stop_ends_children_whose_leader_has_died(supervised):
    """A rank that outlives its server holds its GPU and its ports."""
    code = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, 'ready')"
    async with supervised(Timeouts(grace=0.1, gone=5.0, poll=0.01)) as run:
        await run.start(command("decode-0", code))
        with pytest.raises(LaunchFailed, match="decode-0 died"):
            await run.supervisor.watch()
        assert len(run.left()) == 1
        await stopped(run)
        assert (run.left(), run.phase("decode-0")) == ([], "failed")


async def test_hurry_skips_the_time_of_grace(supervised):
    async with supervised(Timeouts(grace=60.0, gone=5.0, poll=0.01)) as run:
        await run.start(command("decode-0", STUBBORN))
        await run.ready("decode-0")
        hurry = asyncio.Event()
        stopping = asyncio.create_task(run.supervisor.stop(hurry))
        await asyncio.sleep(0)
        hurry.set()
        assert await asyncio.wait_for(stopping, 10) == {}
        assert run.left() == []


async def test_what_does_not_go_is_named(supervised):
    """Nothing outlives SIGKILL on demand, so this executor keeps its signal to itself."""

    class Weak(LocalExecutor):
        async def kill(self, handle):
            pass

    async with supervised(Timeouts(grace=0.0, gone=0.05, poll=0.01)) as run:
        run.supervisor.executor = Weak()
        await run.start(command("decode-0", STUBBORN))
        await run.ready("decode-0")
        assert await run.supervisor.stop(asyncio.Event()) == {"decode-0": "still running after SIGKILL"}


async def test_a_lost_host_keeps_nobody_else_from_being_ended(supervised):
    """What runs on the others is ended, its log fetched, and on record as gone; what was on the lost one is named."""

    class OneLost(LocalExecutor):
        collected: ClassVar = []

        async def survivors(self, handle):
            if handle.name == "decode-0":
                raise LaunchFailed("host a does not answer")
            return await super().survivors(handle)

        async def collect(self, handle):
            self.collected.append(handle.name)

    names = ("decode-0", "decode-1", "prefill-0")
    async with supervised(Timeouts(grace=0.0, gone=60.0, unanswered=0.05, poll=0.01)) as run:
        run.supervisor.executor = OneLost()
        await run.start(*(command(name, FOREVER) for name in names))
        left = await run.supervisor.stop(asyncio.Event())
        assert in_words(left) == "nobody knows whether it still runs (host a does not answer): decode-0"
        assert set(run.supervisor.handles) == {"decode-0"}
        assert sorted(OneLost.collected) == ["decode-1", "prefill-0"]
        assert [run.phase(name) for name in names] == ["starting", "stopped", "stopped"]
        on_record = run.recorder.directory.read("state.json")["processes"]
        assert [process["gone"] for process in on_record] == [False, True, True]


class Hangs(LocalExecutor):
    """A place whose host a does not answer. Nothing hangs on demand here."""

    async def survivors(self, handle):
        await asyncio.sleep(60 if handle.name == "decode-0" else 0)
        return await super().survivors(handle)


async def test_hurry_waits_for_no_host_that_hangs(supervised):
    """What runs elsewhere is on record as gone before that, and says so."""
    async with supervised(Timeouts(grace=0.0, gone=60.0, unanswered=60.0, hurried=0.2, poll=0.01)) as run:
        run.supervisor.executor = Hangs()
        await run.start(command("decode-0", FOREVER), command("decode-1", FOREVER))
        hurry = asyncio.Event()
        stopping = asyncio.create_task(run.supervisor.stop(hurry))
        await until(lambda: run.phase("decode-1") == "stopped")
        assert set(run.supervisor.handles) == {"decode-0"}
        assert not stopping.done()
        hurry.set()
        left = await asyncio.wait_for(stopping, 10)
        assert in_words(left) == "nobody knows whether it still runs (its host does not answer): decode-0"


async def test_a_listener_that_fails_keeps_nobody_from_being_ended(supervised):
    def broken(text):
        raise ValueError(text)

    async with supervised() as run:
        await run.start(command("decode-0", FOREVER), command("decode-1", STUBBORN))
        await run.ready("decode-1")
        run.recorder.listeners.append(broken)
        with pytest.raises(ValueError, match="stopped"):
            await run.supervisor.stop(asyncio.Event(), drain=False)
        assert run.left() == []


async def test_stop_with_nothing_started(supervised):
    async with supervised() as run:
        assert await run.supervisor.stop(asyncio.Event()) == {}
