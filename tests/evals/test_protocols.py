"""What each protocol sends, and that the presets ask what other harnesses ask."""

import hashlib
from pathlib import Path

import pytest

from disagg_cli.errors import UsageError
from disagg_cli.evals.data import Question
from disagg_cli.evals.plan import make_plan
from disagg_cli.evals.protocols import choose_protocol
from disagg_cli.evals.settings import EvalSettings

GSM8K = Path(__file__).parents[3] / "shared" / "data" / "gsm8k"
needs_gsm8k = pytest.mark.skipif(not GSM8K.exists(), reason=f"{GSM8K} is not here")
SHOT = Question(id="train-0", question="1 + 1?", answer="1 + 1 = 2\n#### 2", gold=2)
ASKED = Question(id="test-5", question="2 + 2?", answer="#### 4", gold=4)


def body(protocol, **more):
    (prompt,) = protocol.prompts([ASKED], [SHOT])
    return protocol.body(prompt, "m", "r", stream=True, **more)


def test_completions():
    assert body(choose_protocol("disagg", shots=1)) == {
        "model": "m",
        "prompt": "Question: 1 + 1?\nAnswer: 1 + 1 = 2\n#### 2\n\nQuestion: 2 + 2?\nAnswer:",
        "max_tokens": 512,
        "temperature": 0,
        "top_p": 1,
        "seed": 42,
        "stop": ["\nQuestion:"],
        "rid": "r",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_chat_asks_for_an_answer_line():
    sent = body(choose_protocol("disagg", "chat", thinking=True))
    line = "Work it out step by step, and end with a line of the form '#### number'."
    assert sent["messages"] == [{"role": "user", "content": f"2 + 2?\n\n{line}"}]
    assert sent["chat_template_kwargs"] == {"enable_thinking": True, "thinking": True}
    assert sent["max_tokens"] == 16384


def test_shots_in_chat_are_turns():
    roles = [message["role"] for message in body(choose_protocol("disagg", "chat", shots=1))["messages"]]
    assert roles == ["user", "assistant", "user"]


def test_generate():
    sent = body(choose_protocol("disagg", "generate", prefix_mode="none"))
    assert sent["text"] == "Question: 2 + 2?\nAnswer:"
    assert (sent["sampling_params"]["max_new_tokens"], sent["rid"], sent["stream"]) == (512, "r", True)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"preset": "disagg"}, "disagg-completions-8shot/1"),
        ({"preset": "disagg", "prefix_mode": "mixed"}, "disagg-mixed-completions-8shot/1"),
        ({"preset": "disagg", "prefix_mode": "none"}, "disagg-completions-0shot/1"),
        ({"preset": "disagg", "endpoint": "chat", "thinking": False}, "disagg-no-thinking-chat-0shot/1"),
        ({"preset": "sglang-run-eval"}, "sglang-run-eval-chat-5shot/1"),
        ({"preset": "sglang-run-eval", "endpoint": "generate", "shots": 8}, "sglang-run-eval-generate-8shot/1"),
        ({"preset": "lm-eval"}, "lm-eval-completions-5shot/1"),
        ({"preset": "vllm"}, "vllm-completions-5shot/1"),
    ],
)
def test_a_name_for_all_that_moves_scores(options, name):
    assert choose_protocol(**options).name == name


@pytest.mark.parametrize(
    "wrong",
    [
        {"preset": "vllm", "endpoint": "chat"},
        {"preset": "lm-eval", "prefix_mode": "mixed"},
        {"preset": "sglang-run-eval", "thinking": True},
        {"preset": "disagg", "thinking": True},
    ],
)
def test_contradictions(wrong):
    with pytest.raises(UsageError):
        choose_protocol(**wrong)


