"""What every test may use. Its folder is on the import path, so helpers beside it can be imported by name."""

import asyncio
import contextlib
import inspect
import os
import signal

import pytest
import ssh_lab as ssh_lab_of
from hypothesis import settings

settings.register_profile("shared cores", deadline=None)  # how long one example takes says how busy the machine is
settings.load_profile("shared cores")


# A job in the background of a script, or under nohup, ignores these, and so would all that tests start and signal.
for _signum in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(_signum) is signal.SIG_IGN:
        signal.signal(_signum, signal.default_int_handler if _signum == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty DISAGG_HOME, also for every `disagg` that the test starts."""
    folder = tmp_path / "home"
    monkeypatch.setenv("DISAGG_HOME", str(folder))
    return folder


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run `async def` tests."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session")
def ssh_lab(tmp_path_factory):
    """Three hosts that ssh reaches."""
    if reason := ssh_lab_of.unavailable():
        pytest.skip(reason)
    ssh_lab_of.install()
    lab = ssh_lab_of.SshLab(tmp_path_factory.mktemp("ssh"), port=20100 + os.getpid() % 500)
    lab.up()
    yield lab
    lab.down()


@pytest.fixture(scope="session")
def slurm_lab():
    """A Slurm cluster of three nodes with four GPUs each; this machine is its login node."""
    from slurm_lab import NoLab, lab

    with contextlib.ExitStack() as stack:
        try:
            cluster = stack.enter_context(lab())
        except NoLab as why:
            pytest.skip(f"no Slurm cluster: {why}")
        yield cluster


@pytest.fixture
def slurm(slurm_lab, monkeypatch):
    """The same, idle before and after the test, which reaches it by Slurm's own commands."""
    monkeypatch.setenv("SLURM_CONF", str(slurm_lab.conf))
    yield slurm_lab
    slurm_lab.empty()


@pytest.fixture
def cluster(slurm, home, tmp_path):
    """The same as a login node has it, with topologies and launches of a test."""
    from slurm_cluster import Cluster

    return Cluster(slurm, home, tmp_path)
