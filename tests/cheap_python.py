"""A Python whose SGLang and router are a few lines: what starts, watches and ends servers can be tested in seconds.

`cheap_python(folder)` makes the command; anything but a server runs in the real Python. A server prints its line when
it listens, answers like one that has moved KV, and prints again whatever it is asked under `/say`.
"""

import argparse
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOKENS = 4


class Handler(BaseHTTPRequestHandler):
    """Answers /health, /generate and /v1/completions."""

    def do_GET(self):
        if self.path.startswith("/say/"):
            print(self.path.removeprefix("/say/"), flush=True)
        self._answer("text/plain", b"")

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/generate":
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


def serve(argv):
    """Listen as the command line says."""
    options = argparse.ArgumentParser(allow_abbrev=False)
    options.add_argument("--host")
    options.add_argument("--port", type=int)
    known, _ = options.parse_known_args(argv)
    server = ThreadingHTTPServer((known.host, known.port), Handler)
    print("listening", flush=True)
    server.serve_forever()


def cheap_python(folder: Path) -> Path:
    """A command that is Python, but for its servers."""
    file = folder / "python-with-cheap-servers"
    real, here = sys.executable, Path(__file__)
    file.write_text(f'#!/bin/sh\nif [ "$1" = -m ]; then exec "{real}" -S "{here}" "$@"; else exec "{real}" "$@"; fi\n')
    file.chmod(0o755)
    return file


if __name__ == "__main__":
    serve(sys.argv[3:])
