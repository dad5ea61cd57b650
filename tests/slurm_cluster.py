"""A Slurm lab with a login node from which a test launches."""

import contextlib
import json
import os
import subprocess
import sys
import time

import yaml
from cheap_python import cheap_python
from deployments import SMALLEST
from waiting import wait_until

SECRET = "planted-0f3a9c"
DISAGG = [sys.executable, "-m", "disagg_cli"]


class Cluster:
    def __init__(self, lab, home, folder):
        self.lab = lab
        self.home = home
        self.folder = folder
        self.python = str(cheap_python(folder))

    def topology(self, slurm=None, **changes):
        settings = {"nodes": 3, "python": self.python} | (slurm or {})
        topology = SMALLEST | {
            "executor": {"slurm": settings},
            "ports": 21000,
            "router": {"port": 21500},
            "probe": {"parity": False, "timeout_s": 20},
        }
        file = self.folder / "topology.yaml"
        file.write_text(yaml.safe_dump(topology | changes))
        return file

    def disagg(self, *args, within=120, **env):
        return subprocess.run(
            [*DISAGG, *map(str, args)], env=os.environ | env, capture_output=True, text=True, timeout=within
        )

    def serve(self, *flags, within=120, **topology):
        """Launch a run that serves."""
        done = self.disagg("launch", self.topology(**topology), "--detach", *flags, within=within)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def launch(self, file, *flags):
        """Launch a run that is followed in the background."""
        with (self.folder / "out").open("wb") as out:
            argv = [*DISAGG, "launch", str(file), *flags]
            return subprocess.Popen(argv, stdout=out, stderr=out, start_new_session=True)

    def launch_in(self, *allocation):
        """The same, in an allocation."""
        with (self.folder / "out").open("wb") as out:
            return subprocess.Popen([*allocation, *DISAGG, "launch", self.topology()], stdout=out, stderr=out)

    def disagg_on(self, name, *args):
        """The command on a login node of another name."""
        argv = [
            "unshare",
            "--uts",
            "--pid",
            "--fork",
            "--mount-proc",
            "sh",
            "-c",
            'hostname "$1"; shift; exec "$@"',
            "sh",
            name,
            *DISAGG,
            *args,
        ]
        return subprocess.run(argv, capture_output=True, text=True, timeout=90)

    def said(self, words, within=120):
        """Wait until the launch in the background says so."""
        shown = self.folder / "out"
        with contextlib.suppress(AssertionError):
            wait_until(lambda: words in shown.read_text(), within)
        assert words in shown.read_text()

    @property
    def run(self):
        return (self.home / "current").resolve()

    @property
    def state(self):
        return json.loads((self.run / "state.json").read_text())

    @property
    def number(self):
        return json.loads((self.run / "job.json").read_text())["job"]

    def process(self, name):
        """A process as it is on record."""
        return next(one for one in self.state["processes"] if one["name"] == name)

    def events(self, kind):
        """The run's events of a kind."""
        lines = (self.run / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def kill(self, name):
        """Kill a process on its node; return when, by the clock that events have."""
        one = self.process(name)
        command = f"pkill -KILL -f '^[^ ]*python.* --port {one['url'].rpartition(':')[2]}'"
        wait_until(lambda: self.lab.on(one["host"], "sh", "-c", f"{command} && echo killed; true"), 20)
        return time.time()

    def ended(self, within=120):
        """The state of the run, once it has ended and Slurm's job with it."""
        wait_until(lambda: self.state["phase"] == "ended", within)
        self.nothing_left()
        return self.state

    def hold_all(self):
        """Give all nodes to another job."""
        argv = ["sbatch", "--parsable", "--exclusive", "-N3", "-o", "/dev/null", "--wrap", "sleep 300"]
        holder = self.lab.run(*argv).strip()
        wait_until(lambda: self.lab.jobs()[holder] == "RUNNING")
        return holder

    def salloc(self, *options, **topology):
        """Launch from the shell of an allocation, until the evals are done."""
        file = str(self.topology(**topology))
        argv = ["salloc", "--quiet", *options, *DISAGG, "launch", file, "--exit-after-eval"]
        return subprocess.run(argv, capture_output=True, text=True, timeout=90)

    def nothing_left(self):
        wait_until(lambda: not self.lab.jobs(), 30)
        wait_until(lambda: not self.lab.processes(), 30)


def secrets_in(folder):
    """The files below that have the secret in them."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if SECRET.encode() in path.read_bytes()]
