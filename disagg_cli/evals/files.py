"""What a finished run leaves: summary.json for programs, report.md for people, junit.xml for CI."""

import html
from collections.abc import Iterator, Sequence
from pathlib import Path

from disagg_cli.evals.record import SUMMARY, write_json, write_text
from disagg_cli.evals.report import EvalReport
from disagg_cli.evals.states import Sample, State
from disagg_cli.evals.statistics import wilson
from disagg_cli.evals.timing import LATENCIES

_EXAMPLES = 3
_LONGEST_EXAMPLE = 400


def write_report(report: EvalReport, samples: Sequence[Sample], folder: Path) -> None:
    """Write all three, each whole or not at all."""
    write_json(folder / SUMMARY, report.document(), late=True)
    write_text(folder / "report.md", markdown(report, samples), late=True)
    write_text(folder / "junit.xml", junit(report), late=True)


def markdown(report: EvalReport, samples: Sequence[Sample]) -> str:
    """The report as Markdown: verdict, score, states, times, failures, and examples of what went wrong."""
    sections = [
        _heading(report),
        _table(("state", "questions"), ((state.value, str(report.counts[state])) for state in State)),
        _table(("seconds", "p50", "p90", "p99", "max", "n"), _latency_rows(report)),
        _order(report),
        *(f"- {note}" for note in report.facts.notes),
        _table(("failed", "as", "message", "first request"), _failure_rows(report)),
        *_examples(samples),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _heading(report: EvalReport) -> str:
    identity = report.identity
    score = "no answer"
    if report.accuracy is not None:
        low, high = wilson(report.right, report.answered)
        score = f"{report.accuracy:.4f} of {report.answered} answered (95 %: {low:.4f} to {high:.4f})"
    return (
        f"# GSM8K: {report.verdict.outcome}\n\n{report.verdict.reason}\n\n"
        f"Accuracy {score}, {report.accuracy_planned:.4f} of {report.planned} planned. "
        f"{identity.dataset} (sha256 {identity.sha256[:16]}), prompt {identity.prompt}, scorer {identity.scorer}, "
        f"model {identity.model}, {identity.url}, run {identity.run}.\n\n"
        f"{report.output_throughput:,.1f} output token/s, {report.requests_per_second:,.2f} answers/s, "
        f"{report.wall_s:.2f} s."
    )


def _table(head: Sequence[str], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [_row(row) for row in rows]
    return "\n".join([_row(head), _row(["---"] * len(head)), *lines]) if lines else ""


def _row(cells: Sequence[str]) -> str:
    escaped = (" ".join(cell.replace("|", "\\|").split()) for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _latency_rows(report: EvalReport) -> Iterator[tuple[str, ...]]:
    for name, entry in report.latency.items():
        if entry:
            figures = (f"{value:.4f}" for value in (entry.p50, entry.p90, entry.p99, entry.max))
            yield (LATENCIES[name], *figures, str(entry.n))


def _order(report: EvalReport) -> str:
    parts = (f"{quarter.right}/{quarter.answered}" for quarter in report.quarters)
    return f"Right by quarter, in the order of completion: {', '.join(parts)} (no fall: p = {report.decay:.3g})."


def _failure_rows(report: EvalReport) -> Iterator[tuple[str, ...]]:
    for entry in report.failures:
        yield str(entry.count), f"{entry.state} ({entry.kind})", entry.message, entry.rids[0]


def _examples(samples: Sequence[Sample]) -> Iterator[str]:
    for state in (State.WRONG, State.INVALID, State.TRUNCATED):
        shown = [sample for sample in samples if sample.state is state][:_EXAMPLES]
        for sample in shown:
            text = sample.completion[-_LONGEST_EXAMPLE:].replace("```", "'''")
            read = sample.answer if sample.answer is not None else "no number"
            yield f"## {state}: {sample.id}\n\nGold {sample.gold}, read {read}. The answer ends:\n\n```\n{text}\n```"


def junit(report: EvalReport) -> str:
    """One test case for the verdict and one for the transport, as CI systems show them."""
    lost = "; ".join(f"{entry.count} {entry.state} ({entry.kind}): {entry.message}" for entry in report.failures)
    verdict = "" if report.exit_code == 0 else f"{report.verdict.outcome}: {report.verdict.reason}"
    cases = [_case("verdict", verdict), _case("transport", lost)]
    failures = bool(lost) + bool(verdict)
    head = f'<testsuite name="disagg eval gsm8k" tests="2" failures="{failures}" time="{report.wall_s:.3f}">'
    return "\n".join(["<?xml version='1.0' encoding='utf-8'?>", head, *cases, "</testsuite>", ""])


def _case(name: str, failure: str) -> str:
    opening = f'<testcase classname="gsm8k" name="{name}"'
    return (
        f'{opening}><failure message="{html.escape(_printable(failure))}"/></testcase>' if failure else f"{opening}/>"
    )


def _printable(text: str) -> str:
    """XML 1.0 has no control characters."""
    return "".join(character if character.isprintable() else " " for character in text)
