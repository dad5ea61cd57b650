"""A model's KV layout for a person: in one line, and in full."""

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from disagg_cli.console.units import human_bytes
from disagg_cli.kv.layout import KVLayout


def layout_facts(layout: KVLayout) -> str:
    """The layout in one line."""
    return ", ".join(
        [
            layout.kind.value.upper(),
            f"{layout.num_layers} layers",
            heads_text(layout),
            layout.kv_dtype,
            f"{human_bytes(layout.bytes_per_token)} of KV per token",
            *([f"{human_bytes(layout.state_bytes)} of state per request"] if layout.state else []),
        ]
    )


def heads_text(layout: KVLayout) -> str:
    """The main pool's heads."""
    if layout.compressed:
        return "compressed latents"
    if layout.latent:
        return f"latent of {layout.head_dim}"
    size = f"{layout.head_dim}/{layout.v_head_dim}" if layout.asymmetric else str(layout.head_dim)
    return f"{layout.total_kv_heads} heads x {size}"


def models_view(layouts: Sequence[KVLayout]) -> RenderableType:
    """All packaged models, one a row."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("model", no_wrap=True)
    table.add_column("cache", no_wrap=True)
    table.add_column("per token", justify="right", no_wrap=True)
    for layout in layouts:
        cache = f"{layout.kind.value}, {heads_text(layout)}"
        table.add_row(layout.name, cache, human_bytes(layout.bytes_per_token))
    return table


def model_view(layout: KVLayout) -> RenderableType:
    """One model's layout, pool by pool."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in _lines(layout):
        grid.add_row(label, text)
    return Group(Text(layout.name, style="bold"), Text(layout_facts(layout), style="dim"), Text(), grid)


def _lines(layout: KVLayout) -> Iterator[tuple[str, str]]:
    if layout.main_layers:
        per_head = f"{human_bytes(layout.bytes_per_head)} per token" + ("" if layout.latent else " and head")
        yield "main pool", f"{layout.main_layers} of {layout.num_layers} layers, {heads_text(layout)}, {per_head}"
    for pool in layout.compressed:
        every = f"{pool.bytes_per_entry} bytes for every {pool.tokens} tokens"
        yield "compressed", f"{pool.layers} layers, {every}; the compressor's own state is not counted"
    if layout.ring:
        size = f"{layout.ring.bytes_per_entry} bytes for each of the last {layout.ring.tokens} tokens"
        yield "window ring", f"{layout.ring.layers} layers, {size}"
    if layout.window:
        size = f"{layout.window.head_dim}/{layout.window.v_head_dim}"
        text = f"{layout.window.layers} layers, {layout.window.kv_heads} KV heads x {size}, last {layout.window.tokens}"
        yield "window pool", f"{text} tokens"
    if layout.index:
        yield "index", f"{layout.index.layers} layers, {layout.index.bytes_per_key} bytes per token and layer"
    if layout.state:
        for tensor in layout.state.tensors:
            parts = " + ".join(str(part) for part in tensor.parts)
            cut = "" if tensor.declared else "; not declared to the connector, which cuts it as one"
            yield f"state {tensor.name}", f"{layout.state.layers} layers, {parts} channels{cut}"
    if layout.attention_heads:
        yield "query heads", str(layout.attention_heads)
    if layout.draft_layers:
        yield "not counted", f"the KV of {layout.draft_layers} built-in draft layer(s), where speculative decoding runs"
    yield "source", layout.source
