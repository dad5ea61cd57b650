"""The values that a topology is made of, as pydantic checks them: sizes, names, addresses, flags and environment."""

import ipaddress
import re
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from disagg_cli.secrets import is_secret
from disagg_cli.topology.managed_flags import engine_flag, router_flag, slurm_option, srun_option

Scalar = str | int | float | bool
FlagValue = Scalar | tuple[Scalar, ...]
"""What a flag is given: a value, true for none, or several values for a flag that takes a list."""
Positive = Annotated[int, Field(gt=0)]
Size = Annotated[int, Field(gt=0, le=4096)]
MOST_WORKERS = 3000
MOST_RANKS = 16_384
"""No deployment is larger, and a slip of the finger must not take minutes to be found."""
MOST_POOLS = 64
MOST_HOSTS = 4096
MOST_FLAGS = 512
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=1, le=65535)]


def complaint(at: str, what: str, near: str | None = None) -> PydanticCustomError:
    """A complaint of a whole mapping about one of its keys; near: the value that most likely is meant."""
    return PydanticCustomError("placed_error", "{what}", {"what": what, "at": at, "near": near})


def _address(value: str) -> str:
    host = value.rpartition("@")[2].partition("%")[0]
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"{value!r} is no host name or address; a port of ssh belongs in ~/.ssh/config") from None
    return value


Address = Annotated[str, Field(pattern=r"^[A-Za-z0-9:][A-Za-z0-9@:._%-]*$"), AfterValidator(_address)]
"""A host name or address, with `user@` before it where ssh needs that. Never an option of ssh: no dash in front."""


def _scalar(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int | float):
        return value
    if isinstance(value, dict):
        raise ValueError("expected text, a number, true, false or a list; write JSON as text, in quotes")  # noqa: TRY004
    raise ValueError("expected text, a number, true, false or a list of them")


def _flag_value(value: Any) -> Any:
    """Several words of one flag, such as `cuda-graph-bs: [1, 2, 4]`, or one."""
    return tuple(_scalar(item) for item in value) if isinstance(value, list) and value else _scalar(value)


def _text(value: str) -> str:
    if "\0" in value:
        raise ValueError("expected text without NUL characters")
    return value


def _line(value: Any) -> Any:
    if isinstance(value, str) and not value.isprintable():
        raise ValueError("expected one line of text")
    return value


ASSIGNED = re.compile(r"([A-Za-z_]\w*)=([^,\s]+)")
"""Variables with their values, as options of Slurm take them."""


def _no_secret(value: Any) -> Any:
    """`export: ALL,HF_TOKEN=...` would stand in the script, and on the command lines of steps."""
    if isinstance(value, str) and any(is_secret(*found) for found in ASSIGNED.findall(value)):
        raise ValueError("a secret does not belong on a command line; give it to the servers under engine.env")
    return value


Text = Annotated[str, AfterValidator(_text)]
Name = Annotated[str, Field(min_length=1), AfterValidator(_text)]
Line = Annotated[str, Field(min_length=1), AfterValidator(_line)]
"""Text that can stand in a line of a script."""
Value = Annotated[FlagValue, BeforeValidator(_flag_value)]
EngineArgs = Annotated[dict[Annotated[Text, AfterValidator(engine_flag)], Value], Field(max_length=MOST_FLAGS)]
RouterArgs = Annotated[dict[Annotated[Text, AfterValidator(router_flag)], Value], Field(max_length=MOST_FLAGS)]
_Option = Annotated[Scalar, BeforeValidator(_scalar), AfterValidator(_line), AfterValidator(_no_secret)]
SlurmArgs = dict[Annotated[Text, AfterValidator(slurm_option)], _Option]
SrunArgs = dict[Annotated[Text, AfterValidator(srun_option)], _Option]
SHORT = re.compile(r"([1-9]\d*)[Pp]([1-9]\d*)[Dd]")
"""How people name a topology: 1P4D is one prefill worker and four decode workers."""

OURS = ("DISAGG_HOST_MEMORY", "DISAGG_OVERLAY", "DISAGG_WITNESS", "DISAGG_FAULT")


def _variable(name: str) -> str:
    if name in OURS:
        raise ValueError(f"{name} turns hooks of disagg on, and is for disagg to set: see `connector.overlay`")
    return name


Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(_variable)]
Env = Annotated[dict[Variable, Text], Field(max_length=MOST_FLAGS)]


class Strict(BaseModel):
    """Unknown keys are errors: a misspelt key that is ignored costs a run. So are values that would be converted:
    YAML makes true of `tp: yes`, and pydantic would make 1 of that."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True)
