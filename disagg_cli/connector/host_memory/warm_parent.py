"""A process that has imported SGLang once and forks servers and routers from itself.

A forked server is up in seconds and holds a few MiB of its own; a cold one takes half a minute and 2.5 GB.

    python -m disagg_cli.connector.host_memory.warm_parent SOCKET

It prints `ready` on stdout when it can serve, and leaves when its standard input closes, so that it never outlives the
process that made it. Requests and answers are JSON, one a line, over a Unix socket:

    {"start": {"module": "sglang.launch_server", "argv": [...], "env": {...}, "log": "/path"}}   ->  {"pid": 123}
    {"poll": 123}   ->  {"exit": null}, or the exit code, -N for signal N

Servers belong to the connection that asked for them: when it closes, whoever held it is gone, and they are killed.

It must stay single-threaded and never touch a device: both do not survive a fork. CPU mode only.
Source of the recipe: tried with SGLang 0.5.23; `sglang.launch_server` is what a child then runs.
"""

import contextlib
import gc
import json
import multiprocessing
import os
import random
import selectors
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn


def import_sglang() -> None:
    """Import all that servers import, then make `fork` the way in which SGLang starts its ranks."""
    import nixl._api  # noqa: F401 - every scheduler rank imports it later
    import sglang.srt.models.registry as models
    import torch.multiprocessing

    models.import_model_classes("sglang.srt.models")
    multiprocessing.set_start_method("fork", force=True)

    def keep_fork(*_args: object, **_kwargs: object) -> None:
        """SGLang forces `spawn` while it starts (entrypoints/engine.py); here that would import everything again."""

    places: tuple[Any, ...] = (multiprocessing, torch.multiprocessing, multiprocessing.context.DefaultContext)
    for place in places:
        place.set_start_method = keep_fork
    gc.collect()
    gc.freeze()  # children would otherwise copy every page that the collector touches


class WarmParent:
    """Serves start and poll requests, reaps children, and ends the servers of connections that close."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.selector = selectors.DefaultSelector()
        self.servers: dict[int, socket.socket] = {}
        self.exits: dict[int, int] = {}
        self.inboxes: dict[socket.socket, bytearray] = {}

    def serve(self) -> None:
        """Answer until standard input closes."""
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        while True:
            for key, _ in self.selector.select(timeout=1.0):
                if key.fileobj is self.listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._read(key.fileobj)
                elif not os.read(sys.stdin.fileno(), 4096):
                    return self._end(list(self.servers))
            self._reap()

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        self.inboxes[connection] = bytearray()
        self.selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> None:
        data = b""
        with contextlib.suppress(ConnectionError):
            data = connection.recv(65536)
        if not data:
            self.selector.unregister(connection)
            connection.close()
            del self.inboxes[connection]
            self._end([pid for pid, owner in self.servers.items() if owner is connection])
            return
        inbox = self.inboxes[connection]
        inbox += data
        while b"\n" in inbox:
            line, _, rest = bytes(inbox).partition(b"\n")
            inbox[:] = rest
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(json.dumps(self._answer(json.loads(line), connection)).encode() + b"\n")

    def _answer(self, request: dict[str, Any], connection: socket.socket) -> dict[str, Any]:
        if "start" in request:
            return {"pid": self._start(request["start"], connection)}
        self._reap()
        return {"exit": self.exits.get(request["poll"])}

    def _start(self, server: dict[str, Any], connection: socket.socket) -> int:
        sys.stdout.flush()
        settled, settles = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._leave_behind()
            os.close(settled)
            settle(Path(server["log"]))
            os.close(settles)
            run(server["module"], server["argv"], server["env"])
        os.close(settles)
        os.read(settled, 1)  # ends when the child has a session of its own, or has died trying
        os.close(settled)
        self.servers[pid] = connection
        return pid

    def _leave_behind(self) -> None:
        """In the child: let go of the parent's sockets, or they would stay open as long as the server."""
        self.selector.close()
        self.listener.close()
        for connection in self.inboxes:
            connection.close()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.exits[pid] = os.waitstatus_to_exitcode(status)
            self.servers.pop(pid, None)
            self._end([pid])  # its ranks, if some are left: a server without its leader serves nobody

    def _end(self, pids: list[int]) -> None:
        """Kill whole sessions at once: nobody is left who could want a graceful end."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def settle(log: Path) -> None:
    """In the child: have a session and a log of its own."""
    os.setsid()
    null, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in ((0, null), (1, output), (2, output)):
        os.dup2(source, target)


def run(module: str, argv: list[str], environment: dict[str, str]) -> NoReturn:
    """Be `python -m MODULE ARGV` in an environment of its own."""
    os.environ.clear()
    os.environ.update(environment)
    random.seed()  # siblings would draw the same numbers
    code = 1
    try:
        name_process(f"{module} {' '.join(argv)}")
        sys.argv = [module, *argv]
        MODULES[module](argv)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):
            sys.stderr.write(f"{leaving.code}\n")
    except BaseException:  # noqa: BLE001 - the child's last frame: whatever it was belongs in the server's log
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(argv: list[str]) -> None:
    """What `python -m sglang.launch_server` does (0.5.23)."""
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    try:
        run_server(prepare_server_args(argv))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def _route(argv: list[str]) -> None:
    """What `python -m sglang_router.launch_router` does (0.3.2)."""
    from sglang_router.launch_router import launch_router, parse_router_args

    launch_router(parse_router_args(argv))


MODULES = {"sglang.launch_server": _serve, "sglang_router.launch_router": _route}


def name_process(title: str) -> None:
    """Be called this in `ps`. The first call must come before the environment changes: it looks for its room there."""
    import setproctitle

    setproctitle.setproctitle(title)


def main() -> None:
    """Import, listen, say so, serve."""
    path = Path(sys.argv[1])
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_DFL)  # children inherit these; SGLang sets its own
    import_sglang()
    name_process("disagg warm parent")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        WarmParent(listener).serve()


if __name__ == "__main__":
    main()
