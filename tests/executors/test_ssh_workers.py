"""Workers on hosts that ssh reaches: their ends, their logs, disks and memory there, and what is sent."""

import ast
import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest
from places import FOREVER, hold_segment, segments_of, ssh_place
from ssh_lab import HOSTS
from waiting import until

from disagg_cli.errors import LaunchFailed
from disagg_cli.executors import helper, ssh_connection
from disagg_cli.executors.protocol import UNKNOWN_EXIT
from disagg_cli.executors.ssh_connection import SENDS, modules


async def test_a_worker_that_nobody_asks_after_is_ended(ssh_lab, tmp_path):
    async with ssh_place(tmp_path, ssh_lab, lease=1.0) as here:
        handle = await here.start(FOREVER)
        await asyncio.sleep(3)
        assert await here.executor.poll(handle) is None  # as long as it is followed, it goes on
        await here.executor.close()
        await until(lambda: not ssh_lab.processes(), within=60)
        here.executor = here.again()
        assert await here.ended(handle) == -signal.SIGTERM
        assert "disagg: ended, because nobody has asked after it for 1 s" in handle.log.read_text()


async def test_a_worker_whose_keeper_has_been_killed_goes_on(ssh_lab, tmp_path):
    """Only how it ends is then not known."""
    async with ssh_place(tmp_path, ssh_lab) as here:
        handle = await here.start(FOREVER)
        next(one for one in ssh_lab.processes() if "disagg-keeper" in one.cmdline()).kill()
        await asyncio.sleep(0.5)
        assert await here.executor.poll(handle) is None
        await here.executor.kill(handle)
        assert await here.ended(handle) == UNKNOWN_EXIT


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 64 KiB: a real one, which says ENOSPC."""
    (folder := tmp_path / "disk").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


async def test_a_full_disk_here_hides_no_death(ssh_lab, tmp_path, small_disk):
    """How a process ended is known at once. Its log waits on its host until there is room for it here."""
    async with ssh_place(tmp_path, ssh_lab) as here:
        (ballast := small_disk / "ballast").write_bytes(bytes(56 << 10))
        here.folder = small_disk
        handle = await here.start("print('x' * 30_000); print('last'); raise SystemExit(3)")
        async with asyncio.timeout(60):
            assert await here.ended(handle) == 3
        await here.executor.collect(handle)
        assert handle.log.read_text() == ""
        ballast.unlink()
        await here.executor.collect(handle)
        assert handle.log.read_text() == "x" * 30_000 + "\nlast\n"
        assert not list((ssh_lab.state / "disagg/remote").glob(f"{tmp_path.name}*"))


@pytest.fixture
def full_host(ssh_lab):
    """h1, whose disk for logs can be filled: a real one of 512 KiB."""
    if not ssh_lab.isolated:
        pytest.skip("hosts share every folder where namespaces are not allowed")
    folder = ssh_lab.state / "disagg/remote"
    folder.mkdir(parents=True, exist_ok=True)
    ssh_lab.run("h1", f"mount -t tmpfs -o size=512k tmpfs {folder}")
    yield lambda: ssh_lab.run("h1", f"dd if=/dev/zero of={folder}/ballast bs=4k; df {folder}")
    ssh_lab.run("h1", f"umount -l {folder}")


async def test_how_a_worker_ended_whose_host_has_no_room_to_write_it_down(ssh_lab, tmp_path, full_host):
    """The host is named: while it happens, and in the log of what ended meanwhile."""
    told = []
    async with ssh_place(tmp_path, ssh_lab, tell=told.append) as here:
        go = tmp_path / "go"
        code = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.1)\nos._exit(3)"
        handle = await here.start(code)
        assert "100%" in full_host().stdout
        await until(lambda: told, within=60)
        assert told == ["disk full: no room for logs on h1, below ~/.local/state"]
        go.touch()
        async with asyncio.timeout(60):
            assert await here.ended(handle) == 3
            await here.executor.collect(handle)
        assert handle.log.read_text() == "disagg: as this ended on h1, the disk with its log was full\n"
    await until(lambda: not ssh_lab.processes("h1"), within=60)
    assert ssh_lab.run("h1", f"ls {ssh_lab.state}/disagg/remote").stdout == "ballast\n"


async def test_a_start_on_a_host_whose_disk_is_full(ssh_lab, tmp_path, full_host):
    """It says so, and a worker that could not be put on record does not run."""
    async with ssh_place(tmp_path, ssh_lab) as here:
        await here.ended(await here.start("pass"))
        full_host()
        with pytest.raises(LaunchFailed, match=r"could not be started: disk full: h1: .*No space left") as caught:
            await here.start(f"{FOREVER}  # on a full disk")
        assert caught.value.where == "h1"
        await until(lambda: not _named(ssh_lab, "on a full disk"), within=60)


async def test_a_start_on_a_host_whose_home_cannot_be_written(ssh_lab, tmp_path):
    if not ssh_lab.isolated:
        pytest.skip("hosts share every folder where namespaces are not allowed")
    folder = ssh_lab.state / "disagg/remote"
    folder.mkdir(parents=True, exist_ok=True)
    ssh_lab.run("h1", f"mount -t tmpfs -o ro tmpfs {folder}")
    try:
        async with ssh_place(tmp_path, ssh_lab) as here:
            with pytest.raises(LaunchFailed, match=r"could not be started: h1: .*Read-only file system") as caught:
                await here.start("pass")
        assert caught.value.where == "h1"
        assert "XDG_STATE_HOME" in caught.value.fix
    finally:
        ssh_lab.run("h1", f"umount -l {folder}")


async def test_two_starts_of_one_worker(ssh_lab, tmp_path):
    """The second is the first once more: its answer was lost with a connection, and its keeper is still at it."""
    async with ssh_place(tmp_path, ssh_lab) as here:
        command = here.program(FOREVER)
        what = {"token": f"{tmp_path.name}/twice", "argv": list(command.argv), "env": {}, "lease": 60}
        answers = await asyncio.gather(*(here.executor._at("h1").ask("start", **what) for _ in range(4)))
        await until(lambda: len(_named(ssh_lab, "disagg-keeper")) == 1, within=60)
        workers = _named(ssh_lab, FOREVER)
        await here.executor._at("h1").ask("kill", token=what["token"])
        await here.executor._at("h1").ask("forget", token=what["token"])
        assert (len(workers), len({one["pid"] for one in answers})) == (1, 1)


def _named(lab, word):
    """Processes of h1 with this on their command line."""
    found = []
    for process in lab.processes("h1"):
        with contextlib.suppress(psutil.Error):  # it has just ended
            found += [process] if any(word in argument for argument in process.cmdline()) else []
    return found


async def test_a_start_on_a_host_that_hangs_is_not_waited_for(ssh_lab, tmp_path):
    """What was begun there cannot be undone now; that is said, and a host ends by itself what nobody asks after."""
    told = []
    async with ssh_place(tmp_path, ssh_lab, lease=2.0, tell=told.append) as here:
        await here.executor.look([here.host], {}, [])
        ssh_lab.freeze("h1")
        try:
            starting = asyncio.create_task(here.start(FOREVER))
            await asyncio.sleep(0.2)
            starting.cancel()
            done, _ = await asyncio.wait([starting], timeout=60)
            assert done
            assert any("program may run on h1, which hangs" in text for text in told)
        finally:
            ssh_lab.thaw("h1")
    await until(lambda: not ssh_lab.processes(), within=60)


async def test_what_was_written_while_nobody_followed(ssh_lab, tmp_path):
    """A later executor goes on where the first one stopped."""
    async with ssh_place(tmp_path, ssh_lab) as here:
        handle = await here.start("import time; print('first', flush=True); time.sleep(3); print('last')")
        await until(lambda: "first" in handle.log.read_text())
        await asyncio.sleep(0.5)
        await here.executor.close()
        await asyncio.sleep(3)
        here.executor = here.again()
        assert await here.ended(handle) == 0
        assert handle.log.read_text() == "first\nlast\n"


async def test_a_helper_that_nobody_asks_anything(ssh_lab, tmp_path, monkeypatch):
    """Its connection has been cut, and its sshd may not know. Where that is not so, the next question makes another."""
    sent = modules() | {"helper": re.sub(r"^ALONE_S = .*$", "ALONE_S = 3", modules()["helper"], flags=re.MULTILINE)}
    async with ssh_place(tmp_path, ssh_lab) as here:
        with monkeypatch.context() as impatient:
            impatient.setattr(ssh_connection, "modules", lambda: sent)
            await here.executor.look([here.host], {}, [])
            await until(lambda: not ssh_lab.processes("h1"), within=60)
        handle = await here.start(FOREVER)
        assert await here.executor.survivors(handle) == (handle.pid,)


@pytest.fixture
def small_logs(monkeypatch):
    """Logs there take a MiB at most, instead of 64."""
    text = modules()["logfile"]
    for name, size in {"HEAD": 64 << 10, "TAIL": 256 << 10, "MOST": 1 << 20}.items():
        text = re.sub(rf"^{name} = .*$", f"{name} = {size}", text, flags=re.MULTILINE)
    sent = modules() | {"logfile": text}
    monkeypatch.setattr(ssh_connection, "modules", lambda: sent)


LINES = """
import os, time
for n in range({megabytes} * 16):
    while not os.path.exists({log!r}) or os.path.getsize({log!r}) < n * 65536 - {ahead}:
        time.sleep(0.01)
    print("\\n".join("%015d" % (n * 4096 + i) for i in range(4096)), flush=True)
