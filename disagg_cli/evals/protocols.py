"""What is asked, and how: endpoint, worked examples, stop words, length, scorer.

Three protocols of our own (one for each endpoint) and three presets that ask and score as other harnesses do, so that
a figure made with one of them can be held against a run here. A preset's questions are the first rows, not a draw.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from disagg_cli.errors import UsageError
from disagg_cli.evals.data import Question

Endpoint = Literal["completions", "chat", "generate"]
Preset = Literal["disagg", "sglang-run-eval", "lm-eval", "vllm"]
PrefixMode = Literal["fixed", "mixed", "none"]
Examples = Literal["fixed", "mixed", "none", "lm-eval"]

PATHS: dict[Endpoint, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "generate": "/generate",
}
# A whole line, not the bare word: `Question` alone cuts answers that contain it (sglang issue 29264: 3 to 5 points).
STOP = ("\nQuestion:",)
# Others do stop at the bare word (sglang 0.5.23 run_eval, vLLM gsm8k_eval).
BARE_STOP = ("Question", "Assistant:", "<|separator|>")
ANSWER_LINE = "Work it out step by step, and end with a line of the form '#### number'."
_THINKING_TOKENS, _CHAT_TOKENS = 16384, 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class Protocol:
    """One way to ask. `name` stands in every summary: scores under different names do not compare.

    `shots_from`: the split of the worked examples; those of `test` are left out of the questions. `draw`: questions are
    a seeded draw, else the first rows. `extra`: further fields of every request.
    """

    name: str
    endpoint: Endpoint
    shots: int
    shots_from: Literal["train", "test"] = "train"
    examples: Examples = "fixed"
    draw: bool = True
    stop: tuple[str, ...] = ()
    max_tokens: int
    scorer: str = "flexible"
    seed: int = 42
    instruction: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def prompts(self, questions: Sequence[Question], shots: Sequence[Question]) -> Iterator["Prompt"]:
        """The prompt of each question. `shots`: the pool of worked examples; all of train for `lm-eval`."""
        choose = _choosers[self.examples](self, shots)
        for question in questions:
            chosen = choose(question)
            if self.endpoint == "chat" and self.instruction:
                yield _turns(chosen, question, self.instruction)
            else:
                yield Prompt(text=_few_shot(chosen, question))

    def body(self, prompt: "Prompt", model: str, rid: str, *, stream: bool) -> dict[str, Any]:
        """The request's JSON."""
        if self.endpoint == "generate":
            sampling = {"temperature": 0, "top_p": 1, "max_new_tokens": self.max_tokens, "stop": list(self.stop)}
            return {"text": prompt.text, "sampling_params": sampling, "rid": rid, "stream": stream}
        asked = {"prompt": prompt.text} if self.endpoint == "completions" else {"messages": prompt.messages()}
        body = {
            "model": model,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "top_p": 1,
            "seed": self.seed,
            "rid": rid,
        }
        if self.stop:
            body["stop"] = list(self.stop)
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body | asked | dict(self.extra)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """The text to complete, or the turns of a chat: (question, answer) pairs before the open question."""

    text: str
    turns: tuple[tuple[str, str], ...] = ()

    def messages(self) -> list[dict[str, str]]:
        """As chat messages."""
        said = [{"role": role, "content": text} for pair in self.turns for role, text in zip(_ROLES, pair, strict=True)]
        return [*said, {"role": "user", "content": self.text}]

    @property
    def characters(self) -> int:
        """The length of all of it."""
        return len(self.text) + sum(len(text) for pair in self.turns for text in pair)


_ROLES = ("user", "assistant")


def _few_shot(shots: Sequence[Question], question: Question) -> str:
    examples = "".join(f"Question: {shot.question}\nAnswer: {shot.answer}\n\n" for shot in shots)
    return f"{examples}Question: {question.question}\nAnswer:"


def _turns(shots: Sequence[Question], question: Question, instruction: str) -> Prompt:
    pairs = tuple((f"{shot.question}\n\n{instruction}", shot.answer) for shot in shots)
    return Prompt(text=f"{question.question}\n\n{instruction}", turns=pairs)


Choose = Callable[[Question], Sequence[Question]]


def _fixed(protocol: Protocol, pool: Sequence[Question]) -> Choose:
    shots = pool[: protocol.shots]
    return lambda _question: shots


def _mixed(protocol: Protocol, pool: Sequence[Question]) -> Choose:
    """Another number of other examples in another order for each question, so that no two prefixes are alike.

    With a fixed prefix every prefill after the first is a cache hit; with this one every prompt's KV is computed, and
    moved, in its own length.
    """

    def choose(question: Question) -> Sequence[Question]:
        draw = random.Random(f"{protocol.seed}/{question.id}")
        return draw.sample(list(pool), draw.randint(1, len(pool))) if pool else ()

    return choose


