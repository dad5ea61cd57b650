"""What of a completion counts."""

import pytest

from disagg_cli.evals.visible import visible


@pytest.mark.parametrize(
    ("completion", "shown"),
    [
        (None, ""),
        ("#### 18", "#### 18"),
        ("<think>6 or 5</think>#### 18", "#### 18"),
        ("the tag was in the template: 5</think>#### 18", "#### 18"),
        ("<thought>5</thought> then <reasoning>6</reasoning> 18", " 18"),
        ("<|channel|>analysis<|message|>9*2<|end|><|start|>assistant<|channel|>final<|message|>18", "18"),
        ("#### 9\n\nQuestion: How many?\nAnswer: 120", "#### 9\n\n"),
        ("9 it is\n**Q: next?", "9 it is\n"),
        ("14 eggs.</s>Assistant: 77", "14 eggs."),
        ("14 eggs<|im_end|>77", "14 eggs"),
        ("Q: 2+2?\nA: 4", "Q: 2+2?\nA: 4"),
        ("Any Questions: 5? Q: is 6", "Any Questions: 5? Q: is 6"),
    ],
)
def test_visible_text(completion, shown):
    assert visible(completion).text == shown
    assert not visible(completion).unfinished


@pytest.mark.parametrize("completion", ["<think>9*2=18", "draft <thinking>18", "<|channel|>analysis<|message|>18"])
def test_reasoning_without_end_is_no_answer(completion):
    assert visible(completion).unfinished
    assert "18" not in visible(completion).text