print("last", flush=True)
time.sleep(60)
"""


def logs_there(lab, run):
    """Logs of a run on the hosts."""
    return list((lab.state / "disagg/remote" / run.name).rglob("log"))


def taken(lab, run):
    """Bytes of disk that they take."""
    return sum(log.stat().st_blocks * 512 for log in logs_there(lab, run))


async def test_a_log_is_bounded_there_and_whole_here(ssh_lab, tmp_path, small_logs):
    """What has been fetched is let go of, and nothing else: the worker is never more than 128 KiB ahead."""
    async with ssh_place(tmp_path, ssh_lab) as here:
        handle = await here.start(LINES.format(megabytes=6, log=str(tmp_path / "0.log"), ahead=64 << 10))
        await until(lambda: handle.log.read_text().endswith("last\n"), within=120)
        await until(lambda: taken(ssh_lab, tmp_path) <= 1 << 20, within=60)
        assert handle.log.read_text() == "".join(f"{n:015d}\n" for n in range(6 * 65536)) + "last\n"


async def test_a_log_that_nobody_fetches_is_bounded_too(ssh_lab, tmp_path, small_logs):
    """Its begin and its end stay; how much is missing between them is said."""
    async with ssh_place(tmp_path, ssh_lab) as here:
        handle = await here.start(
            "print('first', flush=True)\n" + LINES.format(megabytes=8, log="/dev/null", ahead=1 << 30)
        )
        await here.executor.close()
        await until(
            lambda: 0 < taken(ssh_lab, tmp_path) <= 1 << 20 and "last" in tail_there(ssh_lab, tmp_path), within=60
        )
        here.executor = here.again()
        await here.executor.poll(handle)
        await until(lambda: handle.log.read_text().endswith("last\n"), within=60)
    lines = handle.log.read_text().splitlines()
    (said,) = [n for n, line in enumerate(lines) if line.startswith("disagg: ")]
    assert lines[said] == "disagg: 7 MiB of this log were dropped before anybody could fetch them"
    assert (lines[0], lines[said - 2], lines[-2]) == ("first", f"{said - 3:015d}", f"{8 * 65536 - 1:015d}")
    assert "\0" not in handle.log.read_text()


def tail_there(lab, run):
    return "".join(log.read_bytes()[-100:].decode() for log in logs_there(lab, run))


async def test_shared_memory_of_a_worker_that_is_killed(ssh_lab, tmp_path):
    async with ssh_place(tmp_path, ssh_lab) as here:
        handle = await here.start(f"{hold_segment(tmp_path.name)}; {FOREVER}")
        await until(lambda: "ready" in handle.log.read_text(), within=60)
        assert segments_of(tmp_path.name)
        await here.executor.kill(handle)
        await here.gone(handle)
        await here.executor.collect(handle)
        assert not segments_of(tmp_path.name)


@pytest.mark.parametrize(("before", "said"), [(0, []), (1, ["oom_killer"])])
def test_what_the_oom_killer_does_on_a_host(before, said):
    """As the helper sees it: only what it did in the last seconds has to do with a death now."""
    code = f"""
