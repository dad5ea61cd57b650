"""The far end of the ssh executor: a program sent over the connection, for which nothing is installed on the host.

Standard library only, Python 3.8 or later, Linux. It answers one JSON document a line, and ends when its input does.
Each worker has a keeper, a process that outlives the connection: it started the worker, and writes down how it ended.

A worker's folder, ~/.local/state/disagg/remote/RUN/HOST/WORKER, holds `log`, `leader` (pid, start time in ticks, boot
id), `keeper` (the same), `exit`, `sent` (how far disagg has the log) and `segments` (what it had in /dev/shm).
RUN/HOST/touch is touched by each `sync`; RUN/HOST/claim is locked by a keeper while it starts its worker.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from disagg_cli.executors import keeper, logfile, procfs, segments
    from disagg_cli.topology import survey
else:
    NEEDS = ("keeper", "logfile", "procfs", "segments", "survey")
    keeper, logfile, procfs, segments, survey = (sys.modules.get(name) for name in NEEDS)

BOOT = (
    "import sys,json,types;m=json.loads(sys.stdin.buffer.readline());"
    'm or sys.exit("a start-up file of the login shell reads what is sent to Python");'
    '[exec(compile(s,n,"exec"),sys.modules.setdefault(n,types.ModuleType(n)).__dict__) for n,s in m.items()];'
    'sys.modules["helper"].main(m)'
)
"""What `python -c` runs, there too: it reads modules, name -> text, from the first line of its input."""

MARK = "disagg-helper 1"
"""The first line of the helper, on a line of its own: what the login shell's start-up files print comes before it."""

UNKNOWN_EXIT = 255
CHUNK = 256 << 10
ANSWER = 2 << 20
KEEPER_S = 10.0
ALONE_S = 600
"""Without a question, before a helper takes its connection for lost. sshd may hold one that was cut for hours
(sshd_config(5): ClientAliveInterval is 0 by default)."""
COUNT_S = 1.0
"""Between two looks at what the OOM killer does: what it did five of these ago has nothing to do with a death now."""


def main(modules: dict[str, str]) -> None:
    """Be the helper, or a keeper, as the second line of the input says."""
    role = json.loads(sys.stdin.buffer.readline())
    if "keep" in role:
        keeper.Keeper(**role["keep"]).run()
    else:
        Helper(modules).run()


