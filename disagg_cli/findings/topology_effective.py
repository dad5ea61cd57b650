"""What SGLang makes of flags that it does not take at their word: the page size and the KV dtype of a worker."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from disagg_cli.facts import read_facts
from disagg_cli.findings.topology_case import Case, arg, number
from disagg_cli.topology.deployment import Pool

SPELLINGS = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "float": "float32"}

BACKENDS = ("attention-backend", "decode-attention-backend", "prefill-attention-backend")

QUANTIZED = ("fp8", "fp4", "nvfp4", "mxfp4", "int4", "awq", "gptq", "w4a8")
"""In a model's name or its quantization: its checkpoint may say by itself in what its KV is kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effective:
    """A value with where it comes from; value is None where SGLang chooses by what is not known here."""

    value: str | None
    said: str
    flag: str


@cache
def page_sizes() -> Mapping[str, Mapping[str, Any]]:
    """What each attention backend accepts."""
    facts: Mapping[str, Mapping[str, Any]] = read_facts(Path(__file__).parents[1] / "topology" / "page_sizes.yaml")
    return facts


def page_size(case: Case, pool: Pool) -> Effective:
    """The page size: the flag's, unless an attention backend takes no such one; 1 where nothing is said."""
    asked = number(pool, "page-size")
    backends = [str(value) for flag in BACKENDS if (value := arg(pool, flag))]
    words = case.flags.choices.get("attention-backend") if case.flags else None
    if words and (odd := [backend for backend in backends if backend not in words and backend not in page_sizes()]):
        return Effective(value=None, said=f"not known ({odd[0]})", flag="page-size")
    for backend in backends:
        fact = page_sizes().get(backend)
        if fact and _applies(case, fact) and not _also(case, backend, asked) and asked not in fact["accepts"]:
            said = f"{fact['else_']} ({backend} takes {' or '.join(map(str, fact['accepts']))} only)"
            return Effective(value=str(fact["else_"]), said=said, flag="attention-backend")
    if asked is not None:
        return Effective(value=str(asked), said=str(asked), flag="page-size")
    if case.deployment.platform.on_cpu or backends:
        return Effective(value="1", said="1 (the default)", flag="page-size")
    said = "not said (1, unless the attention backend that SGLang chooses wants another)"
    return Effective(value=None, said=said, flag="page-size")


def _applies(case: Case, fact: Mapping[str, Any]) -> bool:
    """Whether a backend's rule is one for this model and GPU; `_mla` backends run MLA models only."""
    only, gpu = str(fact["only"]), fact.get("gpu")
    if gpu and gpu != case.deployment.platform.architecture:
        return False
    if only == "all" or case.layout is None:
        return only != "mha"
    return case.layout.latent == (only == "mla")


def _also(case: Case, backend: str | None, asked: int | None) -> bool:
    return backend == "trtllm_mha" and asked == 128 and not case.before("0.5.23")


def kv_dtype(case: Case, pool: Pool) -> Effective:
    """The KV dtype: the flag's; for `auto` the model's own, where it is known."""
    raw = str(arg(pool, "kv-cache-dtype") or "auto")
    if raw != "auto":
        return Effective(value=SPELLINGS.get(raw, raw), said=raw, flag="kv-cache-dtype")
    model = _model_dtype(case, pool)
    said = f"auto (the model's {model})" if model else "auto (the model's own, not known here)"
    return Effective(value=model, said=said, flag="kv-cache-dtype")


def raw_kv_dtype(pool: Pool) -> str:
    """The flag as releases before 0.5.17 compare it."""
    return str(arg(pool, "kv-cache-dtype") or "auto")


def quantized(case: Case) -> bool:
    """Whether the model's name says that its checkpoint is quantized."""
    name = (case.deployment.model.path or "").lower()
    return any(word in name for word in QUANTIZED)


def _model_dtype(case: Case, pool: Pool) -> str | None:
    if case.deployment.model.synthetic:
        return "float32"
    name = f"{case.deployment.model.path} {arg(pool, 'quantization') or ''}".lower()
    layout = case.layout
    if layout is None or layout.index or any(word in name for word in QUANTIZED):
        return None
    if not layout.source.startswith("https://"):
        return None  # a folder's checkpoint may say how its KV is kept; the layout does not know
    asked = str(arg(pool, "dtype") or "auto")
    return layout.kv_dtype if asked == "auto" else SPELLINGS.get(asked, asked)