def _none(_protocol: Protocol, _pool: Sequence[Question]) -> Choose:
    return lambda _question: ()


def _lm_eval(protocol: Protocol, pool: Sequence[Question]) -> Choose:
    """lm-evaluation-harness 0.4.13: one generator for the whole task (seed 1234), drawn from for each row in order."""
    draw = random.Random(1234)
    drawn: list[list[int]] = []

    def choose(question: Question) -> Sequence[Question]:
        row = int(question.id.rpartition("-")[2])
        while len(drawn) <= row:
            drawn.append(draw.sample(range(len(pool)), protocol.shots))
        return [pool[index] for index in drawn[row]]

    return choose


_choosers: dict[Examples, Callable[[Protocol, Sequence[Question]], Choose]] = {
    "fixed": _fixed,
    "mixed": _mixed,
    "none": _none,
    "lm-eval": _lm_eval,
}


def choose_protocol(
    preset: Preset,
    endpoint: Endpoint | None = None,
    *,
    shots: int | None = None,
    prefix_mode: PrefixMode = "fixed",
    max_tokens: int | None = None,
    thinking: bool | None = None,
    scorer: str | None = None,
    seed: int = 42,
) -> Protocol:
    """The protocol that these options mean. None takes the preset's own. UsageError where they contradict it."""
    if preset == "disagg":
        protocol = _own(endpoint or "completions", shots, prefix_mode, thinking=thinking, seed=seed)
    else:
        _refuse(preset, prefix_mode, thinking=thinking)
        protocol = _preset(preset, endpoint, shots)
    protocol = replace(
        protocol,
        max_tokens=protocol.max_tokens if max_tokens is None else max_tokens,
        scorer=scorer or protocol.scorer,
    )
    if protocol.shots == 0:
        protocol = replace(protocol, examples="none")
    return replace(protocol, name=f"{protocol.name}-{protocol.endpoint}-{protocol.shots}shot/1")


def _own(
    endpoint: Endpoint, shots: int | None, prefix_mode: PrefixMode, *, thinking: bool | None, seed: int
) -> Protocol:
    chat = endpoint == "chat"
    count = 0 if prefix_mode == "none" else (0 if chat else 8) if shots is None else shots
    suffix = "" if prefix_mode != "mixed" else "-mixed"
    if thinking is not None:
        suffix += "-thinking" if thinking else "-no-thinking"
        if not chat:
            raise UsageError("--thinking belongs to chat", fix="--endpoint chat")
    template = {"chat_template_kwargs": {"enable_thinking": thinking, "thinking": thinking}}
    return Protocol(
        name=f"disagg{suffix}",
        endpoint=endpoint,
        shots=count,
        examples=prefix_mode,
        stop=() if chat else STOP,
        max_tokens=_THINKING_TOKENS if thinking else _CHAT_TOKENS if chat else 512,
        seed=seed,
        instruction=ANSWER_LINE if chat else "",
        extra={} if thinking is None else template,
    )


def _refuse(preset: Preset, prefix_mode: PrefixMode, *, thinking: bool | None) -> None:
    if prefix_mode != "fixed" or thinking is not None:
        option = "--prefix-mode" if prefix_mode != "fixed" else "--thinking"
        raise UsageError(f"{option} would make the preset {preset} another protocol", fix=f"leave {option} out")


def _preset(preset: Preset, endpoint: Endpoint | None, shots: int | None) -> Protocol:
    count = 5 if shots is None else shots
    if preset == "sglang-run-eval":
        chosen = endpoint or "chat"
        return Protocol(
            name=preset,
            endpoint=chosen,
            shots=count,
            shots_from="test",
            draw=False,
            stop=() if chosen == "chat" else BARE_STOP,
            max_tokens=2048,
            scorer="sglang-run-eval",
        )
    if endpoint not in (None, "completions"):
        raise UsageError(f"the preset {preset} uses completions", fix="leave --endpoint out")
    if preset == "vllm":
        return Protocol(
            name=preset,
            endpoint="completions",
            shots=count,
            draw=False,
            stop=BARE_STOP,
            max_tokens=256,
            scorer="last-digits",
        )
    return Protocol(
        name=preset,
        endpoint="completions",
        shots=count,
        examples="lm-eval",
        draw=False,
        stop=("Question:", "</s>", "<|im_end|>"),
        max_tokens=256,
        scorer="lm-eval-flexible",
        seed=1234,
    )


def encode(body: Mapping[str, Any]) -> bytes:
    """A request's JSON as bytes."""
    return json.dumps(body).encode()
