"""`disagg check`: everything that is wrong, or may go wrong, with topologies, before anything starts."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from disagg_cli.cli.options import Json, Set, Unset, Variant

if TYPE_CHECKING:
    from disagg_cli.findings.topology_report import Checked


class Format(StrEnum):
    """How findings are written."""

    TABLE = "table"
    GITHUB = "github"
    SARIF = "sarif"
    JSON = "json"


def check(
    configs: Annotated[list[Path], typer.Argument(help="Topologies, YAML files; `-` is stdin.", show_default=False)],
    sets: Set = [],  # noqa: B006  # Typer makes a new list for each call
    unsets: Unset = [],  # noqa: B006
    variant: Variant = None,
    sglang: Annotated[
        str | None, typer.Option(help="Judge by this SGLang release; default: the topology's, or the installed one.")
    ] = None,
    hosts: Annotated[
        bool, typer.Option("--hosts", help="Look at the hosts too, as a launch does: over ssh, all at once.")
    ] = False,
    output: Annotated[Format, typer.Option("--format", help="How to write what was found.")] = Format.TABLE,
    as_json: Json = False,
) -> None:
    """Check topologies: every finding has a code, its line, the numbers, a fix and a source.

    Exits 3 where a topology must not be launched. All variants and all points of a matrix are checked.

    Example: disagg check configs/*.yaml --format github
    """
    from disagg_cli.findings.topology_report import check_file
    from disagg_cli.topology.machine import gather

    if sglang:
        from disagg_cli.connector.releases import find_release

        find_release(sglang)
    facts = gather()
    checked = [
        one
        for config in configs
        for one in check_file(config, facts, variant=variant, sets=sets, unsets=unsets, sglang=sglang)
    ]
    if hosts:
        checked = [_with_hosts(one, sets, unsets) for one in checked]
    _show(checked, Format.JSON if as_json else output)
    if not all(one.ok for one in checked):
        raise typer.Exit(3)


def _with_hosts(checked: "Checked", sets: list[str], unsets: list[str]) -> "Checked":
    """The judgement with what its hosts are like, where nothing else forbids a launch."""
    from disagg_cli.cli.submit import in_job
    from disagg_cli.errors import PlanRefused
    from disagg_cli.findings.finding import finding
    from disagg_cli.findings.topology_report import with_findings
    from disagg_cli.runtime.hosts import look_at_hosts
    from disagg_cli.runtime.interruption import until_interrupted
    from disagg_cli.runtime.prepare import prepare
    from disagg_cli.runtime.reservation import reserved

    if not checked.ok:
        return checked
    prepared = prepare(checked.file, variant=checked.variant, sets=sets, unsets=unsets)
    if prepared.deployment.executor == "slurm" and not in_job():
        typer.echo(f"{checked.file}: the nodes of a Slurm job are looked at once it has them, by its launch", err=True)
    try:
        with reserved(prepared.ports()):
            found = until_interrupted(look_at_hosts(prepared))
    except PlanRefused as held:  # to look at hosts is to listen there, in the way of the launch that has the ports
        message = f"hosts are not looked at: {held.what}"
        found = (finding("DSG415", message, where="executor", fix=held.fix),)
    return with_findings(checked, prepared.deployment, found)


def _show(checked: list["Checked"], output: Format) -> None:
    from disagg_cli.console import check_view
    from disagg_cli.console.sink import show, write_json
    from disagg_cli.findings.topology_report import document

    if output is Format.JSON:
        write_json(document(checked))
    elif output is Format.SARIF:
        write_json(check_view.sarif(checked))
    elif output is Format.GITHUB:
        typer.echo(check_view.github(checked), nl=False)
    else:
        show(check_view.check_view(checked), {}, as_json=False)
