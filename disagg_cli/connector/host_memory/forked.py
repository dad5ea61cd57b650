"""The child's side of a fork: become a server, as if it had been started by its command line.

What a process has from its start, and a fork would take over from the parent instead, is set anew: session, standard
streams, signals, folder, cores, environment, name, random numbers. What happens at its end happens here, too.
"""

import atexit
import contextlib
import ctypes
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

PR_SET_PDEATHSIG = 1
PRCTL = ctypes.CDLL(None).prctl
DEFAULT_SIGNALS = dict.fromkeys((signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD), signal.SIG_DFL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """What to become. From umask on, all is that of whoever asks, as it would be inherited from him.

    limits: number, soft and hard value of resource limits.
    """

    name: str
    module: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log: str
    umask: int
    folder: str
    cores: Sequence[int]
    nice: int
    limits: Sequence[tuple[int, int, int]]


def settle(server: Server, parent: int) -> None:
    """Have a session, streams, a folder and signals of one's own, and die with the parent. OSError says what failed."""
    os.setsid()
    PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.chdir(server.folder)
    null, output = os.open(os.devnull, os.O_RDONLY), os.open(server.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in ((0, null), (1, output), (2, output)):
        os.dup2(source, target)
    os.close(null)
    os.close(output)
    os.umask(server.umask)
    os.sched_setaffinity(0, server.cores)
    for number, soft, hard in server.limits:
        with contextlib.suppress(OSError, ValueError):  # a limit that the parent may not raise again
            resource.setrlimit(number, (soft, hard))
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, server.nice)
    for signum, action in DEFAULT_SIGNALS.items():
        signal.signal(signum, action)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def be(server: Server, main: Callable[[Sequence[str]], None]) -> NoReturn:
    """Be `python -m MODULE ARGV` from its first line to its exit code."""
    name_process(f"{server.module} {' '.join(server.argv)}")
    os.environ.clear()
    os.environ.update(server.env)
    # Typeshed has stdout as TextIO, which lacks it; here it is the TextIOWrapper that Python made.
    sys.stdout.reconfigure(write_through=bool(server.env.get("PYTHONUNBUFFERED")))  # type: ignore[union-attr]
    sys.argv = [server.module, *server.argv]
    code = _exit_code(main, server.argv)
    # The order of Python's own end; its last step, to take every module apart, is left out.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _exit_code(main: Callable[[Sequence[str]], None], argv: Sequence[str]) -> int:
    """Run it. Exit code, -N for an end by signal N."""
    try:
        main(argv)
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return (leaving.code or 0) & 0xFF
        sys.stderr.write(f"{leaving.code}\n")
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        return -signal.SIGINT
    except BaseException:  # noqa: BLE001 - the last frame: whatever it was belongs in the server's log
        traceback.print_exc()
        return 1
    return 0


def serve(argv: Sequence[str]) -> None:
    """What `python -m sglang.launch_server` does (0.5.23)."""
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    try:
        run_server(prepare_server_args(list(argv)))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def route(argv: Sequence[str]) -> None:
    """What `python -m sglang_router.launch_router` does (0.3.2)."""
    from sglang_router.launch_router import launch_router, parse_router_args

    launch_router(parse_router_args(list(argv)))


MODULES = {"sglang.launch_server": serve, "sglang_router.launch_router": route}


def name_process(title: str) -> None:
    """Be called this in `ps`. The first call must come before the environment changes: it looks for its room there."""
    import setproctitle

    setproctitle.setproctitle(title)
