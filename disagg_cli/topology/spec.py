"""The YAML as users write it: pydantic models at the edge, and nothing behind them that is not a frozen dataclass.

Short forms are spelled out before validation, so that each field has one type:
`model: synthetic`, `prefill: {...}` for a list of one pool, `executor: local`.
"""

import difflib
from collections import Counter
from typing import Annotated, Any, Literal, Self

from packaging.version import InvalidVersion, Version
from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)

from disagg_cli.topology.places import Places
from disagg_cli.topology.platforms import platforms
from disagg_cli.topology.short_forms import short_executor, short_model, short_pools, short_restart, spelt_out
from disagg_cli.topology.slurm import SlurmSpec
from disagg_cli.topology.synthetic import Family
from disagg_cli.topology.values import (
    MOST_HOSTS,
    MOST_POOLS,
    MOST_RANKS,
    MOST_WORKERS,
    Address,
    EngineArgs,
    Env,
    Name,
    Port,
    Positive,
    RouterArgs,
    Seconds,
    Size,
    Strict,
    Text,
    Value,
    complaint,
)


class SyntheticSpec(Strict):
    """A random-weight model of this geometry, made and cached by disagg. It is a Qwen3 unless another family is named.

    deepseek has a latent (MLA) in place of KV heads; mellum has a sliding window in every other layer.
    """

    family: Family = "qwen3"
    attention_heads: Size = 8
    kv_heads: Size = 4
    layers: Annotated[int, Field(gt=0, le=1024)] = 2
    head_dim: Annotated[int, Field(gt=0, le=4096, multiple_of=2)] = 16
    hidden: Annotated[int, Field(gt=0, le=1 << 20)] | None = None
    window: Annotated[int, Field(gt=0, le=1 << 20)] = 128
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0

    @model_validator(mode="after")
    def _heads_share_evenly(self) -> Self:
        if self.attention_heads % self.kv_heads:
            said = f"attention_heads {self.attention_heads} must be a multiple of kv_heads {self.kv_heads}"
            raise complaint("kv_heads", said)
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


class PortsSpec(Strict):
    """Ports of a pool's workers, where they have to be known beforehand; disagg chooses those left out."""

    http: Port | None = None
    bootstrap: Port | None = None
    nccl: Port | None = None
    dist_init: Port | None = None


class RoleSpec(Strict):
    """One pool of equal workers. tp counts all ranks of a worker; with dp_attention the attention TP is tp / dp.

    gpus (per worker) and nodes (of the whole pool) are checked against what the sizes need. place names each worker's
    hosts and GPUs, one mapping per worker: `[{node-1: [0, 1]}, {node-1: [2, 3]}]`. On CPUs there are no GPUs to name:
    `[{node-1: []}]`.
    """

    workers: Size = 1
    tp: Size = 1
    dp: Size = 1
    dp_attention: bool = False
    pp: Size = 1
    gpus: Positive | None = None
    nodes: Positive | None = None
    place: list[dict[Address, list[Annotated[int, Field(ge=0)]]]] | None = None
    ports: PortsSpec = PortsSpec()
    args: EngineArgs = Field(default_factory=dict)
    env: Env = Field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """How many ranks, and so GPUs, each worker has. Plain DP makes whole replicas."""
        return self.tp * self.pp * (1 if self.dp_attention else self.dp)

    @model_validator(mode="after")
    def _attention_divides(self) -> Self:
        if self.dp_attention and self.tp % self.dp:
            raise complaint("dp", f"with dp_attention, tp {self.tp} must be a multiple of dp {self.dp}")
        return self


class EngineSpec(Strict):
    """SGLang flags and environment for every worker, verbatim.

    sglang: the release on the hosts, where it is not the one installed here. select_gpus: how a worker is told its
    GPUs, by CUDA_VISIBLE_DEVICES or by --base-gpu-id (its processes then see all GPUs of the host).
    """

    sglang: Name | None = None
    select_gpus: Literal["visible_devices", "base_gpu_id"] = "visible_devices"
    args: EngineArgs = Field(default_factory=dict)
    env: Env = Field(default_factory=dict)

    @field_validator("sglang")
    @classmethod
    def _a_version(cls, value: str | None) -> str | None:
        try:
            return value if value is None else str(Version(value))
        except InvalidVersion:
            raise ValueError(f"expected an SGLang release such as 0.5.23, got {value!r}") from None


class ConnectorSpec(Strict):
    """What moves the KV cache. disagg judges and proves NIXL; mooncake is passed on."""

    backend: Literal["nixl", "mooncake"] = "nixl"
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
    """Hosts that the user's OpenSSH reaches, one node each.

    domains: how many of them, in their order, share each NVLink domain; without it, domains are taken to be full.
    addresses: what the servers bind and tell each other, for hosts where that is not what ssh connects to. python: the
    one there that has SGLang, a path or a command. config: an ssh_config to use instead of the user's own. reattach_s:
    how long a lost connection is looked for before the run is given up. lease_s: after how long without disagg a host
    ends its workers by itself.
    """

    hosts: Annotated[list[Address], Field(min_length=1, max_length=MOST_HOSTS)]
    domains: list[Positive] | None = None
    addresses: dict[Address, Address] = Field(default_factory=dict)
    python: Name = "python3"
    config: Name | None = None
    reattach_s: Seconds | None = None
    lease_s: Seconds | None = None

    @model_validator(mode="after")
    def _domains_hold_all(self) -> Self:
        if self.domains and sum(self.domains) != len(self.hosts):
            said = f"domains hold {sum(self.domains)} hosts, and there are {len(self.hosts)}"
            raise complaint("domains", said)
        return self

    @model_validator(mode="after")
    def _addresses_of_hosts(self) -> Self:
        if unknown := sorted(set(self.addresses) - set(self.hosts)):
            raise complaint("addresses", f"addresses of what is none of the hosts: {', '.join(unknown)}")
        return self

    @field_validator("hosts")
    @classmethod
    def _each_once(cls, value: list[str]) -> list[str]:
        machines = [host.rpartition("@")[2] for host in value]
        if twice := [host for host, times in Counter(machines).items() if times > 1]:
            raise ValueError(f"expected each host once; more than once: {', '.join(twice)}")
        return value


