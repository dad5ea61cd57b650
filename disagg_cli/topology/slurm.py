"""What a topology says of its Slurm job."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from disagg_cli.topology.values import Line, Positive, Size, SlurmArgs, SrunArgs, Strict


def _clock(value: Any) -> Any:
    """YAML 1.1 reads 1:30:00 as a number in base 60; Slurm reads a bare number as minutes."""
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError('expected text such as "1:30:00": without quotes YAML makes a number of it')  # noqa: TRY004
    return value


class SlurmPart(Strict):
    """How the nodes of one role are asked for, where that differs from the other role's.

    nodes: as many as its workers need, unless said. segment: how many nodes are to share an NVLink domain; chosen from
    the platform's facts, unless said; 0 asks for nothing. gpus: the option by which this cluster gives GPUs away, or
    `none` where it has none; `gres`, unless said. args: options of sbatch, verbatim; false takes one of disagg's away.
    """

    partition: Line | None = None
    account: Line | None = None
    time: Annotated[Line | None, BeforeValidator(_clock)] = None
    nodes: Size | None = None
    segment: Annotated[int, Field(ge=0)] | None = None
    gpus: Literal["gres", "gpus-per-node", "none"] | None = None
    args: SlurmArgs = Field(default_factory=dict)


class SlurmSpec(SlurmPart):
    """One Slurm job for everything; a heterogeneous one where `prefill` or `decode` is asked for apart.

    step_args: options of srun for every worker, verbatim, such as pyxis's `container-image`. python: what runs disagg
    and SGLang on the nodes, where it is not the Python that runs disagg here; of a container's image, what runs SGLang
    in there. stop_before_s: how long before the time limit of the job disagg ends the run; Slurm may be a minute early.
    """

    step_args: SrunArgs = Field(default_factory=dict)
    python: Line | None = None
    stop_before_s: Positive = 120
    prefill: SlurmPart | None = None
    decode: SlurmPart | None = None

    @model_validator(mode="after")
    def _counted_apart(self) -> Self:
        if self.apart and self.nodes:
            raise ValueError("nodes is about one job; say it below `prefill` and `decode`")
        return self

    @property
    def apart(self) -> bool:
        """Whether the roles have components of their own in a heterogeneous job."""
        return self.prefill is not None or self.decode is not None

    @property
    def contained(self) -> bool:
        """Whether workers run in a container, and disagg itself beside it."""
        return any(option.startswith("container-") for option in self.step_args)

    def python_of_job(self, here: str) -> str:
        """What runs disagg in the job. here: what runs it where the job is submitted."""
        return here if self.contained else self.python or here

    def python_of_steps(self, here: str) -> str:
        """What runs SGLang in the job's steps."""
        return self.python or ("python3" if self.contained else here)

    def part(self, number: int) -> SlurmPart:
        """How a component is asked for: prefill's first, decode's second; one for both where they are not apart."""
        fields = SlurmPart.model_fields
        merged = {name: getattr(self, name) for name in fields}
        if own := (self.prefill, self.decode)[number]:
            merged |= {name: value for name in fields if (value := getattr(own, name)) is not None}
            merged["args"] = {**self.args, **own.args}
        return SlurmPart.model_construct(**merged)


def segment_of(nodes: int, asked: int | None, per_domain: int) -> int:
    """How many nodes are to be of one NVLink domain: as many as can, in equal parts, as sbatch's --segment wants."""
    if asked is not None:
        return max(1, min(asked, nodes))
    return max(size for size in range(1, max(1, min(nodes, per_domain)) + 1) if nodes % size == 0)
