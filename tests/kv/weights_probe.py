"""Runs SGLang's own QKV weight loader on every rank and prints which KV heads each rank holds. Started by the test."""

import json
import sys
from types import SimpleNamespace

from disagg_cli.connector.conformance.installed import import_connector

import_connector()
import torch  # noqa: E402
from sglang.srt.layers import linear  # noqa: E402


def loaded_heads(total, tp, rank):
    """Load a K weight whose rows say their head, and read the heads back."""
    group = SimpleNamespace(rank_in_group=rank, world_size=tp)
    linear.get_group_rank_size = lambda _group: (rank, tp)
    linear._resolve_linear_group = lambda _group: group
    queries = max(total, tp) * 2
    layer = linear.QKVParallelLinear(4, 2, queries, total, bias=False, params_dtype=torch.float32)
    weight = torch.arange(total).repeat_interleave(2)[:, None].repeat(1, 4).float()
    layer.weight.weight_loader(layer.weight, weight, "k")
    held = layer.weight.data[layer.num_heads * 2 :][: layer.num_kv_heads * 2, 0]
    return held[::2].int().tolist()


sizes = json.loads(sys.argv[1])
print(json.dumps([[loaded_heads(total, tp, rank) for rank in range(tp)] for total, tp in sizes]))