def test_mixed_prefixes_depend_on_seed_and_question_alone():
    protocol = choose_protocol("disagg", prefix_mode="mixed")
    shots = [Question(id=f"train-{row}", question=f"q{row}", answer="#### 1", gold=1) for row in range(8)]
    once, again = (list(protocol.prompts([ASKED], shots)) for _ in range(2))
    assert once == again != list(choose_protocol("disagg", prefix_mode="mixed", seed=1).prompts([ASKED], shots))


def plan(**options):
    made = make_plan(EvalSettings(data=GSM8K, **options), "http://h", "m")
    return made, list(made.protocol.prompts(made.questions, made.shots))


@needs_gsm8k
def test_sglang_run_eval_asks_1311_questions_with_8_shots():
    """The first k rows of test are the shots, and are left out: how an 8-shot baseline over 1,311 comes about."""
    made, prompts = plan(preset="sglang-run-eval", shots=8)
    assert (len(made.questions), made.questions[0].id, made.protocol.scorer) == (1311, "test-8", "sglang-run-eval")
    assert prompts[0].text.startswith("Question: Janet")
    assert prompts[0].text.count("Question: ") == 9


@needs_gsm8k
def test_lm_eval_draws_other_shots_for_each_question():
    """The rows that lm-evaluation-harness 0.4.13 draws with its seed of 1234, by running its sampler."""
    made, prompts = plan(preset="lm-eval", questions=2)
    drawn = [[question.id for question in made.shots if question.question in prompt.text] for prompt in prompts]
    assert drawn == [sorted(rows, key=lambda name: int(name[6:])) for rows in LM_EVAL_DRAWS]


LM_EVAL_DRAWS = [
    ["train-6374", "train-3610", "train-957", "train-61", "train-742"],
    ["train-7462", "train-6610", "train-4769", "train-286", "train-5501"],
]


@needs_gsm8k
def test_vllm_takes_the_first_train_rows():
    made, prompts = plan(preset="vllm", questions=3)
    assert prompts[0].text.startswith("Question: Natalia")
    assert [question.id for question in made.questions] == ["test-0", "test-1", "test-2"]
    assert (made.protocol.stop, made.protocol.max_tokens) == (("Question", "Assistant:", "<|separator|>"), 256)


# sha256 of all prompts, joined by a zero byte, as each harness's own code makes them from the two GSM8K files:
# vllm-project/vllm 03e0960 tests/evals/gsm8k/gsm8k_eval.py; sglang 0.5.23 test/simple_eval_mixed_prefix_gsm8k.py,
# GSM8KEval; lm-eval 0.4.13 api/samplers.py with tasks/gsm8k/gsm8k.yaml (version 3) and its seed of 1234.
UPSTREAM = {
    ("vllm", 5): (1319, "c6e4db66756a172278ee06a66192d1c29de88d03ed94020a45c90c1316319b1f"),
    ("sglang-run-eval", 5): (1314, "1009de43c88c3fbaca714c6691d868424f7628f6f8c51dae7acb3c40c1556810"),
    ("sglang-run-eval", 8): (1311, "bbf607516f635e4c24b0ab4e111bc5d7d099e0b9778ceaa12b5624bceab80596"),
    ("lm-eval", 5): (1319, "84119a05b6c77e92415182c7963444e153dd2df04e05e238744f26b105c0a8b6"),
}


@needs_gsm8k
@pytest.mark.parametrize(("preset", "shots"), UPSTREAM)
def test_every_prompt_is_theirs_to_the_byte(preset, shots):
    _, prompts = plan(preset=preset, shots=shots)
    digest = hashlib.sha256("\0".join(prompt.text for prompt in prompts).encode()).hexdigest()
    assert (len(prompts), digest) == UPSTREAM[preset, shots]


def test_a_test_file_too_small_for_its_examples(tmp_path):
    few = tmp_path / "test.jsonl"
    few.write_text('{"question": "a", "answer": "#### 1"}\n' * 5)
    with pytest.raises(UsageError, match="the first 5 of 5 questions are examples"):
        make_plan(EvalSettings(data=few, preset="sglang-run-eval"), "http://h", "m")
