"""Sizes that load and fit, for property tests."""

from hypothesis import strategies as st

from disagg_cli.kv.heads import aligned, loadable


@st.composite
def sizes(draw, most_ranks=64, most_heads=128):
    """(P, D, T): both sides load the model, and one size is a multiple of the other."""
    total = draw(st.integers(1, most_heads))
    fitting = [tp for tp in range(1, most_ranks + 1) if loadable(total, tp)]
    prefill = draw(st.sampled_from(fitting))
    decode = draw(st.sampled_from([tp for tp in fitting if aligned(prefill, tp)]))
    return prefill, decode, total
