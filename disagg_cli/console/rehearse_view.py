"""What `disagg rehearse` shows: what it has of the topology, and in the end what was found."""

import time
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from disagg_cli.console.plan_view import findings_view
from disagg_cli.console.units import duration
from disagg_cli.probe.parity import ParityResult
from disagg_cli.rehearsal.notes import Note
from disagg_cli.runtime.rehearse import Rehearsal

COLOURS = {"as written": "green", "reduced": "yellow", "replaced": "yellow", "not covered": "red"}


def plan_of_rehearsal(rehearsal: Rehearsal) -> RenderableType:
    """What will be rehearsed, how, and what it takes."""
    return Group(
        Text(f"rehearsal of {rehearsal.name} ({rehearsal.fingerprint})", style="bold"),
        _notes(rehearsal.notes),
        Text(f"needs: {rehearsal.needs.sentence(rehearsal.room)}"),
        Text(f"servers healthy after about {rehearsal.needs.start_s:.0f} s", style="dim"),
        *findings_view(rehearsal.prepared.findings),
    )


def report_view(report: Mapping[str, Any]) -> RenderableType:
    """The report of a rehearsal that has ended: what it found, and what it could not find."""
    notes = [Note(**note) for note in report["notes"] if note["kind"] != "as written"]
    return Group(_pairs(report["probe"]), _notes(notes), *_figures(report))


def last_rehearsal_line(report: Mapping[str, Any] | None) -> Text:
    """What `disagg launch` says of the last rehearsal of its topology."""
    if report is None:
        return Text("never rehearsed here as it is now: `disagg rehearse` runs it on this machine's CPUs", style="dim")
    passed = "passed" if report["ok"] else f"FAILED ({report['reason']})"
    fewer = [note["what"] for note in report["notes"] if ": only " in note["what"]]
    passed += f", with {', '.join(fewer)}" if fewer else ""
    return Text(
        f"rehearsed {duration(time.time() - report['at'])} ago: {passed} ({report['run']})",
        style="green" if report["ok"] else "bold red",
    )


def _notes(notes: list[Note]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    before = ""
    for note in notes:
        kind = "" if note.kind == before else note.kind
        table.add_row(Text(kind, style=COLOURS[note.kind]), Text(f"{note.what}: {note.why}" if note.why else note.what))
        before = note.kind
    return table


def _pairs(probe: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "pair", "first token", "KV, largest difference"):
        table.add_column(heading)
    parity = {(one["prefill"], one["decode"]): one for one in probe.get("parity", [])}
    for pair in probe.get("pairs", []):
        found = parity.get((pair["prefill"], pair["decode"]))
        ok = pair["ok"] and found is not None and found["ok"]
        first = f"{pair['first_token_s']:.2f} s" if pair["first_token_s"] else "-"
        table.add_row(
            Text("ok" if ok else "FAILED", style="green" if ok else "bold red"),
            f"{pair['prefill']} -> {pair['decode']}",
            first,
            Text(_parity_in_words(pair, found)),
        )
    return table


def _parity_in_words(pair: Mapping[str, Any], parity: Mapping[str, Any] | None) -> str:
    if not pair["ok"]:
        return str(pair["error"])
    if parity is None:
        return "not compared"
    if parity["error"]:
        return str(parity["error"])
    if not parity["ok"]:
        return ParityResult(**{one.name: parity[one.name] for one in fields(ParityResult)}).sentence()
    return f"{parity['max_difference']:.2g} nats (tolerance {parity['tolerance']:.2g})"


def _figures(report: Mapping[str, Any]) -> list[Text]:
    lines = []
    if agreement := report["agreement"]:
        same = f"{agreement['identical']} of {agreement['questions']}"
        lines.append(Text(f"agreement  {same} answers are those of an aggregated server"))
    if report["fault"]:
        lines.append(Text(f"planted    {report['fault']}: this rehearsal must fail", style="yellow"))
    word = Text("REHEARSED" if report["ok"] else "FAILED", style="bold green" if report["ok"] else "bold red")
    return [*lines, Text.assemble(word, f"  {report['reason']}, {report['seconds']:.0f} s in all ({report['run']})")]
