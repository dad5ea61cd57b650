"""What a launch that follows its run in a Slurm job does when it is interrupted."""

import pytest
from runs import a_run

from disagg_cli.cli import submit
from disagg_cli.errors import Interrupted
from disagg_cli.runtime import job


class Screen:
    """A screen on which Ctrl-C comes again while it is written to, or not."""

    def __init__(self, *interrupts):
        self.interrupts = interrupts

    def print(self, text):
        for interrupt in self.interrupts:
            raise interrupt


@pytest.mark.parametrize(("interrupts", "at_once"), [((), False), ((Interrupted("again"),), True)])
def test_the_job_is_ended_whatever_happens_while_that_is_said(home, monkeypatch, interrupts, at_once):
    asked = []
    monkeypatch.setattr(job, "stop", lambda _, number, at_once=False: asked.append((number, at_once)))
    submit._stop(a_run().directory, "12", Screen(*interrupts))
    assert asked == [("12", at_once)]
