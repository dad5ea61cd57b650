"""What `disagg warm` shows."""

import time
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from disagg_cli.console.units import counted, duration, human_bytes
from disagg_cli.executors.kept_parent import Kept, Place
from disagg_cli.executors.sessions import memory


def document(kept: Kept | None, place: Place) -> dict[str, Any]:
    """A parent as JSON. Memory in bytes, each page shared out among all processes that have it (PSS)."""
    found: dict[str, Any] = {"schema": "disagg.warm/1", "up": kept is not None, "log": str(place.log)}
    if kept is None:
        return found | {"servers": []}
    now = time.time()
    idle_s = None if kept.idle_since is None else round(now - kept.idle_since, 1)
    return found | {
        "pid": kept.pid,
        "sglang": kept.sglang,
        "import_s": kept.import_s,
        "age_s": round(now - kept.since, 1),
        "idle_s": idle_s,
        "ttl_s": kept.ttl_s,
        "ends_in_s": None if idle_s is None else round(max(0.0, kept.ttl_s - idle_s), 1),
        "memory": memory(kept.pid),
        "changed": list(kept.changed),
        "servers": [dict(server) | {"memory": memory(server["pid"])} for server in kept.servers],
    }


def up_text(kept: Kept, *, new: bool) -> str:
    """One line once it is up."""
    how = f"imported SGLang {kept.sglang} in {kept.import_s:.1f} s" if new else f"was up, with SGLang {kept.sglang}"
    return f"the warm parent (pid {kept.pid}) {how}; it ends {duration(kept.ttl_s)} after its last use"


def down_text(ended: Kept | None) -> str:
    """One line once it is down."""
    if ended is None:
        return "no warm parent was up"
    also = f", and with it {ended.names}" if ended.servers else ""
    return f"the warm parent (pid {ended.pid}) has ended{also}"


def status_table(found: dict[str, Any]) -> RenderableType:
    """The parent, and a line for each of its servers."""
    if not found["up"]:
        return "no warm parent is up; start one: disagg warm up"
    heading = f"warm parent (pid {found['pid']}), SGLang {found['sglang']}, up for {duration(found['age_s'])}"
    use = "in use" if found["idle_s"] is None else f"idle for {duration(found['idle_s'])}"
    ends = "" if found["idle_s"] is None else f", ends in {duration(found['ends_in_s'])}"
    lines: list[RenderableType] = [
        Text(heading, style="bold"),
        Text(f"{use}{ends}; {human_bytes(found['memory'])} of memory; {counted(len(found['servers']), 'server')}"),
    ]
    if found["changed"]:
        names = ", ".join(found["changed"])
        lines.append(Text(f"not used any more: installed anew since it was imported: {names}", style="yellow"))
    if found["servers"]:
        table = Table(box=None, pad_edge=False)
        for name in ("server", "pid", "for", "memory", "log"):
            table.add_column(name)
        for server in found["servers"]:
            age = duration(time.time() - server["since"])
            table.add_row(
                server["name"], str(server["pid"]), age, human_bytes(server["memory"]), Text(str(server["log"]))
            )
        lines.append(table)
    return Group(*lines)
