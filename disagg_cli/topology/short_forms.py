"""What people write in short: `topology: 1P4D`, `model: NAME`, one pool without its list, `executor: slurm`."""

import difflib
from typing import Any

from disagg_cli.topology.values import MOST_WORKERS, SHORT


def spelt_out(data: dict[str, Any]) -> dict[str, Any]:
    """Replace `topology: 1P4D` by the workers of each role. ValueError for what is no such name, or contradicts it."""
    match = SHORT.fullmatch(str(data["topology"]))
    if match is None or any(int(count) > MOST_WORKERS for count in match.groups()):
        raise ValueError(f"expected something like 1P4D, got {str(data['topology'])[:80]!r}")
    rest = {key: value for key, value in data.items() if key != "topology"}
    for role, count in zip(("prefill", "decode"), map(int, match.groups()), strict=True):
        pool = rest.get(role)
        if isinstance(pool, list):
            message = f"{match.group()} is about one pool for each role, and {role} has a list"
            raise ValueError(message)  # noqa: TRY004  # pydantic reports ValueError only
        if isinstance(pool, dict) and pool.get("workers", count) != count:
            raise ValueError(f"{match.group()}, and {role}.workers is {pool['workers']}")
        if pool is None or isinstance(pool, dict):
            rest[role] = {"workers": count} | (pool or {})
    return rest


def short_model(value: Any) -> Any:
    """`model: NAME`, or `model: synthetic`, as a mapping."""
    if value == "synthetic":
        return {"synthetic": {}}
    if isinstance(value, str):
        return {"path": value}
    return value


def short_pools(value: Any) -> Any:
    """One pool as a list of one."""
    return [value] if isinstance(value, dict) else value


def short_restart(value: Any) -> Any:
    """`restart: gang` as a mapping."""
    return {"policy": value} if isinstance(value, str) else value


def short_executor(value: Any) -> Any:
    """`executor: NAME` as a mapping. ValueError for a name that there is none of."""
    if not isinstance(value, str):
        return value
    if value == "ssh":
        raise ValueError("ssh has to be told which hosts: `{ssh: {hosts: [a, b]}}`")
    if value not in ("local", "slurm"):
        near = difflib.get_close_matches(value[:64], ["local", "slurm", "ssh"], n=1)
        hint = f"; did you mean `{near[0]}`?" if near else ";"
        raise ValueError(f"unknown executor '{value}'{hint} known: `local`, `slurm`, `{{ssh: {{hosts: [a, b]}}}}`")
    return {value: {}}
