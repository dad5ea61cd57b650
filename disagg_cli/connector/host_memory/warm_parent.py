"""A process that has imported SGLang once and forks servers and routers from itself.

A forked server is up in seconds and holds a few MiB of its own; a cold one takes half a minute and 2.5 GB.

    python -m disagg_cli.connector.host_memory.warm_parent SOCKET [TTL]

It prints `ready` on stdout when it can serve. Without TTL it leaves when its standard input closes, so that it never
outlives the process that made it. With TTL, in seconds, it leaves when nobody has used it for so long.

Requests and answers are JSON, one a line, over a Unix socket:

    {"start": {"name", "module", "argv", "env", "log", "umask", "folder", "cores",
      "nice", "limits"}}
                     ->  {"pid"}, or {"error"}, or {"differs": [variables]} where the import has read others' values
    {"poll": pid}    ->  {"exit"}: null while it runs, the exit code, -N for signal N
    {"fits": {env}}  ->  {"changed": [packages], "differs": [variables]}: both empty if servers are as if started cold
    {"look": true}   ->  who it is, what it serves, and since when it idles
    {"ttl": seconds} ->  {"ttl"}
    {"end": true}    ->  {"pid"}, and it ends, its servers first

Servers belong to the connection that asked for them: when it closes, whoever held it is gone, and they are killed. They
die with the parent, too: nobody else would end them.

It must stay single-threaded and never touch a device: both do not survive a fork. CPU mode only.
Source of the recipe: tried with SGLang 0.5.23; forked.py says what a child then runs.
"""

import contextlib
import fcntl
import json
import os
import select
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from disagg_cli.connector.host_memory.forked import MODULES, Server, be, name_process, settle
from disagg_cli.connector.host_memory.import_sglang import import_sglang
from disagg_cli.connector.host_memory.imported import Imported, import_and_note

SETTLE_S = 5.0
"""For a child to open its log: a moment, unless that is on a disk that hangs."""

LOCK = "lock"
"""File beside the socket, held by whoever starts or ends a parent there."""


@dataclass(slots=True, eq=False)
class _Client:
    """One connection, and the servers that go with it: pid -> what status shows of it, and exit codes by pid."""

    connection: socket.socket
    inbox: bytearray = field(default_factory=bytearray)
    servers: dict[int, dict[str, Any]] = field(default_factory=dict)
    exits: dict[int, int] = field(default_factory=dict)

    @property
    def used_it(self) -> bool:
        """Whether it has started something; looking alone is no use."""
        return bool(self.servers or self.exits)


