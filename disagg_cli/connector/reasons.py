"""Verdicts in words: what the connector does, and what the operator sees."""

from collections.abc import Sequence

from disagg_cli.connector import head_maths
from disagg_cli.connector.case import Case
from disagg_cli.kv import heads


def right() -> str:
    """KV is fine."""
    return "KV arrives, complete and from the right heads"


def unaligned(case: Case) -> str:
    """Neither size divides the other."""
    p, d, _ = case.size
    fate = (
        "some prefill ranks are never contacted" if p > d else "some decode ranks ask prefill ranks that do not exist"
    )
    return f"attention TP {p} and {d}: neither is a multiple of the other, so {fate}"


def unloadable(case: Case, tp: int) -> str:
    """Heads do not spread over the ranks."""
    return f"{case.kv_heads} KV heads do not load at attention TP {tp}"


def decode_pipeline(case: Case) -> str:
    """Decode has pipeline stages of its own."""
    return f"decode PP {case.decode_pp} is neither 1 nor the prefill's {case.pp}; SGLang asserts that it is"


def no_group(case: Case) -> str:
    """Both sides replicate heads and decode is the wider one (0.5.17 and later)."""
    p, d, t = case.size
    return (
        f"{p} prefill ranks and {d} decode ranks both replicate {t} KV head(s): the connector cuts a prefill "
        f"rank's head into 0 groups, its bootstrap thread dies, and requests wait 300 s while health stays green"
    )


def past_memory(case: Case, groups: int) -> str:
    """More groups than heads (0.5.13 to 0.5.16)."""
    held = heads.heads_per_rank(case.kv_heads, case.prefill_tp)
    return (
        f"the connector cuts a prefill rank's {held} head(s) into {groups} groups, past its registered memory: "
        f"NIXL_ERR_NOT_FOUND kills the bootstrap thread, and requests wait 300 s while health stays green"
    )


def division(case: Case) -> str:
    """More decode ranks than heads (0.5.10 and earlier)."""
    return (
        f"{case.decode_tp} decode ranks for {case.kv_heads} KV head(s): the connector counts 0 heads per decode "
        f"rank and divides by it; the prefill server dies on the first request"
    )


def state_not_sent() -> str:
    """Models with extra state before 0.5.9: `is_done` does not ask for it."""
    return "the connector does not send the model's extra state, and decode goes on without it: silent garbage"


def latent_hybrid_unknown() -> str:
    """Kimi Linear before 0.5.17."""
    return "what this release does with a latent beside linear-attention state for different TP sizes is not known"


def components_unknown() -> str:
    """DeepSeek-V4 before 0.5.17."""
    return "what this release does with several kinds of state is not known"


def early_component(case: Case) -> str:
    """Several kinds of state, told apart by nobody (through 0.5.22)."""
    return (
        f"decode is done after the first of {case.components} kinds of state that a sender announces (sglang #39846), "
        f"so it may read state that has not arrived"
    )


def cut_as_equal() -> str:
    """K and V heads of different size."""
    return (
        "K and V heads differ in size, and the connector cuts V as if it were K, past its registered memory: "
        "NIXL_ERR_NOT_FOUND"
    )


def sent_as_equal() -> str:
    """K and V heads of different size (0.5.12 and earlier)."""
    return (
        "K and V heads differ in size, and the connector takes V's items to be as long as K's: silent garbage, or "
        "NIXL_ERR_NOT_FOUND at the end of the pool"
    )


def decode_stage_past_list() -> str:
    """Decode stages (0.5.6)."""
    return (
        "this release looks up a decode stage's layers as if that stage had all of them: an IndexError ends the prefill"
    )


def stage_past_pool() -> str:
    """Hybrids with prefill stages (0.5.16 and earlier)."""
    return (
        "the connector looks for a hybrid's attention and state layers in places that a stage's pools do not have: an "
        "IndexError where the stage should send, and nothing arrives"
    )


def stages_unpaired(case: Case) -> str:
    """Several prefill stages and pools that do not name their layers (0.5.17 and later)."""
    return (
        f"{case.pp} prefill stages feed a decode of one stage, and the connector refuses to pair their layers without "
        f"layer ids, which this pool does not give: its bootstrap thread dies, and requests wait 300 s while health "
        f"stays green"
    )


