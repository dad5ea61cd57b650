"""What two topologies must share for a rehearsal of one to speak for the other, as one short word. Pure."""

import hashlib
import json
from typing import Any

from disagg_cli.kv.layout import KVLayout
from disagg_cli.topology.deployment import Deployment, Pool


def fingerprint(deployment: Deployment, layout: KVLayout) -> str:
    """Return a word that changes with the model and its KV, the workers and their flags, the connector and the router.

    Hosts, ports, evals and the name say nothing of how KV moves.
    """
    model = deployment.model
    parts = {
        "model": [model.path or repr(model.synthetic), repr(layout)],
        "sglang": deployment.sglang,
        "pools": [_pool(pool) for pool in deployment.pools],
        "connector": deployment.connector.model_dump(),
        "router": [deployment.router.policy, dict(deployment.router.args)],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _pool(pool: Pool) -> list[Any]:
    worker = pool.worker
    sizes = [worker.role, len(pool.workers), worker.tp, worker.dp, worker.dp_attention, worker.pp]
    variables = {name: value for name, value in worker.env.items() if name.startswith("SGLANG_")}
    return [*sizes, dict(worker.args), variables]
