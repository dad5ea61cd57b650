"""How many descriptors a release's connector makes of a request, how long they are, and what its lists weigh.

A transfer of many short descriptors is slow, and a list with one entry for every token of the pool is large and slow to
make, inside the first request. Sources: `expand_page_indices_for_slice`, `_init_hetero_tp_prep_handle` and
`_prep_equal_tp_dlist` of the wheels; sglang #22536 and #31968 for what that costs (about 30,000 descriptors per
request; 110 s for a first request).
"""

from dataclasses import dataclass
from typing import Any

from disagg_cli.connector import head_maths
from disagg_cli.connector.case import Case
from disagg_cli.connector.releases import Connector
from disagg_cli.kv.plan import SlicePlan

_EXPANDED_ENTRY = 24
"""Bytes of a list's entry where every block has one: address, length and device, 64 bits each."""
_RUN_ENTRY = 40
"""Bytes of an entry that stands for a run of blocks: stride and count more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Descriptors:
    """Per request, the busiest decode rank's descriptors and the bytes of one; and the prepared lists per prefill rank.

    The source list is made once per prefill rank, a target list for each decode rank that it sends to; both are None in
    releases that prepare nothing.
    """

    per_request: int
    bytes_each: int
    pool_tokens: int
    source_list_bytes: int | None
    target_list_bytes: int | None

    def document(self) -> dict[str, Any]:
        """The descriptors as JSON shows them."""
        return {
            "per_request": self.per_request,
            "bytes_each": self.bytes_each,
            "pool_tokens": self.pool_tokens,
            "source_list_bytes": self.source_list_bytes,
            "target_list_bytes": self.target_list_bytes,
        }


def count_descriptors(
    connector: Connector, case: Case, plan: SlicePlan, *, tokens: int, page_size: int, pool_tokens: int
) -> Descriptors:
    """Count what a request of so many tokens becomes, in the main pool.

    Where heads are cut, each token, layer, and K or V is one descriptor per route, else each page is. Releases before
    0.5.13 merge neighbouring pages, so the count for whole pages is then an upper bound.
    """
    layout = plan.layout
    regions = layout.main_layers * (1 if layout.latent else 2)
    blocks = tokens if case.sliced else -(-tokens // page_size)
    route = plan.routes[0]
    width = layout.head_dim if layout.latent else layout.elements_per_head // 2
    each = route.num_heads * width * layout.element_size * (1 if case.sliced else page_size)
    prepared = connector.descriptors == "prepared"
    groups = head_maths.head_groups(*case.size, replicated_decode=connector.replicated_decode) if case.sliced else 1
    entries = pool_tokens if case.sliced else pool_tokens // page_size
    per_block = _RUN_ENTRY if connector.runs else _EXPANDED_ENTRY
    length = regions if connector.runs else regions * entries
    return Descriptors(
        per_request=regions * blocks * case.tp_senders,
        bytes_each=each,
        pool_tokens=pool_tokens,
        source_list_bytes=length * per_block * (1 if connector.runs else max(1, groups)) if prepared else None,
        target_list_bytes=length * per_block if prepared else None,
    )
