"""A Python whose SGLang and router are a few lines: what starts, watches and ends servers can be tested in seconds.

`cheap_python(folder)` makes the command; anything but a server runs in the real Python. One that is given an API key
asks for it. A server prints its line when it listens, answers like one that has moved KV, and prints again whatever it
is asked under `/say`; `/flood/N` prints N MiB, as fast as the disk takes them. In its environment: CHEAP_START_S,
seconds before it listens; CHEAP_HEALTHY, a file to which it appends when it began, when it listened, and its URL;
CHEAP_STUBBORN, to be deaf to SIGTERM; CHEAP_LAST, what it says as it dies, of itself, at once; CHEAP_SILENT, a
pattern: what is posted, path and body, and matches is not answered for a minute.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BEGUN = time.monotonic()
TOKENS = 4
SILENT = os.environ.get("CHEAP_SILENT")
KEY = json.loads(os.environ.get("DISAGG_SECRET_FLAGS", "{}")).get("--api-key", [""])[0]


class Handler(BaseHTTPRequestHandler):
    """Answers /health, /generate and /v1/completions."""

    def do_GET(self):
        if self.path.startswith("/say/"):
            print(self.path.removeprefix("/say/"), flush=True)
        if self.path.startswith("/flood/"):
            flood(int(self.path.removeprefix("/flood/")))
        self._answer("text/plain", b"")

    def do_POST(self):
        asked = self.path + self.rfile.read(int(self.headers["content-length"])).decode()
        if SILENT and re.search(SILENT, asked):
            time.sleep(60)
        if KEY and self.headers["authorization"] != f"Bearer {KEY}":
            self.send_error(401)
        elif self.path == "/generate":
            event = {"text": "x", "meta_info": {"completion_tokens": TOKENS, "finish_reason": {"type": "length"}}}
            self._answer("text/event-stream", b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n")
        else:
            self._answer("application/json", json.dumps({"usage": {"completion_tokens": TOKENS}}).encode())

    def log_message(self, *_):
        pass

    def _answer(self, kind, body):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(body)


def flood(mebibytes):
    """Print a lot; what a full disk does not take is lost, as it is to SGLang's logging."""
    block = b"".join(b"%062d x\n" % n for n in range(16384))
    for _ in range(mebibytes):
        with contextlib.suppress(OSError):
            os.write(1, block)


def serve(argv):
    """Listen as the command line says."""
    options = argparse.ArgumentParser(allow_abbrev=False)
    options.add_argument("--host")
    options.add_argument("--port", type=int)
    known, _ = options.parse_known_args(argv)
    if os.environ.get("CHEAP_STUBBORN"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if last := os.environ.get("CHEAP_LAST"):
        sys.exit(last)
    time.sleep(float(os.environ.get("CHEAP_START_S", "0")))
    server = ThreadingHTTPServer((known.host, known.port), Handler)
    server.daemon_threads = True
    print("listening", flush=True)
    if file := os.environ.get("CHEAP_HEALTHY"):
        with open(file, "a") as healthy:  # noqa: PTH123 - pathlib is half of this program's start
            healthy.write(f"{BEGUN} {time.monotonic()} http://{known.host}:{known.port}\n")
    server.serve_forever()


def cheap_python(folder: Path) -> Path:
    """A command that is Python, but for its servers."""
    file = folder / "python-with-cheap-servers"
    real, here = sys.executable, Path(__file__)
    cheap = f'exec "{real}" -S "{here}" "$@"'
    cases = (f'case "$1 $2" in "-m sglang"*) {cheap};; esac', f'case "$1 $3" in "-c sglang"*) {cheap};; esac')
    file.write_text("\n".join(["#!/bin/sh", *cases, f'exec "{real}" "$@"\n']))
    file.chmod(0o755)
    return file


if __name__ == "__main__":
    serve(sys.argv[3:])
