"""Rules about features that do not go together: radix cache, staging, hybrids, data parallelism."""

from collections.abc import Iterator

from disagg_cli.findings.finding import Finding, finding
from disagg_cli.findings.topology_case import Case, arg, attention_tp, fraction, number
from disagg_cli.topology.deployment import Pool

STAGING = "SGLANG_DISAGG_STAGING_BUFFER"
STAGING_MB = "SGLANG_DISAGG_STAGING_POOL_SIZE_MB"
USUAL_PROMPT = 8192
MANY = 1_000_000
"""Descriptors of one request that are worth a word. About 30,000 showed in the first token (sglang #22536)."""

RADIX = "disaggregation-decode-enable-radix-cache"


def radix_with_speculation(case: Case) -> Iterator[Finding]:
    """DSG531: decode's radix cache together with speculation (through 0.5.22) or HiSparse: refused at launch."""
    for pool in case.role("decode"):
        if not arg(pool, RADIX):
            continue
        with_ = "--enable-hisparse" if arg(pool, "enable-hisparse") else None
        if case.before("0.5.23") and arg(pool, "speculative-algorithm", "speculative-algo"):
            with_ = "--speculative-algorithm"
        if with_:
            message = f"--{RADIX} with {with_} on {pool.where} (SGLang {case.choice.sglang})"
            yield finding("DSG531", message, where=case.at(pool, "args", RADIX))


def radix_with_state(case: Case) -> Iterator[Finding]:
    """DSG532: decode's radix cache on a model with linear-attention state."""
    for pool in case.role("decode"):
        if arg(pool, RADIX) and case.layout is not None and case.layout.state and case.nixl:
            layers = case.layout.state.layers
            message = f"--{RADIX} on {pool.where} with the {layers} state layers of {case.layout.name}"
            yield finding("DSG532", message, where=case.at(pool, "args", RADIX))


def _staging(pool: Pool) -> bool:
    return pool.worker.env.get(STAGING, "").lower() in ("1", "true", "yes", "on", "y", "t")


def staging_backend(case: Case) -> Iterator[Finding]:
    """DSG533: the staging buffer with a backend that has none: refused at launch."""
    for pool in case.deployment.pools:
        if _staging(pool) and case.backend(pool) not in ("nixl", "mooncake"):
            message = f"{STAGING} with {case.backend(pool)} on {pool.where}"
            yield finding("DSG533", message, where=case.at(pool, "env", STAGING))


def staging_without_use(case: Case) -> Iterator[Finding]:
    """DSG534: the staging buffer where nothing is cut."""
    for prefill, decode in case.pairs:
        equal = attention_tp(prefill.worker) == attention_tp(decode.worker)
        if _staging(decode) and (equal or (case.layout is not None and case.layout.latent)):
            why = "attention TP is equal" if equal else "a latent is not cut"
            yield finding("DSG534", f"{STAGING} has no use here: {why}", where=case.at(decode, "env", STAGING))


def staging_on_one_side(case: Case) -> Iterator[Finding]:
    """DSG535: the staging buffer on one side."""
    for prefill, decode in case.pairs:
        if _staging(prefill) != _staging(decode):
            on = prefill if _staging(prefill) else decode
            yield finding("DSG535", f"{STAGING} is on for {on.where} only", where=case.at(on, "env", STAGING))


def staging_in_chunks(case: Case) -> Iterator[Finding]:
    """DSG536: staging with prompts that prefill cuts into chunks."""
    for pool in case.role("prefill"):
        chunk, longest = number(pool, "chunked-prefill-size"), number(pool, "context-length")
        if _staging(pool) and case.nixl and chunk and longest and 0 < chunk < longest:
            message = f"prompts of up to {longest} tokens come in chunks of {chunk} through the staging buffer"
            yield finding("DSG536", message, where=case.at(pool, "args", "chunked-prefill-size"))


def staging_too_small(case: Case) -> Iterator[Finding]:
    """DSG537: the longest request does not fit into a rank's staging ring."""
    for pool in case.role("decode"):
        longest = number(pool, "context-length")
        if not (_staging(pool) and longest and case.layout):
            continue
        ring = fraction(pool.worker.env.get(STAGING_MB)) or 4096
        share = max(1, min(attention_tp(pool.worker), case.layout.total_kv_heads))
        need = longest * case.layout.bytes_per_token / share / (1 << 20)
        if need > ring:
            message = f"a request of {longest} tokens needs {need:,.0f} MiB of a rank's {ring:,.0f} MiB staging ring"
            yield finding("DSG537", message, where=case.at(pool, "env", STAGING_MB))


def states_counted_as_one(case: Case) -> Iterator[Finding]:
    """DSG541: a model with several kinds of extra state on releases whose receiver takes the first for all."""
    layout = case.layout
    if layout is None or case.before("0.5.12") or not case.before("0.5.23") or not case.nixl:
        return
    states = {"state": layout.state, "index": layout.index, "window": layout.window}
    kinds = [name for name, there in states.items() if there]
    if len(kinds) > 1:
        message = f"{layout.name} has {' and '.join(kinds)}, and SGLang {case.choice.sglang} counts them as one"
        yield finding("DSG541", message, where="model")


