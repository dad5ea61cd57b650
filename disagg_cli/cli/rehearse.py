"""`disagg rehearse`: a GPU topology on this machine's CPUs, with the real SGLang, NIXL and router."""

from pathlib import Path
from typing import Annotated

import typer

from disagg_cli.cli.options import Json, Set, Unset, Variant


def rehearse(
    config: Annotated[Path, typer.Argument(help="The topology, a YAML file.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be rehearsed; start nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Start although the plan says no.")] = False,
    cold: Annotated[bool, typer.Option("--cold", help="Start each server by its ordinary command line.")] = False,
    overlay: Annotated[
        str | None, typer.Option(help="auto, off or require, in place of the topology's word.", show_default=False)
    ] = None,
    fault: Annotated[
        str | None, typer.Option(help="Plant a fault of `disagg drill`: the rehearsal must fail.", show_default=False)
    ] = None,
    variant: Variant = None,
    sets: Set = [],  # noqa: B006  # Typer makes a new list for each call
    unsets: Unset = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Run a GPU topology with tiny weights on CPUs: launch, prove every pair's KV, compare answers, stop, report.

    Same P, D and KV heads, flags of the KV path, workers, ports and router. Exits as `disagg launch` does.
    """
    from disagg_cli.console.launch_view import LaunchView
    from disagg_cli.console.rehearse_view import plan_of_rehearsal, report_view
    from disagg_cli.console.sink import console, show, show_error, write_json
    from disagg_cli.runtime.prepare import refuse_errors
    from disagg_cli.runtime.rehearse import prepare_rehearsal, run_rehearsal

    changes = [*sets, *([f"connector.overlay={overlay}"] if overlay else [])]
    rehearsal = prepare_rehearsal(config, variant=variant, sets=changes, unsets=unsets, cold=cold, fault=fault)
    out = console(as_json=as_json, lasting=True)
    if dry_run:
        show(plan_of_rehearsal(rehearsal), rehearsal.document(), as_json=as_json)
        refuse_errors(rehearsal.prepared.errors, force=force)
        return
    out.print(plan_of_rehearsal(rehearsal))
    refuse_errors(rehearsal.prepared.errors, force=force)
    for finding in rehearsal.prepared.errors:
        out.print(f"--force overrides {finding.code}: {finding.message}", style="bold yellow", markup=False)
    report, error = run_rehearsal(rehearsal, lambda recorder: LaunchView(recorder, out))
    if as_json:
        write_json(report)
    out.print(report_view(report))
    if error:
        show_error(error, as_json=False)
        raise typer.Exit(error.exit_code)
