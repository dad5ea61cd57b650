"""A fourth kind of place, as somebody would write it: this file, and one line in the registry.

Its hosts are loopback addresses, and all their processes run here.
"""

import os
import signal
import subprocess
from dataclasses import replace

from disagg_cli.executors import sessions
from disagg_cli.executors.protocol import Handle
from disagg_cli.topology.machine import Facts, HostFacts

PACKAGES = {"sglang": "0.5.23", "sglang-router": "0.3.2", "nixl": "1.5.1"}


def executor(site):
    return Toy(site)


class Toy:
    def __init__(self, site):
        self.site = site
        self.children = {}

    async def open(self):
        self.site.tell("the toy is open")

    async def place(self, hosts):
        return {host.name: replace(host, address=f"127.0.1.{n + 1}") for n, host in enumerate(hosts)}

    async def look(self, hosts, ports, paths):
        python, facts = self.site.settings["python"], Facts(packages=PACKAGES)
        return tuple(HostFacts(host=host.name, python=python, plugin=True, facts=facts) for host in hosts)

    async def provide(self, hosts, folder):
        self.site.tell(f"{folder.name} on {', '.join(host.name for host in hosts)}")

    async def start(self, command, log):
        env = {**os.environ, **command.env}
        with log.open("ab") as output:
            child = subprocess.Popen(  # noqa: ASYNC220
                command.argv, env=env, stdout=output, stderr=output, start_new_session=True
            )
        self.children[child.pid] = child
        return Handle(name=command.name, host=command.host.name, pid=child.pid, born=sessions.born(child.pid), log=log)

    async def poll(self, handle):
        return self.children[handle.pid].poll() if handle.pid in self.children else None

    async def terminate(self, handle):
        sessions.send(handle.pid, signal.SIGTERM)

    async def kill(self, handle):
        sessions.kill_session(handle.pid)

    async def survivors(self, handle):
        await self.poll(handle)
        return sessions.members(handle.pid)

    async def collect(self, handle):
        self.site.tell(f"{handle.name} is collected")

    async def close(self):
        self.site.tell("the toy is closed")
