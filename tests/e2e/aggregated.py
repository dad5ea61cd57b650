"""One SGLang server without disaggregation: the truth that a PD deployment is held against."""

import json
import os
import socket
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from disagg_cli.connector.host_memory import mode
from disagg_cli.executors.warm import circumstances, parent_environment
from disagg_cli.rehearsal.synthetic import materialize
from disagg_cli.topology.synthetic import SyntheticModel


@contextmanager
def aggregated(warm_parent: str, folder: Path, model: SyntheticModel, tp: int, port: int):
    """Yield the server's URL. It ends with its connection to the warm parent."""
    path = materialize(model, folder / "models")
    args = {"model-path": path, "served-model-name": "synthetic", "dtype": "float32", "host": "127.0.0.1"}
    args |= {"port": port, "nccl-port": port + 1, "tp-size": tp, **mode.ARGS}
    words = [
        word for flag, value in args.items() for word in ([f"--{flag}"] if value is True else [f"--{flag}", str(value)])
    ]
    env = parent_environment() | mode.environment(ranks=tp, cores=tuple(os.sched_getaffinity(0)))
    log = folder / f"aggregated-tp{tp}-{port}.log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(60)
        connection.connect(warm_parent)
        request = {"name": log.stem, "module": "sglang.launch_server", "argv": words, "env": env, "log": str(log)}
        connection.sendall(json.dumps({"start": request | circumstances()}).encode() + b"\n")
        assert "pid" in json.loads(connection.recv(1000))
        _wait_healthy(f"http://127.0.0.1:{port}", log)
        yield f"http://127.0.0.1:{port}"


def _wait_healthy(url: str, log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"{url} is not healthy:\n{log.read_text()[-2000:]}")
