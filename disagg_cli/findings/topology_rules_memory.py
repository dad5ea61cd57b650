"""Rules about what has to fit: weights and KV per GPU, requests, CUDA graphs."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from disagg_cli.facts import read_facts
from disagg_cli.findings.finding import Finding, finding
from disagg_cli.findings.topology_case import Case, arg, attention_tp, fraction, number
from disagg_cli.kv.layout import KVLayout
from disagg_cli.topology.deployment import Pool

LEAST_BYTES = 0.25
"""Of a parameter, where a quantization is not one of those below."""

OTHER_WEIGHTS = ("cpu-offload-gb", "offload-group-size", "json-model-override-args", "torchao-config")
"""Flags after which a GPU may hold less than its share of the checkpoint."""

SIZES = ("page-size", "context-length", "max-total-tokens", "max-running-requests")
PART = "mem-fraction-static"
MANY_RESERVED = 1024
"""What halved throughput in sglang #6860."""

QUANTIZED_BYTES = {"w4": 0.5, "fp4": 0.5, "int4": 0.5, "awq": 0.5, "gptq": 0.5, "fp8": 1.0, "w8a8": 1.0, "int8": 1.0}


@cache
def weights() -> Mapping[str, Mapping[str, Any]]:
    """Parameters of known models."""
    facts: Mapping[str, Mapping[str, Any]] = read_facts(Path(__file__).parents[1] / "topology" / "weights.yaml")
    return facts


def weights_per_gpu(case: Case, pool: Pool) -> float | None:
    """The least bytes of weights on each GPU, None where the model is not known."""
    fact = weights().get(case.deployment.model.path or "")
    if fact is None or any(arg(pool, flag) for flag in OTHER_WEIGHTS):
        return None
    quantization = str(arg(pool, "quantization") or "").lower()
    least = LEAST_BYTES if quantization else fact["bytes"]
    size = next((size for word, size in QUANTIZED_BYTES.items() if word in quantization), least)
    return float(fact["parameters_b"] * 1e9 * min(size, fact["bytes"]) / (pool.worker.tp * pool.worker.pp))


def token_bytes_per_gpu(layout: KVLayout, pool: Pool) -> float:
    """KV bytes of one token on each GPU: a share of the heads, at least one; a latent is whole on each."""
    ranks = 1 if layout.latent else min(attention_tp(pool.worker), layout.total_kv_heads)
    size = 1 if str(arg(pool, "kv-cache-dtype") or "").startswith("fp8") else layout.element_size
    return layout.bytes_per_token * size / layout.element_size / ranks / pool.worker.pp


def weights_do_not_fit(case: Case) -> Iterator[Finding]:
    """DSG801: a GPU's share of the weights is more than its memory."""
    memory = case.deployment.platform.memory_gb
    for pool in case.deployment.pools:
        need = weights_per_gpu(case, pool)
        if memory and need and need > memory * 1e9:
            message = (
                f"{case.deployment.model.name} needs at least {need / 1e9:.0f} GB per GPU at tp {pool.worker.tp} "
                f"x pp {pool.worker.pp} on {pool.where}, and {case.deployment.platform.name} has {memory} GB"
            )
            yield finding("DSG801", message, where=f"{pool.where}.tp")


def longest_request_does_not_fit(case: Case) -> Iterator[Finding]:
    """DSG802: beside the weights there is no room for one request of the declared length."""
    for pool, tokens, room in _rooms(case):
        assert case.layout is not None
        need = tokens * token_bytes_per_gpu(case.layout, pool)
        if need > room >= 0:
            message = (
                f"{pool.where}: one request of {tokens:,} tokens needs {need / 1e9:.1f} GB of KV per GPU, "
                f"and at most {room / 1e9:.1f} GB are left beside the weights"
            )
            yield finding("DSG802", message, where=case.at(pool, "args", "context-length"))


def requests_do_not_fit(case: Case) -> Iterator[Finding]:
    """DSG803: not all running requests fit at the declared length."""
    for pool, tokens, room in _rooms(case):
        running = number(pool, "max-running-requests")
        assert case.layout is not None
        one = tokens * token_bytes_per_gpu(case.layout, pool)
        each = (running or 0) / (pool.worker.dp if pool.worker.dp_attention else 1)
        if running and one <= room < one * each:
            message = (
                f"{pool.where}: about {int(room // one)} of {each:.0f} running requests fit at {tokens:,} tokens "
                f"({one / 1e9:.2f} GB of KV per GPU each, {room / 1e9:.0f} GB beside the weights)"
            )
            yield finding("DSG803", message, where=case.at(pool, "args", "max-running-requests"))


