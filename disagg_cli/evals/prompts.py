"""Prompt texts. A prompt's name and version stand in every summary: scores under different prompts do not compare."""

from collections.abc import Sequence

from disagg_cli.evals.data import Question

# A whole line, not the bare word: `Question` alone cuts answers that contain it (sglang issue 29264: 3 to 5 points).
STOP = "\nQuestion:"


def worked_examples(shots: Sequence[Question]) -> str:
    """The head that all completion prompts of a run share."""
    return "".join(f"Question: {shot.question}\nAnswer: {shot.answer}\n\n" for shot in shots)


def completion_prompt(examples: str, question: str) -> str:
    """Worked examples, then one open question."""
    return f"{examples}Question: {question}\nAnswer:"


def prompt_version(shots: int) -> str:
    """The name of the completion prompt with this many examples."""
    return f"disagg-completion-{shots}shot/1"