class WarmParent:
    """Serves requests, reaps children, and ends the servers of connections that close."""

    def __init__(self, listener: socket.socket, imported: Imported, ttl_s: float | None) -> None:
        self.listener = listener
        self.imported = imported
        self.ttl_s = ttl_s
        self.ready_since = time.time()
        self.last_used = time.monotonic()  # a clock that is set must not end it
        self.selector = selectors.DefaultSelector()
        self.clients: dict[socket.socket, _Client] = {}
        self.ending = False

    def serve(self) -> None:
        """Answer until it is time to leave: told to, unused for too long, or standard input has closed."""
        self.listener.settimeout(0)
        self.selector.register(self.listener, selectors.EVENT_READ)
        if self.ttl_s is None:
            self.selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        while not self.ending:
            self._serve_once(timeout=1.0)
            self.ending = self.ending or self._is_over()
        for client in self.clients.values():
            _kill(client.servers)

    def _serve_once(self, timeout: float) -> None:
        for key, _ in self.selector.select(timeout):
            if key.fileobj is self.listener:
                self._accept()
            elif isinstance(key.fileobj, socket.socket):
                self._read(self.clients[key.fileobj])
            elif not os.read(sys.stdin.fileno(), 4096):
                self.ending = True
        self._reap()

    def _is_over(self) -> bool:
        """Whether nobody has used it for its time to live, and nobody is about to: then it keeps the lock and goes."""
        if self.ttl_s is None or self.clients or time.monotonic() - self.last_used < self.ttl_s:
            return False
        lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        return True

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # gone again, or too many files are open: the next look tells
            connection, _ = self.listener.accept()
            connection.settimeout(0)
            self.clients[connection] = _Client(connection)
            self.selector.register(connection, selectors.EVENT_READ)

    def _read(self, client: _Client) -> None:
        try:
            data = client.connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        client.inbox += data
        try:
            while data and b"\n" in client.inbox:
                line, _, rest = client.inbox.partition(b"\n")
                client.inbox = rest
                client.connection.sendall(json.dumps(self._answer(json.loads(line), client)).encode() + b"\n")
        except (OSError, ValueError, TypeError):  # it does not read its answers, or does not speak our language
            data = b""
        if not data:
            self._drop(client)

    def _drop(self, client: _Client) -> None:
        if client.used_it:
            self.last_used = time.monotonic()
        self.selector.unregister(client.connection)
        client.connection.close()
        del self.clients[client.connection]
        _kill(client.servers)

    def _answer(self, request: dict[str, Any], client: _Client) -> dict[str, Any]:
        match request:
            case {"start": wanted}:
                return self._start(Server(**wanted), client)
            case {"poll": pid}:
                self._reap()
                return {"exit": client.exits.get(pid)}
            case {"fits": env}:
                return {"changed": self.imported.changed(), "differs": self.imported.differing(env)}
            case {"look": _}:
                return self._look()
            case {"ttl": seconds}:
                self.ttl_s = float(seconds)
                return {"ttl": self.ttl_s}
            case {"end": _}:
                self.ending = True
                return {"pid": os.getpid()}
        return {"error": f"unknown request: {', '.join(request)}"}

    def _look(self) -> dict[str, Any]:
        self._reap()
        servers = [server for client in self.clients.values() for server in client.servers.values()]
        used = any(client.used_it for client in self.clients.values())
        return {
            "pid": os.getpid(),
            "sglang": getattr(sys.modules.get("sglang"), "__version__", None),
            "import_s": round(self.imported.seconds, 1),
            "since": self.ready_since,
            "idle_since": None if used else time.time() - (time.monotonic() - self.last_used),
            "ttl_s": self.ttl_s,
            "changed": self.imported.changed(),
            "servers": servers,
        }

    def _start(self, server: Server, client: _Client) -> dict[str, Any]:
        if server.module.startswith("sglang.") and (differs := self.imported.differing(server.env)):
            return {"differs": differs}
        try:
            pid = self._fork(server)
        except (OSError, KeyError) as error:
            return {"error": str(error)}
        self.last_used = time.monotonic()
        client.exits.pop(pid, None)
        client.servers[pid] = {"name": server.name, "pid": pid, "log": server.log, "since": time.time()}
        return {"pid": pid}

    def _fork(self, server: Server) -> int:
        """Fork a server, and wait until it stands on its own. OSError if it does not."""
        main, parent = MODULES[server.module], os.getpid()
        told, tells = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(told)
            os.close(tells)
            raise
        if pid == 0:
            try:
                self._leave_behind()
                os.close(told)
                settle(server, parent)
                os.close(tells)
            except BaseException as error:  # noqa: BLE001 - nothing may return into the parent's loop
                os.write(tells, str(error).encode())
                os._exit(1)
            be(server, main)
        os.close(tells)
        try:
            silent = not select.select([told], [], [], SETTLE_S)[0]
            problem = f"not ready to start after {SETTLE_S:.0f} s" if silent else os.read(told, 4096).decode()
        finally:
            os.close(told)
        if problem:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            raise OSError(problem)
        return pid

    def _leave_behind(self) -> None:
        """In the child: let go of the parent's sockets, or they would stay open as long as the server."""
        self.selector.close()
        self.listener.close()
        for connection in self.clients:
            connection.close()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for client in self.clients.values():
                if client.servers.pop(pid, None):
                    client.exits[pid] = os.waitstatus_to_exitcode(status)
            _kill([pid])  # its ranks, if some are left: a server without its leader serves nobody


def _kill(pids: Any) -> None:
    """Kill whole sessions at once: nobody is left who could want a graceful end."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _listen(name: str) -> socket.socket:
    """Listen in the current folder: a Unix socket's path may have 107 bytes, and a folder's is often longer."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    Path(name).unlink(missing_ok=True)
    os.umask(0o177)  # the parent makes no other file, and servers bring their own
    listener.bind(name)
    listener.listen()
    return listener


def _require_one_thread() -> None:
    """A fork has the thread that forks, and none of the others: what they were there for would hang. SystemExit."""
    if (threads := len(os.listdir("/proc/self/task"))) != 1:  # noqa: PTH208 - counting is all
        sys.exit(f"importing SGLang has left {threads} threads; a server that is forked would lack them")


def main() -> None:
    """Import, listen, say so, serve."""
    path, ttl_s = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else None
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_DFL)
    imported = import_and_note(import_sglang)
    _require_one_thread()
    name_process("disagg warm parent")
    os.chdir(path.parent)
    with _listen(path.name) as listener:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())  # whoever has waited for the line may go
        os.close(null)
        WarmParent(listener, imported, ttl_s).serve()
        Path(path.name).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
