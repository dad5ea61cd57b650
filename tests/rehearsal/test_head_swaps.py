"""Weights in which every KV head matters: a decode whose cache has two heads swapped fails the parity probe.

The probe compares decode's log-probabilities of its own tokens with prefill's; here transformers is both of them.
"""

import itertools

import pytest

from disagg_cli.probe.parity import LEAST_TOLERANCE
from disagg_cli.rehearsal.synthetic import materialize
from disagg_cli.topology.synthetic import SyntheticModel

MARGIN = 20 * LEAST_TOLERANCE["float32"]
PROMPT = list(range(100, 140))
TOKENS = 6
DEMO = SyntheticModel()
QWEN3_32B = SyntheticModel(attention_heads=64, kv_heads=8, hidden=128)
EACH_ITS_OWN = SyntheticModel(attention_heads=16, kv_heads=16, hidden=128)
LLAMA = SyntheticModel(family="llama", attention_heads=8, kv_heads=4, hidden=128)


@pytest.mark.parametrize("model", [DEMO, QWEN3_32B, EACH_ITS_OWN, LLAMA], ids=["demo", "32b", "own", "llama"])
def test_any_two_swapped_heads_are_seen(tmp_path, model):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(materialize(model, tmp_path), dtype=torch.float32)
    pairs = list(itertools.combinations(range(model.kv_heads), 2))
    with torch.no_grad():
        made = loaded(torch.tensor([PROMPT]), use_cache=True)
        cache = transformers.DynamicCache()
        for number, layer in enumerate(made.past_key_values.layers):
            cache.update(*(_swapped(torch, part, [(0, 0), *pairs]) for part in (layer.keys, layer.values)), number)
        healthy, *swapped = _differences(torch, loaded, cache, made.logits[0, -1].argmax(), 1 + len(pairs))
    assert healthy < LEAST_TOLERANCE["float32"] / 10
    assert min(swapped) > MARGIN, f"heads {pairs[swapped.index(min(swapped))]} move nothing by more than {min(swapped)}"


def _swapped(torch, part, pairs):
    """One row for each pair: the cache with these two heads swapped."""
    rows = []
    for one, other in pairs:
        heads = list(range(part.shape[1]))
        heads[one], heads[other] = other, one
        rows.append(part[0][heads])
    return torch.stack(rows)


def _differences(torch, model, cache, first, rows):
    """The largest difference of each row, in nats: what it says from its cache, and what comes of it from scratch."""
    tokens, said = [first.repeat(rows, 1)], []
    for _ in range(TOKENS):
        logits = model(tokens[-1], past_key_values=cache, use_cache=True).logits[:, -1]
        tokens.append(logits.argmax(dim=-1, keepdim=True))
        said.append(torch.log_softmax(logits, dim=-1).gather(1, tokens[-1]))
    whole = torch.cat([torch.tensor([PROMPT]).repeat(rows, 1), *tokens], dim=1)
    again = torch.log_softmax(model(whole[:, :-1]).logits[:, len(PROMPT) :], dim=-1)
    ours = again.gather(2, whole[:, len(PROMPT) + 1 :, None]).squeeze(2)
    return (torch.cat(said, dim=1) - ours).abs().max(dim=1).values.tolist()
