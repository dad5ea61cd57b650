"""A real `NixlKVManager`, made by its own constructor of what a rank would find around it.

Replaced are: NIXL (a recording agent), sockets and threads (wire.py), SGLang's process-wide state, and the constructor
of the class that all backends share, which opens sockets and asks torch.distributed. All else is SGLang's.
"""

import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from disagg_cli.connector.conformance.agent import RecordingAgent
from disagg_cli.connector.conformance.installed import Installed, Worker, changes_named
from disagg_cli.connector.conformance.kv_args import kv_args
from disagg_cli.connector.conformance.ranks import Rank
from disagg_cli.connector.conformance.wire import Inbox, Threads, Wire
from disagg_cli.kv.layout import LayoutKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """One rank's place: its worker and pipeline stage, its memory, its port on the wire."""

    worker: Worker
    stage: int
    rank: Rank
    wire: Wire
    port: int


@dataclass(frozen=True, slots=True)
class Made:
    """A manager, its NIXL agent, and its threads, none of them running."""

    manager: Any
    agent: RecordingAgent
    threads: Threads


def make_manager(installed: Installed, place: Place, name: str) -> Made:
    """Construct the manager of one rank. Raises ConnectorChanged where this release wants more than it is given."""
    agent = RecordingAgent({"": place.rank.memory}, name)
    threads = Threads()
    mode = installed.nixl.DisaggregationMode
    role = mode.PREFILL if place.rank.side.prefill else mode.DECODE
    args = kv_args(installed, place.worker, place.rank, place.stage)
    values = {**_shared(place, args, role), **(_prefill(place) if place.rank.side.prefill else _decode())}

    def construct(manager: Any, *_args: Any, **_kwargs: Any) -> None:
        manager.__dict__.update(values)

    with (
        surroundings(installed, place.worker, threads),
        _nixl(agent),
        patch.object(installed.common.CommonKVManager, "__init__", construct),
        changes_named(),
    ):
        manager = installed.nixl.NixlKVManager(args, role, values["server_args"], values["is_mla_backend"])
    return Made(manager, agent, threads)


@contextmanager
def surroundings(installed: Installed, worker: Worker, threads: Threads | None = None) -> Iterator[None]:
    """What the connector finds in its process: SGLang's settings in force, queues and threads that do not run."""
    parallel = SimpleNamespace(tp_size=worker.tp, pp_size=worker.pp, dp_size=1, num_dp_ranks=1)
    context = {
        "get_parallel": lambda: parallel,
        "get_device": lambda: SimpleNamespace(device="cpu"),
        "get_disagg": lambda: SimpleNamespace(disaggregation_decode_allocation_policy="early"),
        "get_observability": lambda: SimpleNamespace(enable_trace=False),
        "run_with_deadline": lambda call, **_how: call(),
        "FastQueue": Inbox,
        **({"threading": threads.module()} if threads else {}),
    }
    with ExitStack() as stack:
        for module in (installed.nixl, installed.common):
            for name, value in context.items():
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, value))
        yield


@contextmanager
def _nixl(agent: RecordingAgent) -> Iterator[None]:
    """NIXL's Python module, so far as the manager's constructor imports it."""
    api = SimpleNamespace(
        nixl_agent=lambda *_args: agent,
        nixl_agent_config=lambda **options: options,
        nixl_thread_sync_t=SimpleNamespace(NIXL_THREAD_SYNC_STRICT="strict"),
    )
    with patch.dict(sys.modules, {"nixl": SimpleNamespace(_api=api), "nixl._api": api}):
        yield


def _shared(place: Place, args: Any, role: Any) -> dict[str, Any]:
    """What the shared constructor sets on both sides."""
    worker = place.worker
    server = SimpleNamespace(tp_size=worker.tp, pp_size=worker.pp, dp_size=1, enable_pd_role_switch=False)
    return {
        "kv_args": args,
        "disaggregation_mode": role,
        "server_args": server,
        "is_mla_backend": worker.layout.kind is LayoutKind.MLA,
        "is_hybrid_mla_backend": worker.latent_hybrid,
        "attn_tp_size": worker.tp,
        "attn_tp_rank": place.rank.side.rank,
        "state_tp_size": worker.tp,
        "attn_cp_size": 1,
        "attn_cp_rank": 0,
        "attn_dp_size": 1,
        "attn_dp_rank": 0,
        "system_dp_size": 1,
        "system_dp_rank": 0,
        "dcp_size": 1,
        "dcp_rank": 0,
        "pp_size": worker.pp,
        "pp_rank": place.stage,
        "local_ip": Wire.HOST,
        "rank_port": place.port,
        "server_socket": place.wire.inbox(place.port),
        "enable_all_cp_ranks_for_transfer": False,
        "enable_deferred_decode_kv_release": False,
        "kv_item_lens_sum": 0,
        "state_item_lens_sum": 0,
        "request_status": {},
        "failure_records": {},
        "failure_lock": threading.Lock(),
        "_kv_replica_factor": 1,
        "_dcp_pack_buffers": None,
        "_dcp_pack_max_tokens": None,
        "_socket_send_locks": defaultdict(threading.Lock),
        "_staging_outstanding": defaultdict(int),
        "_deferred_ack_targets": {},
        "_deferred_ack_poisoned_rooms": set(),
        "_connect": lambda endpoint, **_how: place.wire.connect(endpoint),
    }


def _prefill(place: Place) -> dict[str, Any]:
    return {
        "is_dummy_cp_rank": False,
        "transfer_infos": {},
        "req_to_decode_prefix_len": {},
        "decode_kv_args_table": {},
        "pp_group": SimpleNamespace(is_last_rank=place.stage == place.worker.pp - 1),
        "bootstrap_timeout": 300,
    }


def _decode() -> dict[str, Any]:
    return {
        "enable_staging": False,
        "_staging_handler": None,
        "connection_pool": {},
        "connection_lock": threading.Lock(),
        "required_prefill_response_num_table": {},
        "prefill_attn_tp_size_table": {},
        "prefill_dp_size_table": {},
        "prefill_pp_size_table": {},
        "prefill_page_size_table": {},
        "prefill_info_table": {},
        "addr_to_rooms_tracker": defaultdict(set),
        "prefill_response_tracker": defaultdict(set),
        "waiting_timeout": 300,
    }
