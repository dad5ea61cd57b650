"""The YAML as users write it: pydantic models at the edge, and nothing behind them that is not a frozen dataclass.

Short forms are spelled out before validation, so that each field has one type:
`model: synthetic`, `prefill: {...}` for a list of one pool, `executor: local`.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from disagg_cli.topology.platforms import platforms

Scalar = str | int | float | bool
Positive = Annotated[int, Field(gt=0)]
Port = Annotated[int, Field(ge=1, le=65535)]


def _texts(value: Any) -> Any:
    """Environment values are text; YAML makes numbers and booleans of them."""
    if not isinstance(value, dict):
        return value
    return {k: str(v) if isinstance(v, int | float) and not isinstance(v, bool) else v for k, v in value.items()}


Args = dict[str, Scalar]
Env = Annotated[dict[str, str], BeforeValidator(_texts)]


class Strict(BaseModel):
    """Unknown keys are errors: a misspelt key that is ignored costs a run."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class SyntheticSpec(Strict):
    """A random-weight Qwen3 of this geometry, made and cached by disagg."""

    attention_heads: Positive = 8
    kv_heads: Positive = 4
    layers: Positive = 2
    head_dim: Positive = 16
    seed: Annotated[int, Field(ge=0)] = 0


class ModelSpec(Strict):
    """A hub id or local path, or a synthetic model."""

    path: str | None = None
    synthetic: SyntheticSpec | None = None
    served_name: str | None = None


class RoleSpec(Strict):
    """One pool of equal workers. tp counts all ranks of a worker; with dp_attention the attention TP is tp / dp."""

    workers: Positive = 1
    tp: Positive = 1
    dp: Positive = 1
    dp_attention: bool = False
    pp: Positive = 1
    args: Args = Field(default_factory=dict)
    env: Env = Field(default_factory=dict)


class EngineSpec(Strict):
    """SGLang flags and environment for every worker, verbatim."""

    args: Args = Field(default_factory=dict)
    env: Env = Field(default_factory=dict)


class ConnectorSpec(Strict):
    """What moves the KV cache."""

    backend: Literal["nixl"] = "nixl"
    overlay: Literal["auto", "off", "require"] = "auto"

    @field_validator("overlay", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML 1.1 reads a bare `off` as false


class RouterSpec(Strict):
    """The sglang-router in front of the workers."""

    policy: str = "round_robin"
    host: str | None = None
    port: Port = 8000
    args: Args = Field(default_factory=dict)


class SshSpec(Strict):
    """Hosts that the user's OpenSSH reaches, one node each."""

    hosts: Annotated[list[str], Field(min_length=1)]


class ExecutorSpec(Strict):
    """Where processes run. local: this machine."""

    local: dict[str, Any] | None = None
    ssh: SshSpec | None = None


class ProbeSpec(Strict):
    """How readiness is proven. timeout_s: seconds for each pair's first transfer."""

    parity: bool = True
    timeout_s: Annotated[float, Field(gt=0)] = 180


class GsmSpec(Strict):
    """A GSM8K smoke eval."""

    dataset: Literal["gsm8k", "mini"] = "gsm8k"
    data: str | None = None
    questions: Positive | None = 200
    shots: Annotated[int, Field(ge=0)] = 8
    concurrency: Positive = 64
    max_tokens: Positive = 512
    baseline: Annotated[float, Field(gt=0, le=1)] | None = None
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.03
    seed: int = 42


class EvalSpec(Strict):
    """Evals that `launch` runs once every pair is proven."""

    gsm8k: GsmSpec | None = None


def _model(value: Any) -> Any:
    if value == "synthetic":
        return {"synthetic": {}}
    if isinstance(value, str):
        return {"path": value}
    return value


def _pools(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


def _executor(value: Any) -> Any:
    return {value: {}} if isinstance(value, str) else value


Pools = Annotated[list[RoleSpec], Field(min_length=1), BeforeValidator(_pools)]


class TopologySpec(Strict):
    """One prefill/decode deployment, as written."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
    platform: str
    model: Annotated[ModelSpec, BeforeValidator(_model)]
    prefill: Pools
    decode: Pools
    engine: EngineSpec = EngineSpec()
    connector: ConnectorSpec = ConnectorSpec()
    router: RouterSpec = RouterSpec()
    executor: Annotated[ExecutorSpec, BeforeValidator(_executor)] = ExecutorSpec()
    ports: Annotated[int, Field(ge=1024, le=32000)] = 30000
    probe: ProbeSpec = ProbeSpec()
    eval: EvalSpec = EvalSpec()

    @field_validator("platform")
    @classmethod
    def _known_platform(cls, value: str) -> str:
        if value not in platforms():
            raise ValueError(f"unknown platform '{value}'; known: {', '.join(platforms())}")
        return value
