"""From a model to a small one that CPUs can run: the same heads and kind of cache, little else. Pure."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from disagg_cli.errors import PlanRefused
from disagg_cli.kv.layout import KVLayout
from disagg_cli.rehearsal.notes import Note
from disagg_cli.topology.synthetic import Family, SyntheticModel

HIDDEN = 128
HEAD_DIM = 16
LAYERS = 2
WINDOW = 128
"""Tokens of a sliding window, at most: the proof's prompts then reach beyond it."""

FAMILIES: dict[str, Family] = {"Qwen3ForCausalLM": "qwen3", "LlamaForCausalLM": "llama"}
"""Architectures that are rehearsed as themselves. Of the others it is the attention that counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shrunk:
    """A small model, and what it has of the large one."""

    model: SyntheticModel
    notes: tuple[Note, ...]


def shrink(
    layout: KVLayout, architecture: str | None, *, tps: Iterable[int] = (1,), pps: Collection[int] = (1,)
) -> Shrunk:
    """Return the small model for workers of these TP and PP sizes.

    PlanRefused where SGLang's CPU engine has no kernel for the cache, and nothing else has its slices.
    """
    _refuse(layout)
    family: Family = _family(layout, architecture)
    heads = layout.attention_heads or layout.total_kv_heads
    divisor = math.lcm(*tps)
    model = SyntheticModel(
        family=family,
        attention_heads=heads,
        kv_heads=layout.total_kv_heads if family != "deepseek" else 1,
        layers=_layers(layout.num_layers, pps),
        head_dim=HEAD_DIM,
        hidden=-(-HIDDEN // divisor) * divisor,
        window=min(layout.window.tokens, WINDOW) if layout.window else WINDOW,
    )
    return Shrunk(
        model=model, notes=(*_kept(layout, heads), *_reduced(layout, model), *_replaced(layout, architecture))
    )


def _layers(layers: int, pps: Collection[int]) -> int:
    """The fewest layers that divide into pipeline stages as evenly, or unevenly, as those of the large model."""
    least, period = max(LAYERS, *pps), math.lcm(*pps)
    return least + (layers - least) % period


def _refuse(layout: KVLayout) -> None:
    """Say why a cache cannot be rehearsed."""
    if layout.state:
        what, why = "linear-attention or Mamba state", "its CPU kernels are not in the packaged sgl-kernel"
    elif layout.compressed:
        what, why = "compressed latents", "its attention kernels are for GPUs only"
    else:
        return
    raise PlanRefused(
        f"{layout.name} cannot be rehearsed: SGLang's CPU engine cannot run {what} ({why})",
        fix="check it with `disagg check`; --set model=Qwen/Qwen3-32B rehearses the rest of the topology",
    )


def _family(layout: KVLayout, architecture: str | None) -> Family:
    if layout.latent:
        return "deepseek"
    return "mellum" if layout.window else FAMILIES.get(architecture or "", "qwen3")


def _kept(layout: KVLayout, heads: int) -> list[Note]:
    if layout.latent:
        return [Note(kind="as written", what=f"MLA: one latent for {heads} query heads, whole on every rank")]
    return [Note(kind="as written", what=f"attention: {heads} query heads, {layout.total_kv_heads} KV heads")]


def _reduced(layout: KVLayout, model: SyntheticModel) -> list[Note]:
    sizes = {
        "layers": (layout.num_layers, model.layers),
        "head size": (layout.head_dim, model.rank + model.rope_dim if layout.latent else model.head_dim),
    }
    if layout.window:
        sizes["window"] = (layout.window.tokens, model.window)
    told = [f"{name} {was} -> {now}" for name, (was, now) in sizes.items() if was != now]
    return [Note(kind="reduced", what=what, why="the model is small, its weights random") for what in told]


def _replaced(layout: KVLayout, architecture: str | None) -> list[Note]:
    """What else the model has that the small one has not."""
    notes: list[tuple[str, str]] = [("the dtype by float32", "answers are then the same at any TP")]
    if layout.index:
        notes.append(("sparse attention by plain MLA", "its indexer has no CPU kernel, so its keys are not moved"))
    window = layout.window
    if window and window.kv_heads != layout.total_kv_heads:
        notes.append(
            (f"{window.kv_heads} KV heads of the windows by {layout.total_kv_heads}", "one number serves both")
        )
    if layout.asymmetric:
        notes.append(("V heads of their own size by K's", "the small model has one size"))
    like = {"deepseek": "DeepseekV3ForCausalLM", "mellum": "MellumForCausalLM"}
    family = _family(layout, architecture)
    stand_in = like.get(family) or next(name for name, known in FAMILIES.items() if known == family)
    if architecture and architecture != stand_in:
        notes.append((f"{architecture} by {stand_in} with dense layers", "it has the same kind of cache"))
    elif layout.latent:
        notes.append(("experts by dense layers", "they hold no KV"))
    return [Note(kind="replaced", what=what, why=why) for what, why in notes]
