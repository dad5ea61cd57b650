"""One allocation of all nodes for the tests of a module that ask for `held`."""

import pytest
from allocation import allocated


@pytest.fixture(scope="module")
def salloc(slurm_lab):
    """The variables of an allocation of three nodes."""
    with allocated(slurm_lab, "--nodes=3") as env:
        yield env
    slurm_lab.empty()


@pytest.fixture
def held(salloc, slurm_lab, monkeypatch):
    """The lab, with this process in the allocation."""
    for name, value in salloc.items():
        monkeypatch.setenv(name, value)
    return slurm_lab