class LocalSpec(Strict):
    """This machine."""


class OtherSpec(Strict):
    """A kind of place that executors/registry.py knows and this file does not. settings: passed on to it, verbatim."""

    kind: Name
    hosts: Annotated[list[Address], Field(min_length=1)]
    settings: dict[Text, Value] = Field(default_factory=dict)


class ExecutorSpec(Strict):
    """Where processes run: this machine unless hosts are named, or a Slurm job finds them."""

    local: LocalSpec | None = None
    ssh: SshSpec | None = None
    slurm: SlurmSpec | None = None
    other: OtherSpec | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if sum(place is not None for place in (self.local, self.ssh, self.slurm, self.other)) > 1:
            raise ValueError("expected one of `local`, `ssh` and `slurm`")
        return self

    @property
    def kind(self) -> str:
        """The executor's name, by which executors/registry.py finds it."""
        return self.other.kind if self.other else "ssh" if self.ssh else "slurm" if self.slurm else "local"

    @property
    def settings(self) -> dict[str, Any]:
        """What stands below its name."""
        chosen = self.ssh or self.slurm or self.local
        return self.other.settings if self.other else chosen.model_dump() if chosen else {}


class ProbeSpec(Strict):
    """How readiness is proven. timeout_s: seconds for each pair's first transfer."""

    parity: bool = True
    timeout_s: Seconds = 180


class RestartSpec(Strict):
    """What to do when a process dies of a run that serves.

    gang: end and start all prefill and decode workers together, and prove them again, at most `times` times within
    `within_s` seconds, after a pause of `backoff_s` seconds that doubles each time. Never one worker alone: its peers
    keep the metadata and connections of the one that has died, and do not let another take its place (nixl #795,
    sglang #40108, smg #2382). The router holds no KV and is started again alone.
    """

    policy: Literal["never", "gang"] = "never"
    times: Positive = 3
    within_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3600
    backoff_s: Annotated[float, Field(ge=0, le=3600)] = 5


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


Pools = Annotated[list[RoleSpec], Field(min_length=1, max_length=MOST_POOLS), BeforeValidator(short_pools)]


class TopologySpec(Strict):
    """One prefill/decode deployment, as written.

    ignore: findings that are meant, by code, each with the reason why.
    """

    _places: Places = PrivateAttr(default_factory=Places)
    _written: dict[str, Any] = PrivateAttr(default_factory=dict)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
    platform: str
    model: Annotated[ModelSpec, BeforeValidator(short_model)]
    prefill: Pools
    decode: Pools
    engine: EngineSpec = EngineSpec()
    connector: ConnectorSpec = ConnectorSpec()
    router: RouterSpec = RouterSpec()
    executor: Annotated[ExecutorSpec, BeforeValidator(short_executor)] = ExecutorSpec()
    ports: Annotated[int, Field(ge=1024, le=32000)] = 30000
    probe: ProbeSpec = ProbeSpec()
    restart: Annotated[RestartSpec, BeforeValidator(short_restart)] = RestartSpec()
    eval: EvalSpec = EvalSpec()
    ignore: dict[Annotated[str, Field(pattern=r"^DSG\d{3}$")], Name] = Field(default_factory=dict)

    @property
    def places(self) -> Places:
        """Where each value was written."""
        return self._places

    @property
    def written(self) -> dict[str, Any]:
        """The values as they were written, with bases, variant and changes applied; empty where there is no file."""
        return self._written

    def placed(self, places: Places, written: dict[str, Any]) -> Self:
        """The same topology, with the places of its values, and the values as they were written."""
        self._places, self._written = places, written
        return self

    @model_validator(mode="before")
    @classmethod
    def _topology_in_short(cls, value: Any) -> Any:
        try:
            return spelt_out(value) if isinstance(value, dict) and "topology" in value else value
        except ValueError as error:
            raise complaint("topology", str(error)) from None

    @field_validator("platform")
    @classmethod
    def _known_platform(cls, value: str) -> str:
        if value not in platforms():
            near = nearest_platform(value)
            hint = f"did you mean `{near}`? " if near else ""
            said = f"unknown platform '{value}'; {hint}known: {', '.join(platforms())}"
            raise complaint("platform", said, near)
        return value

    @model_validator(mode="after")
    def _no_slip_of_the_finger(self) -> Self:
        pools = [*self.prefill, *self.decode]
        workers = sum(pool.workers for pool in pools)
        ranks = sum(pool.workers * pool.ranks for pool in pools)
        if workers > MOST_WORKERS or ranks > MOST_RANKS:
            role = max(("prefill", "decode"), key=lambda role: sum(map(_size, getattr(self, role))))
            said = f"{workers:,} workers with {ranks:,} ranks; at most {MOST_WORKERS:,} and {MOST_RANKS:,}"
            raise complaint(role, said)
        return self


def nearest_platform(word: str) -> str | None:
    """The platform that a wrong name most likely means: in another case, cut short, with more behind it, misspelt."""
    said = word.strip().lower().replace("_", "-")[:64]
    whole = [name for name in platforms() if said and (name.startswith(said) or said.startswith(f"{name}-"))]
    return next(iter(whole or difflib.get_close_matches(said, platforms(), n=1, cutoff=0.8)), None)


def _size(pool: RoleSpec) -> int:
    return pool.workers * pool.ranks