def state_slots(case: Case) -> Iterator[Finding]:
    """DSG542: fewer state slots than running requests need."""
    for pool in case.role("decode"):
        slots, running = number(pool, "max-mamba-cache-size"), number(pool, "max-running-requests")
        buffered = _state_buffer(pool) == "extra_buffer"
        need = (running or 0) * (3 if buffered else 1)
        if slots and running and need > slots:
            message = f"{running} running requests need {need} state slots on {pool.where}, and there are {slots}"
            yield finding("DSG542", message, where=case.at(pool, "args", "max-mamba-cache-size"))


def _state_buffer(pool: Pool) -> str:
    """How state is buffered; the flag got another name in 0.5.20."""
    return str(arg(pool, "mamba-radix-cache-strategy", "mamba-scheduler-strategy") or "auto")


def lazy_state_buffer(case: Case) -> Iterator[Finding]:
    """DSG545: a way to buffer state that SGLang refuses under disaggregation."""
    for pool in case.deployment.pools:
        if _state_buffer(pool) == "extra_buffer_lazy":
            where = case.at(pool, "args", "mamba-radix-cache-strategy")
            yield finding("DSG545", f"state is buffered by extra_buffer_lazy on {pool.where}", where=where)


def staging_recommended(case: Case) -> Iterator[Finding]:
    """DSG538: so many descriptors for a request that staging is worth its memory."""
    layout = case.layout
    if layout is None or layout.latent or not case.nixl or not case.before("0.5.22"):
        return
    for prefill, decode in case.pairs:
        p, d = attention_tp(prefill.worker), attention_tp(decode.worker)
        tokens = number(decode, "context-length") or USUAL_PROMPT
        descriptors = 2 * layout.main_layers * tokens * max(1, p // d)
        if p != d and descriptors > MANY and not _staging(decode):
            message = f"a request of {tokens} tokens from TP {p} to TP {d} takes {descriptors:,} descriptors a rank"
            yield finding("DSG538", message, where=f"{decode.where}.env")


def state_with_speculation(case: Case) -> Iterator[Finding]:
    """DSG546: speculation on a decode with state, which before 0.5.11 wants its own buffer or no radix cache."""
    if case.layout is None or not case.layout.state or not case.before("0.5.11"):
        return
    for pool in case.role("decode"):
        spared = _state_buffer(pool) == "extra_buffer" or arg(pool, "disable-radix-cache")
        if arg(pool, "speculative-algorithm", "speculative-algo") and not spared:
            message = f"speculation on {pool.where} with the state of {case.layout.name} (SGLang {case.choice.sglang})"
            yield finding("DSG546", message, where=case.at(pool, "args", "speculative-algorithm"))


def prefix_with_shared_context(case: Case) -> Iterator[Finding]:
    """DSG547: a prefill that keeps prefixes, with decode context parallelism."""
    sizes = ("dcp-size", "decode-context-parallel-size")
    wide = next((pool for pool in case.deployment.pools if (number(pool, *sizes) or 1) > 1), None)
    keeps = [pool for pool in case.role("prefill") if not arg(pool, "disable-radix-cache")]
    if wide and keeps:
        message = f"dcp-size {number(wide, *sizes)} on {wide.where}, and {keeps[0].where} keeps prefixes"
        yield finding("DSG547", message, where=case.at(wide, "args", "dcp-size"))


def balancing_by_load(case: Case) -> Iterator[Finding]:
    """DSG543: prefill balances its DP ranks by load on a release where decode cannot follow."""
    for pool in case.role("prefill"):
        method = str(arg(pool, "load-balance-method") or "auto")
        followed = ("auto", "follow_bootstrap_room", "round_robin")
        if pool.worker.dp > 1 and case.before("0.5.10") and method not in followed:
            message = f"{pool.where} balances {pool.worker.dp} DP ranks by {method} on SGLang {case.choice.sglang}"
            yield finding("DSG543", message, where=case.at(pool, "args", "load-balance-method"))


def no_gpu(case: Case) -> Iterator[Finding]:
    """DSG544: a device other than CUDA on a release whose connector computes signed addresses."""
    platform = case.deployment.platform
    if platform.device != "cuda" and case.before("0.5.12") and case.nixl:
        message = f"{platform.name} ({platform.device}) on SGLang {case.choice.sglang}, before 0.5.12"
        yield finding("DSG544", message, where="platform")


RULES = (
    radix_with_speculation,
    radix_with_state,
    staging_backend,
    staging_without_use,
    staging_on_one_side,
    staging_in_chunks,
    staging_too_small,
    states_counted_as_one,
    state_slots,
    state_with_speculation,
    prefix_with_shared_context,
    balancing_by_load,
    no_gpu,
    lazy_state_buffer,
    staging_recommended,
)
