"""How a role's workers are divided: tensor, data and pipeline parallel sizes."""

from dataclasses import dataclass

from disagg_cli.errors import UsageError

MOST_RANKS = 1 << 16
"""A size above this is a slip of the finger, not a worker."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallelism:
    """One worker's sizes, as in `--tp-size`, `--dp-size`, `--pp-size`, `--enable-dp-attention`.

    Raises UsageError for sizes below one or beyond reason, and for DP attention whose dp does not divide tp.
    """

    tp: int
    dp: int = 1
    pp: int = 1
    dp_attention: bool = False

    def __post_init__(self) -> None:
        for field in ("tp", "dp", "pp"):
            if getattr(self, field) < 1:
                raise UsageError(f"{field} must be at least 1, not {getattr(self, field)}")
            if getattr(self, field) > MOST_RANKS:
                raise UsageError(f"{field} must be at most {MOST_RANKS}, not {getattr(self, field)}")
        if self.dp_attention and self.tp % self.dp:
            raise UsageError(
                f"DP attention divides tp by dp, and {self.tp} is no multiple of {self.dp}",
                fix="choose a dp that divides tp",
            )

    @property
    def attention_tp(self) -> int:
        """Ranks that share one copy of the KV heads: tp, or tp / dp with DP attention."""
        return self.tp // self.dp if self.dp_attention else self.tp
