"""`disagg launch`: one YAML file in, a running deployment with proven KV transfer and a smoke score out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from disagg_cli.cli.options import Executor, Json, Set, Unset, Variant
from disagg_cli.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from disagg_cli.runtime.prepare import Prepared
    from disagg_cli.runtime.rundir import RunDir


def launch(
    config: Annotated[Path, typer.Argument(help="The topology, a YAML file.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print every command line; start nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Start although the plan says no.")] = False,
    cold: Annotated[
        bool, typer.Option("--cold", help="On CPUs too, start each server by its ordinary command line.")
    ] = False,
    exit_after_eval: Annotated[
        bool, typer.Option("--exit-after-eval", help="Stop everything once the evals are done.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once it serves; `disagg stop` ends it.")
    ] = False,
    evaluate: Annotated[
        str | None, typer.Option("--eval", help="Run this eval, `gsm8k`, where the topology names none.")
    ] = None,
    against_aggregated: Annotated[
        bool, typer.Option("--against-aggregated", help="Ask an aggregated server the same, and compare the answers.")
    ] = False,
    executor: Executor = None,
    variant: Variant = None,
    sets: Set = [],  # noqa: B006  # Typer makes a new list for each call
    unsets: Unset = [],  # noqa: B006
    as_json: Json = False,
    run_dir: Annotated[Path | None, typer.Option(hidden=True, help="The directory of a detached run.")] = None,
    changes_on_stdin: Annotated[bool, typer.Option(hidden=True, help="Read what is set and unset as JSON.")] = False,
) -> None:
    """Plan, check, start, prove that KV moved, eval, and hold until Ctrl-C."""
    from disagg_cli.cli.submit import in_job, submitted
    from disagg_cli.console.launch_view import dry_run as show_dry_run
    from disagg_cli.console.launch_view import show_plan
    from disagg_cli.console.sink import console, show
    from disagg_cli.runtime.job import read_once
    from disagg_cli.runtime.prepare import prepare, refuse_errors
    from disagg_cli.topology.loading import with_executor
    from disagg_cli.topology.reading import refuse_stdin

    if changes_on_stdin:
        sets, unsets = _told_changes()
    with read_once(run_dir):
        sets = with_executor(executor, config, variant=variant, sets=sets, unsets=unsets)
        prepared = prepare(config, variant=variant, sets=sets, unsets=unsets)
    prepared = _with_evals(prepared, evaluate, against_aggregated=against_aggregated)
    out = console(as_json=as_json, lasting=True)
    if run_dir is None:
        show_plan(prepared, out)
        _show_last_rehearsal(prepared, out)
    if dry_run and not (as_json and prepared.errors and not force):
        show(show_dry_run(prepared), prepared.document() | {"plan": prepared.plan_document()}, as_json=as_json)
    refuse_errors(prepared.errors, force=force)
    if dry_run:
        return
    for finding in prepared.errors:
        out.print(f"--force overrides {finding.code}: {finding.message}", style="bold yellow", markup=False)
    if detach and exit_after_eval:
        raise UsageError("--detach returns once it serves, and --exit-after-eval never does", fix="choose one of them")
    submits = prepared.deployment.executor == "slurm" and not in_job()
    if detach and not submits:
        refuse_stdin(config, "a detached launch")
    flags = ["--force"] * force + ["--cold"] * cold + ["--against-aggregated"] * against_aggregated
    flags += ["--eval", evaluate] if evaluate else []
    if submits:
        flags += ["--exit-after-eval"] * exit_after_eval
        submitted(prepared, flags, out, detach=detach, as_json=as_json)
    elif detach:
        flags += ["--variant", variant] if variant else []
        _detach(prepared, flags, {"sets": sets, "unsets": unsets}, out, as_json=as_json)
    else:
        _launch(prepared, out, cold=cold, exit_after_eval=exit_after_eval, as_json=as_json, run_dir=run_dir)


def _told_changes() -> tuple[list[str], list[str]]:
    """What runtime.control.start_detached tells a detached launch."""
    import json
    import sys

    told = json.load(sys.stdin)
    return told["sets"], told["unsets"]


def _show_last_rehearsal(prepared: Prepared, out: Console) -> None:
    """Say whether this topology has been rehearsed on CPUs, where it is for GPUs."""
    from disagg_cli.console.rehearse_view import last_rehearsal_line
    from disagg_cli.rehearsal.fingerprint import fingerprint
    from disagg_cli.runtime.rehearse import last_rehearsal

    if not prepared.deployment.platform.on_cpu:
        out.print(last_rehearsal_line(last_rehearsal(fingerprint(prepared.deployment, prepared.plans[0].layout))))


def _with_evals(prepared: Prepared, evaluate: str | None, *, against_aggregated: bool) -> Prepared:
    from disagg_cli.runtime.prepare import with_aggregated, with_gsm8k

    if evaluate not in (None, "gsm8k"):
        raise UsageError(f"unknown eval: {evaluate}", fix="--eval gsm8k")
    prepared = with_gsm8k(prepared) if evaluate else prepared
    return with_aggregated(prepared) if against_aggregated else prepared


def _launch(
    prepared: Prepared, out: Console, *, cold: bool, exit_after_eval: bool, as_json: bool, run_dir: Path | None
) -> None:
    import asyncio
    import contextlib

    from disagg_cli.cli.submit import in_job
    from disagg_cli.console.launch_view import LaunchView
    from disagg_cli.console.plan_view import findings_view
    from disagg_cli.console.sink import write_json
    from disagg_cli.runtime import rundir
    from disagg_cli.runtime.control import summary
    from disagg_cli.runtime.interruption import until_interrupted
    from disagg_cli.runtime.launch import Launch, Options, check_machine, record
    from disagg_cli.runtime.reservation import reserved
    from disagg_cli.runtime.submission import kept

    with reserved(prepared.ports()):
        for line in findings_view(until_interrupted(check_machine(prepared))):
            out.print(line)
        directory = rundir.RunDir(run_dir) if run_dir else rundir.create(prepared.deployment.name)
        recorder = record(prepared, directory)
        here = prepared.deployment.platform.on_cpu and prepared.deployment.executor == "local"
        options = Options(warm=here and not cold, exit_after_eval=exit_after_eval)

        view = LaunchView(recorder, out)

        async def run() -> None:
            await Launch(prepared, options, recorder, view).run()

        with kept(directory) if in_job() else contextlib.nullcontext(), view.live():
            asyncio.run(run())
    if as_json:
        write_json(summary(directory))


def _detach(
    prepared: Prepared, flags: list[str], changes: Mapping[str, list[str]], out: Console, *, as_json: bool
) -> None:
    """Start the same launch in a session of its own and show what it does until it serves."""
    from disagg_cli.console.launch_view import where_everything_is
    from disagg_cli.console.sink import show
    from disagg_cli.runtime import rundir
    from disagg_cli.runtime.control import end_detached, follow_until_serving, start_detached, summary
    from disagg_cli.runtime.interruption import until_interrupted
    from disagg_cli.runtime.launch import check_machine
    from disagg_cli.runtime.reservation import reserved

    with reserved(prepared.ports()):
        until_interrupted(check_machine(prepared))
    directory: RunDir = rundir.create(prepared.deployment.name)
    child = start_detached(prepared.config, directory, flags, changes)
    try:
        for line in follow_until_serving(directory, child):
            out.print(line, markup=False)
    except Interrupted:
        out.print(f"ending {directory.path.name}", markup=False)
        end_detached(directory, child)
        raise
    show(where_everything_is(directory), summary(directory), as_json=as_json)
