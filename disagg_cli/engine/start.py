"""How the module of a server is started with its flags, and those that hold secrets without anybody seeing them. Pure.

Command lines can be read by everybody on a host, environments only by their owner. SGLang 0.5.23 takes its keys as
flags or in a file (`--config`), which then had to be on every host; sglang-router 0.3.2 as flags alone; and SGLang
prints all its arguments as it starts (entrypoints/engine.py). So such a server is started by a few lines of Python that
find these flags in the environment, and mask their values in what it logs and in what Python writes to its standard
output and error: an argument that argparse refuses, the message of an exception. What native code (the router's, in
Rust) writes to these files itself passes by, as does what the processes write that it spawns; so do values of fewer
than four characters, which would garble every other word.
"""

import json
from collections.abc import Mapping, Sequence

from disagg_cli.secrets import MASK, is_secret_flag
from disagg_cli.topology.values import FlagValue

SECRET_FLAGS = "DISAGG_SECRET_FLAGS"
"""Environment variable: flag -> its values, as JSON."""

SHORTEST = 4
"""Characters of a value that is masked."""

PROGRAM = f"""\
import io, json, logging, os, runpy, sys
flags = json.loads(os.environ.pop("{SECRET_FLAGS}"))
secrets = sorted((value for value in sum(flags.values(), []) if len(value) >= {SHORTEST}), key=len, reverse=True)
def hidden(text):
    for secret in secrets:
        text = text.replace(secret, "{MASK}")
    return text
class Masked(io.TextIOWrapper):
    def write(self, text):
        super().write(hidden(text) if isinstance(text, str) else text)
        return len(text)
    def writelines(self, lines):
        for line in lines:
            self.write(line)
def over(stream):
    like = {{name: getattr(stream, name) for name in ("encoding", "errors", "line_buffering", "write_through")}}
    return Masked(stream.buffer, **like)
sys.stdout, sys.stderr = (stream and over(stream) for stream in (sys.stdout, sys.stderr))
make = logging.getLogRecordFactory()
def masked(*args, **kwargs):
    record = make(*args, **kwargs)
    try:
        whole = record.getMessage()
    except Exception:
        return record
    if hidden(whole) != whole:
        record.msg, record.args = hidden(whole), None
    return record
logging.setLogRecordFactory(masked)
for flag, values in flags.items():
    sys.argv += [flag + "=" + values[0]] if len(values) == 1 else [flag, *values]
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""`python -c PROGRAM MODULE ...` is `python -m MODULE ...`. No more than Python has to be there."""


def start(
    python: str, module: str, args: Mapping[str, FlagValue], env: Mapping[str, str], *, first: Sequence[str] = ()
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Command line and environment of a module with these flags. first: words that come before them."""
    plain = (*first, *flags({flag: value for flag, value in args.items() if not is_secret_flag(flag, value)}))
    secret = {f"--{flag}": _words(value) for flag, value in args.items() if is_secret_flag(flag, value) and value}
    if not secret:
        return (python, "-m", module, *plain), dict(env)
    return (python, "-c", PROGRAM, module, *plain), {**env, SECRET_FLAGS: json.dumps(secret)}


def shown(argv: Sequence[str], env: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The same as somebody would start it who has no secrets to keep, with the values of secrets masked."""
    if SECRET_FLAGS not in env:
        return tuple(argv), dict(env)
    python, _, _, module, *plain = argv
    secret = [word for flag in json.loads(env[SECRET_FLAGS]) for word in (flag, MASK)]
    return (python, "-m", module, *plain, *secret), {name: env[name] for name in env if name != SECRET_FLAGS}


def flags(args: Mapping[str, FlagValue]) -> tuple[str, ...]:
    """Spell flags: true is the bare flag, false leaves it out, several values follow each other."""
    words: list[str] = []
    for flag, value in args.items():
        if value is True:
            words.append(f"--{flag}")
        elif value is not False:
            words += [f"--{flag}", *_words(value)]
    return tuple(words)


def _words(value: FlagValue) -> list[str]:
    return [*map(str, value)] if isinstance(value, tuple) else [str(value)]
