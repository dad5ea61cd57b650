"""A supervisor with real processes of this machine, for its tests."""

import sys

from runs import a_run, process
from waiting import until

from disagg_cli.engine.commands import Command
from disagg_cli.executors import sessions
from disagg_cli.executors.local import LocalExecutor
from disagg_cli.runtime.supervisor import Supervisor
from disagg_cli.settings import Timeouts
from disagg_cli.topology.deployment import Host

HERE = Host(name="localhost", address="127.0.0.1", gpus=0, local=True)
QUICK = Timeouts(health=10.0, grace=5.0, gone=5.0, poll=0.01)
FOREVER = "import time; print('ready', flush=True); time.sleep(60)"


def command(name, code):
    return Command(name=name, host=HERE, argv=(sys.executable, "-S", "-c", code), env={})


class Supervised:
    """A supervisor of the processes that a test starts; everything is killed at the end."""

    def __init__(self, timeouts):
        self.recorder = a_run()
        self.supervisor = Supervisor(LocalExecutor(), self.recorder, timeouts)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for handle in self.supervisor.handles.values():
            sessions.kill_session(handle.pid)

    async def start(self, *commands):
        for one in commands:
            self.recorder.state.processes[one.name] = process(one.name)
        await self.supervisor.start(commands)

    async def ready(self, *names):
        for name in names:
            log = self.recorder.directory.log(name)
            await until(lambda log=log: log.exists() and "ready" in log.read_text())

    def left(self):
        return [pid for handle in self.supervisor.handles.values() for pid in sessions.members(handle.pid)]

    def phase(self, name):
        return self.recorder.state.processes[name].phase
