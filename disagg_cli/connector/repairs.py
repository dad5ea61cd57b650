"""What a release does with a plan once the overlay (connector/overlay) is loaded. Pure.

The overlay shows the stock arithmetic a deployment without replicas, so its outcome is the stock outcome of that one,
on a connector whose counting is mended where that is needed. It is loaded through SGLang's plugin door, which exists
from 0.5.11 on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from packaging.version import Version

from disagg_cli.connector.case import Case
from disagg_cli.connector.overlay.view import without_replicas
from disagg_cli.connector.releases import Release
from disagg_cli.connector.verdict import Verdict, judge_case
from disagg_cli.kv.layout import LayoutKind

FIRST_WITH_PLUGINS = Version("0.5.11")

MENDED: Mapping[str, Mapping[str, Any]] = {
    "0.5.11": {"kv_key": "source_rank", "state_key": "source_rank"},
    "0.5.12": {"dense_finishes": True},
}
"""What the overlay changes about how a decode rank counts its senders, release by release (facts of releases.yaml)."""


def loads(release: Release) -> bool:
    """Whether this release has a door for plugins."""
    return release.version >= FIRST_WITH_PLUGINS


def judge_repaired(release: Release, case: Case) -> Verdict | None:
    """What happens to one pair with the overlay; None where it cannot be loaded or has nothing to do with the pair."""
    if not loads(release) or case.kind is not LayoutKind.MHA:
        return None
    seen = without_replicas(case.prefill_tp, case.decode_tp, 0, case.kv_heads)
    mended = replace(release, connector=replace(release.connector, **MENDED.get(release.name, {})))
    return judge_case(mended, replace(case, decode_tp=seen.decode_tp, kv_heads=seen.kv_heads))


def repairs(release: Release, cases: Sequence[Case]) -> bool:
    """Whether with the overlay all these decode pools, behind one prefill pool, get their KV right.

    Pools need no common way of cutting: each has its own source descriptors.
    """
    verdicts = [judge_repaired(release, case) for case in cases]
    return all(verdict is not None and verdict.ok for verdict in verdicts)
