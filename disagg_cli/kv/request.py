"""The request that a plan's traffic is counted for, and what it has to meet."""

from dataclasses import dataclass

from disagg_cli.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Tokens of a prompt, the page size and pool of both sides, and the link and deadline it should meet, if any.

    Raises UsageError for sizes below one and for a deadline that is no positive time.
    """

    tokens: int = 8192
    page_size: int = 1
    pool_tokens: int = 500_000
    link: str | None = None
    ttft_s: float | None = None

    def __post_init__(self) -> None:
        for field in ("tokens", "page_size", "pool_tokens"):
            if getattr(self, field) < 1:
                raise UsageError(f"{field.replace('_', '-')} must be at least 1, not {getattr(self, field)}")
        if self.ttft_s is not None and not self.ttft_s > 0:
            raise UsageError(f"ttft-ms must be more than 0, not {self.ttft_s * 1000:g}")
