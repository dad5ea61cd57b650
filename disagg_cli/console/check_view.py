"""What `disagg check` and `disagg explain` show: for people, for GitHub's annotations, and as SARIF."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from disagg_cli import __version__
from disagg_cli.findings.finding import Entry, Severity, catalogue, printable
from disagg_cli.topology.places import Place

if TYPE_CHECKING:
    from disagg_cli.findings.topology_report import Checked, Located

STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
GITHUB = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def check_view(checked: Sequence["Checked"]) -> RenderableType:
    """A table for each topology that something was found in, then one line for all."""
    parts: list[RenderableType] = []
    for one in checked:
        if one.findings or one.ignored:
            parts += [Text(printable(one.title), style="bold"), _table(one), Text()]
    return Group(*parts, _summary(checked))


def _table(one: "Checked") -> RenderableType:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 1))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for located in one.findings:
        found = located.finding
        what = Text.assemble(found.message, "\n", (f"fix: {found.fix}", "dim"))
        table.add_row(_where(located, one), Text(found.severity.value, STYLES[found.severity]), found.code, what)
    for located, reason in one.ignored:
        what = Text.assemble((f"{located.finding.message}\nignored: {reason}", "dim"))
        table.add_row(_where(located, one), Text("ignored", "dim"), Text(located.finding.code, "dim"), what)
    return table


def _where(located: "Located", one: "Checked") -> str:
    """Line and column, with the file where that is another one (a base, or the command line)."""
    place = located.place
    return printable(f"{place.line}:{place.column}" if place.line and place.file == str(one.file) else str(place))


def _summary(checked: Sequence["Checked"]) -> Text:
    counts = [(severity, sum(one.count(severity) for one in checked)) for severity in STYLES]
    said = [f"{count} {severity.value}{'' if count == 1 else 's'}" for severity, count in counts if count]
    topologies = f"{len(checked)} topolog{'y' if len(checked) == 1 else 'ies'}"
    bad = sum(not one.ok for one in checked)
    verdict = f"{bad} must not be launched" if bad else "all may be launched"
    more = "; `disagg explain CODE` says why" if said else ""
    return Text(f"{topologies}, {verdict}: {', '.join(said) or 'nothing found'}{more}", style="red" if bad else "green")


def github(checked: Iterable["Checked"]) -> str:
    """Workflow commands: GitHub shows them beside the lines of a pull request."""
    lines = []
    for one in checked:
        for located in one.findings:
            found, place = located.finding, _in_file(located, one)
            title = f"{found.code} {catalogue()[found.code].name}" + (f" [{one.variant}]" if one.variant else "")
            at = f"file={_property(place.file)},line={max(1, place.line)},col={max(1, place.column)}"
            message = _message(f"{found.message}\nfix: {found.fix}")
            lines.append(f"::{GITHUB[found.severity]} {at},title={_property(title)}::{message}")
    return "".join(f"{line}\n" for line in lines)


def _in_file(located: "Located", one: "Checked") -> Place:
    """The place, or the top of the file for what the command line said: annotations need a file."""
    return located.place if located.place.line else Place(file=str(one.file), line=1, column=1)


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def sarif(checked: Iterable["Checked"]) -> dict[str, Any]:
    """SARIF 2.1.0, for code scanning."""
    located = [(found, one) for one in checked for found in one.findings]
    codes = sorted({found.finding.code for found, _ in located})
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {"name": "disagg", "version": __version__, "rules": [_rule(code) for code in codes]}
                },
                "results": [_result(found, _in_file(found, one), codes) for found, one in located],
            }
        ],
    }


def _rule(code: str) -> dict[str, Any]:
    entry = catalogue()[code]
    return {
        "id": code,
        "name": entry.name,
        "shortDescription": {"text": entry.title},
        "fullDescription": {"text": entry.why},
        "help": {"text": f"{entry.fix}\nSource: {entry.source}"},
        "defaultConfiguration": {"level": entry.severity.value},
    }


def _result(located: "Located", place: Place, codes: list[str]) -> dict[str, Any]:
    found = located.finding
    region = {"startLine": max(1, place.line), "startColumn": max(1, place.column)}
    return {
        "ruleId": found.code,
        "ruleIndex": codes.index(found.code),
        "level": found.severity.value,
        "message": {"text": f"{found.message}\nFix: {found.fix}"},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": _uri(place.file)}, "region": region}}],
    }


def _uri(file: str) -> str:
    """A file as SARIF names it: relative to where the check ran, or with its scheme."""
    return Path(file).as_uri() if Path(file).is_absolute() else quote(file)


def explain_view(entry: Entry) -> RenderableType:
    """One code's page."""
    head = Text.assemble((entry.code, "bold"), f" {entry.name}  ", (entry.severity.value, STYLES[entry.severity]))
    body = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    body.add_column(style="bold", no_wrap=True)
    body.add_column(overflow="fold", ratio=1)
    for label, text in (("why", entry.why), ("fix", entry.fix), ("source", entry.source)):
        body.add_row(label, Text(text.strip()))
    ignore = Text(f'To keep it all the same: `ignore: {{{entry.code}: "the reason"}}` in the topology.', style="dim")
    return Group(head, Text(entry.title), body, ignore)


def codes_view(entries: Iterable[Entry]) -> RenderableType:
    """Every code with its title."""
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for entry in entries:
        table.add_row(entry.code, Text(entry.severity.value, STYLES[entry.severity]), Text(entry.title))
    return table