class Helper:
    """Answers requests. Those that take their time have threads of their own, so that `sync` is never late."""

    def __init__(self, modules: dict[str, str]) -> None:
        self.modules = modules
        state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
        self.base = Path(state) / "disagg/remote"
        self.writing = threading.Lock()
        self.tidying = threading.Lock()
        """Held by whoever removes a run's folder, or would make its file `touch` anew while it goes."""
        self.keepers: list[subprocess.Popen[bytes]] = []
        self.listeners: list[socket.socket] = []
        self.counted = collections.deque([(time.monotonic(), procfs.oom_kills())], maxlen=5)

    def run(self) -> None:
        """Answer until the connection ends."""
        self._write("\n" + MARK)  # a banner may not end its line
        signal.alarm(ALONE_S)
        for line in sys.stdin.buffer:
            signal.alarm(ALONE_S)
            request = json.loads(line)
            if request["do"] == "sync":
                self._answer(request)
            else:
                threading.Thread(target=self._answer, args=(request,), daemon=True).start()
        os._exit(0)

    def _answer(self, request: dict[str, Any]) -> None:
        try:
            answer = {"answer": getattr(self, "do_" + request["do"])(**request["with"])}
        except Exception as error:  # noqa: BLE001 - whatever it is, the other end has to hear of it
            answer = {"error": f"{type(error).__name__}: {error}"}
        self._write(json.dumps({"id": request["id"], **answer}))

    def _write(self, line: str) -> None:
        with self.writing:
            sys.stdout.buffer.write(line.encode() + b"\n")  # whatever PYTHONIOENCODING says
            sys.stdout.buffer.flush()

    def folder(self, token: str) -> Path:
        """Where a worker's files are. The home folder may be shared between hosts."""
        run, _, worker = token.partition("/")
        return self.base / run / os.uname().nodename / worker

    def do_look(self, ports: dict[str, list[int]], paths: list[str]) -> dict[str, Any]:
        """What this host is like. ports: address -> those that must be free."""
        return {**survey.host(ports, paths), "facts": survey.survey()}

    def do_listen(self, where: dict[str, list[int]]) -> None:
        """Listen at these ports, address -> ports, as the servers will, so that disagg can see whether it gets there.

        What cannot be bound is known from `look`. The kernel answers; nobody has to accept.
        """
        for address, port in ((address, port) for address, ports in where.items() for port in ports):
            with contextlib.suppress(OSError):
                self.listeners.append(survey.listen(address, port))

    def do_reach(self, where: dict[str, list[int]], timeout: float) -> dict[str, list[int]]:
        """Which of these ports of other hosts, address -> ports, are not reached from this one."""
        return survey.unreached(where, timeout)

    def do_hang_up(self) -> None:
        """Give all these ports back."""
        while self.listeners:
            self.listeners.pop().close()

    def do_lacks(self, folder: str, files: dict[str, int]) -> list[str]:
        """Which of these files, name -> bytes, are not in a folder of this host."""
        return [name for name, size in files.items() if procfs.size(Path(folder) / name) != size]

    def do_put(self, path: str, draft: str, at: int, data: str, size: int) -> None:
        """Write a part of a file; it has its name once it is whole. What finds no room leaves nothing behind."""
        part = Path(draft)
        part.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("r+b" if at else "wb") as file:
                file.seek(at)
                file.write(base64.b64decode(data))
                whole = file.tell() == size
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        if whole:
            part.rename(path)

    def do_start(self, token: str, argv: list[str], env: dict[str, str], lease: float) -> dict[str, Any]:
        """Start a worker under a keeper. Asked a second time, after a lost answer, it is the same worker."""
        folder = self.folder(token)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (folder / "leader").exists():
            (folder.parent / "touch").touch(mode=0o600)
            self._start_keeper(token, {"folder": str(folder), "argv": argv, "env": _over(env), "lease": lease})
        leader = json.loads((folder / "leader").read_text())
        return {"pid": leader["pid"], "born": procfs.born(leader["ticks"])}

    def _start_keeper(self, token: str, keep: dict[str, Any]) -> None:
        one = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", BOOT, "disagg-keeper", token],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.keepers.append(one)
        assert one.stdin
        assert one.stdout
        # a command line can be seen by all, so the environment is not in it
        for line in (self.modules, {"keep": keep}):
            one.stdin.write(json.dumps(line).encode() + b"\n")
        one.stdin.close()
        said = one.stdout.read().decode(errors="replace").strip()
        one.stdout.close()
        if said != "started":
            raise RuntimeError(said.splitlines()[-1] if said else "its keeper died")

    def do_started(self, run: str) -> list[dict[str, Any]]:
        """Every worker of a run on this host, also one that is just being started."""
        folders = [path for path in self.folder(run + "/").glob("*") if path.is_dir()]
        deadline = time.monotonic() + KEEPER_S
        while not all((folder / "leader").exists() for folder in folders) and time.monotonic() < deadline:
            time.sleep(0.05)
        leaders = {folder.name: procfs.read_identity(folder / "leader") for folder in folders}
        return [
            {"token": f"{run}/{name}", "pid": leader["pid"], "born": procfs.born(leader["ticks"])}
            for name, leader in leaders.items()
            if leader
        ]

    def do_sync(self, workers: dict[str, int | None]) -> dict[str, Any]:
        """How workers are, and what they have written since an offset; None: since what disagg was last sent."""
        self.keepers = [one for one in self.keepers if one.poll() is None]
        with self.tidying:
            for run in {self.folder(token).parent for token in workers}:
                procfs.touch(run / "touch")
        room = ANSWER
        news = {}
        for token, offset in workers.items():
            news[token] = _news(self.folder(token), offset, min(CHUNK, room))
            room -= len(news[token]["data"])
        return {"workers": news, "signs": self._signs()}

    def _signs(self) -> list[str]:
        """What would end processes now and leave nothing in their logs (last_word.py)."""
        now = time.monotonic()
        if now - self.counted[-1][0] >= COUNT_S:
            self.counted.append((now, procfs.oom_kills()))
        found = ["oom_killer"] if procfs.oom_kills() > self.counted[0][1] else []
        folders = {"shm_full": segments.FOLDER, "disk_full": self.base}
        return found + [sign for sign, folder in folders.items() if logfile.room(folder) < logfile.LEAST]

    def do_alive(self, token: str) -> list[int]:
        """Pids of a worker's session that still run."""
        return procfs.members(self.folder(token))

    def do_terminate(self, token: str) -> None:
        """Ask the leader to end."""
        folder = self.folder(token)
        self._note_segments(folder)
        if procfs.runs(leader := procfs.read_identity(folder / "leader")):
            procfs.send(leader["pid"], signal.SIGTERM)

    def do_kill(self, token: str) -> None:
        """End the whole session."""
        folder = self.folder(token)
        self._note_segments(folder)
        for pid in procfs.members(folder):
            procfs.send(pid, signal.SIGKILL)

    def _note_segments(self, folder: Path) -> None:
        """What a worker has in /dev/shm as it is to end, for its keeper, which may have looked too long ago."""
        file = folder / "segments"
        if found := segments.mapped(procfs.members(folder)):
            with contextlib.suppress(OSError):
                procfs.write(file, "\n".join({*found, *procfs.text(file).split()}))

    def do_forget(self, token: str) -> None:
        """Remove the files of a worker that has ended, and of the run with its last worker."""
        folder = self.folder(token)
        if procfs.members(folder):
            return
        with contextlib.suppress(OSError):
            (folder / "log").unlink()  # first: on a full disk the exit code fits in its place
        deadline = time.monotonic() + KEEPER_S
        while procfs.runs(procfs.read_identity(folder / "keeper")) and time.monotonic() < deadline:
            time.sleep(0.02)  # it is writing down how the worker ended
        with self.tidying, contextlib.suppress(OSError):
            shutil.rmtree(folder, ignore_errors=True)
            if {path.name for path in folder.parent.iterdir()} <= {"touch", "claim"}:
                shutil.rmtree(folder.parent)
                folder.parent.parent.rmdir()