def stage_past_list() -> str:
    """Hybrids with prefill stages where heads are cut (0.5.17 and 0.5.18)."""
    return "a stage's first layer is counted over all layers and looked up among the attention layers: nothing to send"


def stage_offset(case: Case) -> str:
    """Sliding-window models with prefill stages (0.5.12 and earlier)."""
    return (
        f"{case.pp} prefill stages write their layers where the connector counts them, not where the decode's pools "
        f"have them: silent garbage"
    )


def ragged(case: Case) -> str:
    """Stages of different length (0.5.8 and later)."""
    layers = " + ".join(str(layers) for layers in case.stage_layers)
    return (
        f"stages of {layers} layers: where a stage's layers do not divide the model's, the connector takes the rest "
        f"for a draft model's and writes V into the wrong layers: silent garbage"
    )


def state_refused(state: str, why: str) -> str:
    """State that this release does not cut."""
    return f"the connector refuses to cut {state} {why}; the client sees a hang"


def dense_hangs() -> str:
    """0.5.12 exactly."""
    return "this release never finishes a request of a model without extra state (sglang #25698)"


def keys_collide(case: Case, what: str, key: str, seen: int) -> str:
    """Senders that the receiver cannot tell apart."""
    return (
        f"each decode rank waits for {case.senders} senders, but {what} completions are told apart by {key} only "
        f"and {seen} can be counted: requests wait 300 s, then fail, while health stays green"
    )


def misplaced(case: Case) -> str:
    """Per-rank head maths with P > D (0.5.10 and earlier)."""
    p, d, t = case.size
    last = (p - 1) * heads.heads_per_rank(t, p)
    return (
        f"the connector places prefill rank {p - 1}'s heads at offset {last} of a block of "
        f"{heads.heads_per_rank(t, d)}: silent garbage"
    )


def wrong_head(case: Case, misled: Sequence[int]) -> str:
    """Head slices picked by modulo (0.5.11 to 0.5.12.post1)."""
    rank = misled[0]
    ranks = ", ".join(str(rank) for rank in misled[:8]) + (", ..." if len(misled) > 8 else "")
    belongs = heads.owned(case.kv_heads, case.decode_tp, rank).first
    return (
        f"the connector picks heads by modulo: wrong heads on decode rank(s) {ranks} (rank {rank} gets head "
        f"{head_maths.modulo_head(*case.size, rank)}, not {belongs}): silent garbage"
    )


def conv_state() -> str:
    """Mamba state cut in one piece (0.5.11 to 0.5.15)."""
    return "the connector cuts convolution state as one block, not Q, K and V apart: silent garbage"


def conv_state_undeclared() -> str:
    """Mamba state whose parts SGLang does not declare to the connector (all releases)."""
    return (
        "SGLang does not tell the connector that convolution state is x, B and C apart, so it is cut as one block: "
        "silent garbage"
    )


def early(case: Case) -> str:
    """No sender in the tag (0.5.6)."""
    return (
        f"each decode rank needs {case.senders} senders, but the connector is done after the first: decode may "
        f"read KV that has not arrived"
    )


def pools_share_a_cut() -> str:
    """Pools that need the same source list."""
    return "the decode pools can share one prepared list of source slices"


def pools_take_the_first_cut(decode_tps: Sequence[int]) -> str:
    """Pools that need different source lists, of equally long slices (0.5.13 to 0.5.16)."""
    sizes = " and ".join(str(tp) for tp in sorted(set(decode_tps)))
    return (
        f"each prefill rank cuts its heads once, for the first decode worker that connects; attention TP {sizes} need "
        f"different cuts into slices of one length, so the pool that connects later gets wrong heads: silent garbage"
    )


def pools_need_cuts(decode_tps: Sequence[int]) -> str:
    """Pools that need different source lists (0.5.13 and later)."""
    sizes = " and ".join(str(tp) for tp in sorted(set(decode_tps)))
    return (
        f"each prefill rank cuts its heads once, for the first decode worker that connects; attention TP {sizes} "
        f"need different cuts, so every request to the pool that connects later fails (NIXL_ERR_INVALID_PARAM)"
    )