def _rooms(case: Case) -> Iterator[tuple[Pool, int, float]]:
    """Each pool whose declared context length can be judged, with that length and the bytes left beside the weights."""
    memory = case.deployment.platform.memory_gb
    for pool in case.deployment.pools:
        tokens, weight = number(pool, "context-length"), weights_per_gpu(case, pool)
        if memory and tokens and weight and case.layout is not None:
            part = min(1.0, fraction(arg(pool, PART)) or 1.0)
            yield pool, tokens, memory * 1e9 * part - weight


def pool_shorter_than_context(case: Case) -> Iterator[Finding]:
    """DSG804: --max-total-tokens below --context-length."""
    for pool in case.deployment.pools:
        total, context = number(pool, "max-total-tokens"), number(pool, "context-length")
        if total and context and total < context:
            message = f"{pool.where} holds {total:,} tokens and takes prompts of up to {context:,}"
            yield finding("DSG804", message, where=case.at(pool, "args", "max-total-tokens"))


def graphs_smaller_than_batch(case: Case) -> Iterator[Finding]:
    """DSG805: decode runs larger batches than it has CUDA graphs for."""
    for pool in case.role("decode"):
        running = number(pool, "max-running-requests")
        graphs = number(pool, "cuda-graph-max-bs", "cuda-graph-max-bs-decode")
        each = (running or 0) // (pool.worker.dp if pool.worker.dp_attention else 1)
        if running and graphs and each > graphs:
            message = f"{pool.where} runs up to {each} requests per rank with CUDA graphs for {graphs}"
            yield finding("DSG805", message, where=case.at(pool, "args", "max-running-requests"))


def chunk_not_whole_pages(case: Case) -> Iterator[Finding]:
    """DSG806: --chunked-prefill-size that is no multiple of --page-size: refused at launch."""
    for pool in case.deployment.pools:
        chunk, page = number(pool, "chunked-prefill-size"), number(pool, "page-size")
        if chunk and page and chunk > 0 and chunk % page:
            message = f"chunked prefill size {chunk} is no multiple of page size {page} on {pool.where}"
            yield finding("DSG806", message, where=case.at(pool, "args", "chunked-prefill-size"))


def out_of_range(case: Case) -> Iterator[Finding]:
    """DSG807: a size below one, or a part of the memory that is no part."""
    for pool in case.deployment.pools:
        for flag in SIZES:
            if (value := number(pool, flag)) is not None and value < 1:
                where = case.at(pool, "args", flag)
                yield finding("DSG807", f"--{flag} {value} on {pool.where}: expected 1 or more", where=where)
        part = fraction(arg(pool, PART))
        if part is not None and not 0 < part < 1:
            message = f"--{PART} {part:g} on {pool.where}: expected a part of the memory, between 0 and 1"
            yield finding("DSG807", message, where=case.at(pool, "args", PART))


def decode_holds_less(case: Case) -> Iterator[Finding]:
    """DSG808: all decode workers together hold fewer tokens than the prefill workers."""
    said = {
        role: [(number(pool, "max-total-tokens"), len(pool.workers)) for pool in case.role(role)]
        for role in ("prefill", "decode")
    }
    sums = {role: sum((tokens or 0) * workers for tokens, workers in pools) for role, pools in said.items()}
    known = all(tokens for pools in said.values() for tokens, _ in pools)
    if known and sums["decode"] < sums["prefill"]:
        message = f"decode holds {sums['decode']:,} tokens in all, and prefill {sums['prefill']:,}"
        pool = case.role("decode")[0]
        yield finding("DSG808", message, where=case.at(pool, "args", "max-total-tokens"))


def reserved_for_answers(case: Case) -> Iterator[Finding]:
    """DSG809: so many tokens kept for each answer that fewer requests run."""
    name = "num-reserved-decode-tokens"
    for pool in case.role("decode"):
        if (value := number(pool, name) or 0) >= MANY_RESERVED:
            message = f"--{name} {value} on {pool.where}: each request keeps room for as many more tokens"
            yield finding("DSG809", message, where=case.at(pool, "args", name))


def eval_wider_than_decode(case: Case) -> Iterator[Finding]:
    """DSG811: the eval sends more at once than all decode workers run."""
    gsm8k = case.deployment.eval.gsm8k
    limits = [(number(pool, "max-running-requests"), len(pool.workers)) for pool in case.role("decode")]
    total = sum((running or 0) * workers for running, workers in limits)
    if gsm8k and all(running for running, _ in limits) and gsm8k.concurrency > total:
        message = f"the eval sends {gsm8k.concurrency} requests at once, and all decode workers together run {total}"
        yield finding("DSG811", message, where="eval.gsm8k.concurrency")


RULES = (
    weights_do_not_fit,
    longest_request_does_not_fit,
    requests_do_not_fit,
    pool_shorter_than_context,
    graphs_smaller_than_batch,
    chunk_not_whole_pages,
    out_of_range,
    decode_holds_less,
    reserved_for_answers,
    eval_wider_than_decode,
)