def _news(folder: Path, offset: int | None, most: int) -> dict[str, Any]:
    sent = folder / "sent"
    start = int(procfs.text(sent) or 0) if offset is None else offset
    if offset and str(offset) != procfs.text(sent):
        with contextlib.suppress(OSError):
            procfs.write(sent, str(offset))
    code = _exit(folder)  # looked at before the log: once there is a code, nothing more of the leader comes
    data, end, more = logfile.piece(folder / "log", start, most)
    return {"exit": code, "data": base64.b64encode(data).decode(), "offset": end, "more": more}


def _exit(folder: Path) -> int | None:
    """The exit code; None while the worker runs, or while its keeper is about to tell the code."""
    if text := procfs.text(folder / "exit"):
        return int(text)
    keeper_ = procfs.read_identity(folder / "keeper")
    if (code := procfs.said_to_have_ended(keeper_)) is not None:
        return code
    if procfs.runs(procfs.read_identity(folder / "leader")) or procfs.runs(keeper_):
        return None
    return int(procfs.text(folder / "exit") or UNKNOWN_EXIT)


def _over(env: dict[str, str]) -> dict[str, str]:
    """This environment with settings on top; PYTHONPATH is added to."""
    merged = {**os.environ, **env}
    if env.get("PYTHONPATH") and os.environ.get("PYTHONPATH"):
        merged["PYTHONPATH"] = f"{env['PYTHONPATH']}{os.pathsep}{os.environ['PYTHONPATH']}"
    return merged
