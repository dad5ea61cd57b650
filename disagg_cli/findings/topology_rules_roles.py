"""Rules about what prefill and decode have to agree on: pages, KV dtype, backend, speculation, lengths, model."""

from collections.abc import Iterator

from disagg_cli.findings.finding import Finding, finding
from disagg_cli.findings.topology_case import (
    Case,
    arg,
    attention_tp,
    context_parallel,
    doubtful,
    noted,
    number,
)
from disagg_cli.findings.topology_effective import kv_dtype, page_size, quantized, raw_kv_dtype
from disagg_cli.topology.deployment import Pool

SPECULATION = (
    "speculative-algorithm",
    "speculative-num-steps",
    "speculative-eagle-topk",
    "speculative-num-draft-tokens",
    "speculative-draft-model-path",
)
MODEL_FLAGS = (
    *("revision", "json-model-override-args", "dtype", "mamba-ssm-dtype", "rope-scaling", "quantization"),
    *("tokenizer-path", "chat-template", "lora-paths"),
)
"""What makes other KV of the same prompt: other weights, other arithmetic, or other tokens."""
MOVES_DRAFTS = ("EAGLE", "EAGLE3", "NEXTN", "DSPARK", "MTP")


def attention_tp_differs(case: Case) -> Iterator[Finding]:
    """DSG501: the two sides divide the KV heads differently. A warning where the model's heads are not known."""
    for prefill, decode in case.pairs:
        p, d = attention_tp(prefill.worker), attention_tp(decode.worker)
        if p == d:
            continue
        message = f"attention TP {p} on {prefill.where} and {d} on {decode.where} ({_tp(prefill)}, {_tp(decode)})"
        found = finding("DSG501", message, where=f"{decode.where}.tp")
        yield found if case.layout is None else noted(found)


def _tp(pool: Pool) -> str:
    worker = pool.worker
    return f"tp {worker.tp}" + (f" / dp {worker.dp}" if worker.dp_attention else "")


def page_sizes_differ(case: Case) -> Iterator[Finding]:
    """DSG502: pages of different size. Certain where both sizes are known."""
    for prefill, decode in case.pairs:
        ours, theirs = page_size(case, prefill), page_size(case, decode)
        if ours.value == theirs.value:
            continue
        message = f"page size {ours.said} on {prefill.where} and {theirs.said} on {decode.where}"
        where = _written(decode, theirs.flag) or _written(prefill, ours.flag) or decode.where
        found = finding("DSG502", message, where=where)
        yield found if ours.value and theirs.value else doubtful(found)


def kv_dtypes_differ(case: Case) -> Iterator[Finding]:
    """DSG503: KV in different dtypes. 0.5.10 to 0.5.16 compare the flags as written, later ones what they come to."""
    compares_flags = not case.before("0.5.10") and case.before("0.5.17")
    for prefill, decode in case.pairs:
        ours, theirs = kv_dtype(case, prefill), kv_dtype(case, decode)
        flags_differ = raw_kv_dtype(prefill) != raw_kv_dtype(decode)
        if not flags_differ and (ours.value == theirs.value or None in (ours.value, theirs.value)):
            continue
        if ours.value == theirs.value and ours.value and not compares_flags:
            continue
        message = f"KV dtype {ours.said} on {prefill.where} and {theirs.said} on {decode.where}; {_compares(case)}"
        where = _written(decode, "kv-cache-dtype") or _written(prefill, "kv-cache-dtype") or decode.where
        found = finding("DSG503", message, where=where)
        certain = (compares_flags and flags_differ) or (ours.value and theirs.value)
        yield found if certain else doubtful(found)


def _compares(case: Case) -> str:
    name = f"SGLang {case.choice.sglang}"
    if case.before("0.5.10"):
        return f"{name} does not compare them: answers would be garbage"
    return f"{name} compares {'the flags as written' if case.before('0.5.17') else 'what they resolve to'}"


