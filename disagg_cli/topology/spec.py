"""The YAML as users write it: pydantic models at the edge, and nothing behind them that is not a frozen dataclass.

Short forms are spelled out before validation, so that each field has one type:
`model: synthetic`, `prefill: {...}` for a list of one pool, `executor: local`.
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from disagg_cli.topology.flags import engine_flag, router_flag
from disagg_cli.topology.platforms import platforms

Scalar = str | int | float | bool
Positive = Annotated[int, Field(gt=0)]
Port = Annotated[int, Field(ge=1, le=65535)]
Address = Annotated[str, Field(pattern=r"^[A-Za-z0-9:][A-Za-z0-9@:._%-]*$")]
"""A host name or address, with `user@` before it where ssh needs that. Never an option of ssh: no dash in front."""


def _scalar(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int | float):
        return value
    raise ValueError("expected text, a number, true or false")


def _text(value: str) -> str:
    if "\0" in value:
        raise ValueError("expected text without NUL characters")
    return value


Text = Annotated[str, AfterValidator(_text)]
Name = Annotated[str, Field(min_length=1), AfterValidator(_text)]
Value = Annotated[Scalar, BeforeValidator(_scalar)]
EngineArgs = dict[Annotated[Text, AfterValidator(engine_flag)], Value]
RouterArgs = dict[Annotated[Text, AfterValidator(router_flag)], Value]
Env = dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], Text]


class Strict(BaseModel):
    """Unknown keys are errors: a misspelt key that is ignored costs a run. So are values that would be converted:
    YAML makes true of `tp: yes`, and pydantic would make 1 of that."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True)


class SyntheticSpec(Strict):
    """A random-weight Qwen3 of this geometry, made and cached by disagg."""

    attention_heads: Positive = 8
    kv_heads: Positive = 4
    layers: Positive = 2
    head_dim: Annotated[int, Field(gt=0, multiple_of=2)] = 16
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _heads_share_evenly(self) -> Self:
        if self.attention_heads % self.kv_heads:
            raise ValueError(f"attention_heads {self.attention_heads} must be a multiple of kv_heads {self.kv_heads}")
        return self


class ModelSpec(Strict):
    """A hub id or local path, or a synthetic model."""

    path: Name | None = None
    synthetic: SyntheticSpec | None = None
    served_name: Name | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.path is None) == (self.synthetic is None):
            raise ValueError("expected either `path` (a hub id or a folder) or `synthetic`")
        return self


class RoleSpec(Strict):
    """One pool of equal workers. tp counts all ranks of a worker; with dp_attention the attention TP is tp / dp."""

    workers: Positive = 1
    tp: Positive = 1
    dp: Positive = 1
    dp_attention: bool = False
    pp: Positive = 1
    args: EngineArgs = Field(default_factory=dict)
    env: Env = Field(default_factory=dict)

    @model_validator(mode="after")
    def _attention_divides(self) -> Self:
        if self.dp_attention and self.tp % self.dp:
            raise ValueError(f"with dp_attention, tp {self.tp} must be a multiple of dp {self.dp}")
        return self


class EngineSpec(Strict):
    """SGLang flags and environment for every worker, verbatim."""

    args: EngineArgs = Field(default_factory=dict)
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

    policy: Name = "round_robin"
    host: Address | None = None
    port: Port = 8000
    args: RouterArgs = Field(default_factory=dict)


class SshSpec(Strict):
    """Hosts that the user's OpenSSH reaches, one node each."""

    hosts: Annotated[list[Address], Field(min_length=1)]

    @field_validator("hosts")
    @classmethod
    def _each_once(cls, value: list[str]) -> list[str]:
        machines = [host.rpartition("@")[2] for host in value]
        if twice := [host for host in dict.fromkeys(machines) if machines.count(host) > 1]:
            raise ValueError(f"expected each host once; more than once: {', '.join(twice)}")
        return value


class LocalSpec(Strict):
    """This machine."""


class ExecutorSpec(Strict):
    """Where processes run: this machine unless hosts are named."""

    local: LocalSpec | None = None
    ssh: SshSpec | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.local and self.ssh:
            raise ValueError("expected one of `local` and `ssh`")
        return self


class ProbeSpec(Strict):
    """How readiness is proven. timeout_s: seconds for each pair's first transfer."""

    parity: bool = True
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 180


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
    if value == "local":
        return {"local": {}}
    if isinstance(value, str):
        raise ValueError(f"unknown executor '{value}'; known: `local`, `{{ssh: {{hosts: [a, b]}}}}`")
    return value


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

    @model_validator(mode="after")
    def _cpus_are_here(self) -> Self:
        if self.executor.ssh and platforms()[self.platform].on_cpu:
            raise ValueError(f"platform {self.platform} runs on this machine: leave `executor` out")
        return self