import json, sys, types
for name, text in json.load(sys.stdin).items():
    exec(text, sys.modules.setdefault(name, types.ModuleType(name)).__dict__)
here = sys.modules["helper"].Helper({{}})
here.counted[0] = (here.counted[0][0], here.counted[0][1] - {before})
print(json.dumps([one for one in here._signs() if one == "oom_killer"]))
"""
    done = subprocess.run([sys.executable, "-c", code], input=json.dumps(modules()), capture_output=True, text=True)
    assert json.loads(done.stdout) == said


async def test_a_folder_that_a_host_does_not_share(ssh_lab, tmp_path):
    if not ssh_lab.isolated:
        pytest.skip("hosts share every folder where namespaces are not allowed")
    (model := tmp_path / "model").mkdir()
    (model / "weights").write_bytes(bytes(range(256)) * 8192)
    (model / "empty").touch()
    ssh_lab.run("h1", f"mount -t tmpfs tmpfs {model}")
    try:
        assert ssh_lab.run("h1", f"ls {model}").stdout == ""
        async with ssh_place(tmp_path, ssh_lab) as here:
            await here.executor.provide([here.host], model)
        assert ssh_lab.run("h1", f"ls {model}; sha256sum < {model}/weights").stdout.split() == [
            *("empty", "weights"),
            *("91d3beb88a9b2f778a6c44a1c53b63d3c79931845a9aef84b3fb414610bd1938", "-"),
        ]
    finally:
        ssh_lab.run("h1", f"umount {model}")


async def test_a_folder_that_hosts_share_and_this_machine_does_not(ssh_lab, tmp_path):
    """Each is sent it, at the same time."""
    if not ssh_lab.isolated:
        pytest.skip("hosts share every folder where namespaces are not allowed")
    for name in ("model", "theirs"):
        (tmp_path / name).mkdir()
    model, weights = tmp_path / "model", bytes(range(256)) * 16384
    (model / "weights").write_bytes(weights)
    mounted = [ssh_lab.run(host, f"mount --bind {tmp_path}/theirs {model}").returncode for host in HOSTS]
    try:
        async with ssh_place(tmp_path, ssh_lab) as here:
            hosts = [replace(here.host, name=host) for host in HOSTS]
            await here.executor.look(hosts, {}, [])  # so that all are connected
            await here.executor.provide(hosts, model)
        assert (mounted, [path.name for path in (tmp_path / "theirs").iterdir()]) == ([0, 0, 0], ["weights"])
        assert (tmp_path / "theirs/weights").read_bytes() == weights
    finally:
        for host in HOSTS:
            ssh_lab.run(host, f"umount {model}")


async def test_a_folder_that_a_host_has_no_room_for(ssh_lab, tmp_path):
    if not ssh_lab.isolated:
        pytest.skip("hosts share every folder where namespaces are not allowed")
    (model := tmp_path / "model").mkdir()
    (model / "weights").write_bytes(bytes(1 << 20))
    ssh_lab.run("h1", f"mount -t tmpfs -o size=64k tmpfs {model}")
    try:
        async with ssh_place(tmp_path, ssh_lab) as here:
            with pytest.raises(LaunchFailed, match=r"model cannot be copied to h1: .*No space left") as caught:
                await here.executor.provide([here.host], model)
        assert (caught.value.fix, ssh_lab.run("h1", f"ls {model}").stdout) == ("make room on h1", "")
    finally:
        ssh_lab.run("h1", f"umount {model}")


async def test_a_folder_that_cannot_be_made_there(ssh_lab, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    async with ssh_place(tmp_path, ssh_lab) as here:
        here.executor._at("h1").ask = _refusing
        with pytest.raises(LaunchFailed, match="model cannot be copied to h1: PermissionError") as caught:
            await here.executor.provide([here.host], tmp_path / "model")
        assert "DISAGG_HOME" in caught.value.fix


async def _refusing(do, **_):
    if do == "lacks":
        return ["config.json"]
    raise LaunchFailed("h1: PermissionError: [Errno 13] Permission denied")


async def test_workers_that_are_forgotten_at_once_leave_nothing(ssh_lab, tmp_path):
    """The last one's folder goes with the run's, whichever that is, and while others are still asked after."""
    for _ in range(4):
        async with ssh_place(tmp_path, ssh_lab) as here:
            await asyncio.gather(*(here.start("pass") for _ in range(5)))
            await asyncio.gather(*map(here.ended, here.started))
            await asyncio.gather(*map(here.executor.collect, here.started))
            assert not list((ssh_lab.state / "disagg/remote").glob(f"{tmp_path.name}*"))
            here.started.clear()


async def test_a_program_that_is_not_there(ssh_lab, tmp_path):
    async with ssh_place(tmp_path, ssh_lab) as here:
        command = replace(here.program("pass"), argv=("/no/such/python",))
        with pytest.raises(LaunchFailed, match=r"program could not be started: h1: .*No such file"):
            await here.executor.start(command, tmp_path / "log")


@pytest.mark.parametrize("name", SENDS)
def test_what_is_sent_needs_nothing_but_an_old_python(name):
    tree = ast.parse(modules()[name], feature_version=(3, 8))
    for node in tree.body:
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        assert {one.partition(".")[0] for one in names} <= sys.stdlib_module_names


def test_the_helper_is_one_line_for_every_login_shell():
    """csh expands `!` also between single quotes, and ends a word at a line's end."""
    assert not set("\n!'") & set(helper.BOOT)
