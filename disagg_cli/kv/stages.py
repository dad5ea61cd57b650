"""Pipeline stages: which layers each stage of a prefill worker holds, and where they go."""

from dataclasses import dataclass

from disagg_cli.kv.heads import HeadRange
from disagg_cli.kv.layout import KVLayout


@dataclass(frozen=True, slots=True)
class StageRoute:
    """The layers that one prefill stage sends to one decode stage."""

    prefill_stage: int
    decode_stage: int
    layers: HeadRange


def layers_of_stage(layers: int, stages: int, stage: int) -> HeadRange:
    """The layers of one stage: an even split whose last stages take the rest, one layer each.

    Source: `get_pp_indices` of SGLang 0.5.23 (`srt/distributed/utils.py`), where SGLANG_PP_LAYER_PARTITION overrides
    it.
    """
    each, rest = divmod(layers, stages)
    wide = max(0, stage - (stages - rest))
    first = stage * each + wide
    return HeadRange(first, first + each + (stage >= stages - rest))


def main_layers_per_stage(layout: KVLayout, stages: int) -> tuple[int, ...]:
    """Layers of the main pool in each stage; empty where the model has fewer layers than stages."""
    if layout.num_layers < stages:
        return ()
    ranges = [layers_of_stage(layout.num_layers, stages, stage) for stage in range(stages)]
    return tuple(sum(span.first <= layer < span.past_end for layer in layout.main_layer_ids) for span in ranges)


def stage_routes(layers: int, prefill_stages: int, decode_stages: int) -> tuple[StageRoute, ...]:
    """Pair the stages: each with its own where both sides have as many, else all with the one decode stage."""
    return tuple(
        StageRoute(stage, stage if decode_stages > 1 else 0, layers_of_stage(layers, prefill_stages, stage))
        for stage in range(prefill_stages)
    )