def backends_differ(case: Case) -> Iterator[Finding]:
    """DSG504: the two sides move KV by different backends."""
    for prefill, decode in case.pairs:
        ours, theirs = case.backend(prefill), case.backend(decode)
        if ours != theirs:
            message = f"{prefill.where} sends by {ours} and {decode.where} receives by {theirs}"
            where = _written(decode, "disaggregation-transfer-backend") or prefill.where
            yield finding("DSG504", message, where=where)


def backend_not_judged(case: Case) -> Iterator[Finding]:
    """DSG505: KV moves by something that disagg neither judges nor proves."""
    others = [pool for pool in case.deployment.pools if case.backend(pool) != "nixl"]
    if others:
        message = f"KV moves by {case.backend(others[0])} ({others[0].where}); the verdict is about NIXL"
        yield finding(
            "DSG505", message, where=_written(others[0], "disaggregation-transfer-backend") or "connector.backend"
        )


def nixl_backends_differ(case: Case) -> Iterator[Finding]:
    """DSG506: NIXL uses different backends (UCX, LIBFABRIC) on the two sides."""
    name = "SGLANG_DISAGGREGATION_NIXL_BACKEND"
    for prefill, decode in case.pairs:
        ours, theirs = (pool.worker.env.get(name, "UCX").upper() for pool in (prefill, decode))
        if ours != theirs:
            message = f"NIXL uses {ours} on {prefill.where} and {theirs} on {decode.where}"
            yield finding("DSG506", message, where=case.at(decode, "env", name))


def speculation_differs(case: Case) -> Iterator[Finding]:
    """DSG511: the two sides speculate differently. Before 0.5.8 decode then reads V from the wrong place."""
    for prefill, decode in case.pairs:
        ours, theirs = _speculation(prefill), _speculation(decode)
        if ours == theirs:
            continue
        names = [name for name in SPECULATION if ours.get(name) != theirs.get(name)]
        said = ", ".join(f"{name} {ours.get(name, 'off')} / {theirs.get(name, 'off')}" for name in names)
        message = f"{prefill.where} / {decode.where} differ: {said} (SGLang {case.choice.sglang})"
        found = finding("DSG511", message, where=_written(decode, names[0]) or prefill.where)
        decode_only = not ours
        yield found if case.before("0.5.8") else noted(found) if decode_only else doubtful(found)


def _speculation(pool: Pool) -> dict[str, str]:
    given = {name: str(pool.worker.args[name]) for name in SPECULATION if name in pool.worker.args}
    if algorithm := arg(pool, "speculative-algorithm", "speculative-algo"):
        given["speculative-algorithm"] = str(algorithm).upper()
    return given


def drafts_not_moved(case: Case) -> Iterator[Finding]:
    """DSG512: a way to speculate whose draft KV the connector does not move."""
    for pool in case.role("decode"):
        algorithm = _speculation(pool).get("speculative-algorithm")
        if algorithm and algorithm not in MOVES_DRAFTS:
            message = f"{algorithm} on {pool.where}; known to work disaggregated: {', '.join(MOVES_DRAFTS)}"
            yield finding("DSG512", message, where=case.at(pool, "args", "speculative-algorithm"))


def speculation_in_stages(case: Case) -> Iterator[Finding]:
    """DSG513: speculation on workers with several pipeline stages."""
    for pool in case.deployment.pools:
        if pool.worker.pp > 1 and _speculation(pool):
            yield finding("DSG513", f"speculation on {pool.where} with pp {pool.worker.pp}", where=f"{pool.where}.pp")


def speculation_with_compressed(case: Case) -> Iterator[Finding]:
    """DSG514: EAGLE on a model with a compressed cache (DeepSeek-V4)."""
    for pool in case.role("decode") if case.layout is not None and case.layout.compressed else ():
        algorithm = _speculation(pool).get("speculative-algorithm", "")
        if algorithm.startswith(("EAGLE", "NEXTN")):
            assert case.layout is not None
            message = f"{algorithm} on {pool.where} with {case.layout.name}"
            yield finding("DSG514", message, where=case.at(pool, "args", "speculative-algorithm"))


