"""What a process and a run may be doing, one after the other, and that nothing else is ever recorded."""

import itertools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runs import a_run, process

from disagg_cli.runtime.phases import AFTER as AFTER_OF_A_PROCESS
from disagg_cli.runtime.phases import ALIVE, RUN_AFTER, Phase, RunPhase, may_follow, run_may_follow

PHASES = Phase.__args__
RUN_PHASES = RunPhase.__args__


def test_the_life_of_a_worker():
    life = ("waiting", "starting", "loading", "healthy", "proven", "stopped")
    assert all(may_follow(now, then) for now, then in itertools.pairwise(life))


def test_a_dead_process_does_not_become_healthy():
    """Its last answer of /health may arrive after it has died."""
    assert not may_follow("failed", "healthy")
    assert not may_follow("stopped", "healthy")


def test_a_process_that_has_ended_can_only_be_started_again():
    assert AFTER_OF_A_PROCESS["failed"] == AFTER_OF_A_PROCESS["stopped"] == {"waiting"}


def test_a_run_that_has_ended_stays_so():
    assert not any(run_may_follow("ended", then) for then in RUN_PHASES)


def test_a_run_may_wait_for_something_else_within_a_phase():
    assert run_may_follow("probing", "probing")


@pytest.mark.parametrize(
    ("table", "names"), [(AFTER_OF_A_PROCESS, PHASES), (RUN_AFTER, RUN_PHASES)], ids=["process", "run"]
)
def test_the_tables_name_every_phase_and_no_other(table, names):
    assert set(table) == set(names)
    assert set().union(*table.values()) <= set(names)


@pytest.mark.parametrize("phase", ALIVE)
def test_whatever_lives_may_die_or_be_stopped(phase):
    assert {"failed", "stopped"} <= AFTER_OF_A_PROCESS[phase]


def test_every_run_can_be_stopped():
    assert all("stopping" in after for phase, after in RUN_AFTER.items() if phase not in ("stopping", "ended"))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.sampled_from(PHASES), st.sampled_from(RUN_PHASES)), max_size=30))
def test_whatever_is_asked_for_only_allowed_steps_are_recorded(home, asked):
    recorder = a_run(process("decode-0"))
    for phase in asked:
        if phase in PHASES:
            recorder.process_phase("decode-0", phase)
        if phase in RUN_PHASES:
            recorder.run_phase(phase)
    file = recorder.directory.path / "events.jsonl"
    events = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    steps = [(event["from"], event["phase"]) for event in events if event["kind"] == "process"]
    assert all(may_follow(*step) for step in steps)
    assert [then for _, then in steps] == [now for now, _ in steps[1:]] + [recorder.state.processes["decode-0"].phase][
        : len(steps)
    ]
    runs = ["starting", *(event["phase"] for event in events if event["kind"] == "run")]
    assert all(run_may_follow(now, then) for now, then in itertools.pairwise(runs))
    assert runs[-1] == recorder.state.phase