def context_lengths_differ(case: Case) -> Iterator[Finding]:
    """DSG521: a length that one side takes and the other refuses."""
    for prefill, decode in case.pairs:
        ours, theirs = number(prefill, "context-length"), number(decode, "context-length")
        if ours != theirs:
            said = [
                f"{length or 'not said'} on {where}"
                for length, where in ((ours, prefill.where), (theirs, decode.where))
            ]
            message = f"context length {' and '.join(said)}"
            where = _written(decode, "context-length") or _written(prefill, "context-length")
            yield finding("DSG521", message, where=where or decode.where)


def models_differ(case: Case) -> Iterator[Finding]:
    """DSG522: flags that make another model of the same name: revision, overrides, dtype."""
    for prefill, decode in case.pairs:
        for name in MODEL_FLAGS:
            ours, theirs = arg(prefill, name), arg(decode, name)
            stored = name == "quantization" and None in (ours, theirs) and quantized(case)
            if ours != theirs and not stored:
                message = f"--{name} {ours or 'absent'} on {prefill.where} and {theirs or 'absent'} on {decode.where}"
                where = _written(decode, name) or _written(prefill, name) or decode.where
                yield finding("DSG522", message, where=where)


def latent_bytes_differ(case: Case) -> Iterator[Finding]:
    """DSG523: FP8 latents of different size: FlashMLA keeps scales beside each, TensorRT-LLM does not."""
    for prefill, decode in case.pairs:
        kinds = [str(arg(pool, f"{pool.role}-attention-backend", "attention-backend")) for pool in (prefill, decode)]
        fp8 = all(raw_kv_dtype(pool).startswith("fp8") for pool in (prefill, decode))
        scaled = ["flashmla" in kind for kind in kinds]
        if fp8 and scaled[0] != scaled[1] and "None" not in kinds:
            message = f"FP8 latents of {kinds[0]} on {prefill.where} and of {kinds[1]} on {decode.where} differ in size"
            yield finding("DSG523", message, where=case.at(decode, "args", "attention-backend"))


def context_parallel_decode(case: Case) -> Iterator[Finding]:
    """DSG524: decode with context parallelism, which the connector asserts against."""
    for pool in case.role("decode"):
        if (ranks := context_parallel(pool)) > 1:
            where = case.at(pool, "args", "attn-cp-size")
            yield finding("DSG524", f"attn-cp-size {ranks} on {pool.where}", where=where)


def context_parallel_prefill(case: Case) -> Iterator[Finding]:
    """DSG525: prefill with context parallelism, which divides attention TP once more."""
    for pool in case.role("prefill"):
        if (ranks := context_parallel(pool)) > 1:
            tp = attention_tp(pool.worker)
            message = f"attn-cp-size {ranks} on {pool.where}: attention TP is {tp // ranks}, and is judged as {tp}"
            yield finding("DSG525", message, where=case.at(pool, "args", "attn-cp-size"))


def colon_in_name(case: Case) -> Iterator[Finding]:
    """DSG526: a served name with a colon, which SGLang keeps for adapters."""
    name = case.deployment.model.served_name
    if ":" in name:
        yield finding("DSG526", f"the model is served as {name!r}", where="model.served_name")


def _written(pool: Pool, flag: str) -> str | None:
    """Where a flag stands, if the pool or the engine has it."""
    return f"{pool.where}.args.{flag}" if flag in pool.worker.args else None


RULES = (
    attention_tp_differs,
    page_sizes_differ,
    kv_dtypes_differ,
    backends_differ,
    backend_not_judged,
    nixl_backends_differ,
    speculation_differs,
    drafts_not_moved,
    context_lengths_differ,
    models_differ,
    latent_bytes_differ,
    context_parallel_decode,
    context_parallel_prefill,
    colon_in_name,
    speculation_in_stages,
    speculation_with_compressed,
)
