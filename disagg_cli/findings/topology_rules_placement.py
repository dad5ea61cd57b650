"""Rules about where workers run: GPUs, nodes, NVLink domains, platforms."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from disagg_cli.findings.finding import Finding, finding
from disagg_cli.findings.topology_case import Case, noted, some
from disagg_cli.kv.traffic import find_link
from disagg_cli.topology.deployment import Pool, Role

ROLES: tuple[Role, ...] = ("prefill", "decode")


def does_not_fit(case: Case) -> Iterator[Finding]:
    """DSG301, 302, 307, 308, 309: workers that there is no place for."""
    for misfit in case.deployment.misfits:
        yield finding(misfit.code, misfit.said, where=misfit.where, fix=misfit.fix)


def gpus_per_worker(case: Case) -> Iterator[Finding]:
    """DSG303: the GPUs said to be a worker's are not as many as its ranks."""
    for pool in case.deployment.pools:
        if pool.gpus is not None and pool.gpus != pool.worker.ranks:
            message = f"{pool.where} workers have {pool.gpus} GPUs and {pool.worker.ranks} ranks ({_sizes(pool)})"
            yield finding("DSG303", message, where=f"{pool.where}.gpus", fix=f"set tp x pp to {pool.gpus}")


def nodes_of_pool(case: Case) -> Iterator[Finding]:
    """DSG304: the nodes said to be a pool's are not as many as its workers need."""
    per_node = case.deployment.platform.gpus_per_node
    for pool in case.deployment.pools:
        if pool.nodes is None or not per_node:
            continue
        ranks, workers = pool.worker.ranks, len(pool.workers)
        need = workers * -(-ranks // per_node) if ranks >= per_node else -(-workers // (per_node // ranks))
        if need > pool.nodes:
            message = (
                f"{workers} {pool.where} workers of {ranks} GPUs need {need} nodes of {per_node}, not {pool.nodes}"
            )
            yield finding("DSG304", message, where=f"{pool.where}.nodes", fix=f"set nodes to {need}")


def idle_nodes(case: Case) -> Iterator[Finding]:
    """DSG305: GPUs of the nodes said to be a pool's stay idle."""
    per_node = case.deployment.platform.gpus_per_node
    for pool in case.deployment.pools:
        idle = (pool.nodes or 0) * per_node - len(pool.workers) * pool.worker.ranks
        if pool.nodes is not None and idle >= per_node:
            message = f"{pool.where}: {idle} of {pool.nodes * per_node} GPUs stay idle"
            yield finding("DSG305", message, where=f"{pool.where}.nodes")


def crosses_domain(case: Case) -> Iterator[Finding]:
    """DSG311: a worker's hosts are in several NVLink domains. A note where it is larger than any."""
    for pool in case.deployment.pools:
        for worker in pool.workers:
            domains = sorted({share.host.domain for share in worker.shares if share.host.domain is not None})
            if len(domains) > 1:
                hosts = some([f"{share.host.name} (domain {share.host.domain})" for share in worker.shares])
                message = f"{worker.name} (tp {worker.tp}) spans {len(domains)} NVLink domains: {hosts}"
                found = finding("DSG311", message, where=f"{pool.where}.tp")
                fits = worker.ranks <= (case.deployment.platform.nvlink_domain or 0)
                yield found if fits else noted(found)


def pairs_between_domains(case: Case) -> Iterator[Finding]:
    """DSG312: KV leaves the NVLink domain."""
    prefill, decode = (Counter(w.host.domain for w in case.deployment.role(role)) for role in ROLES)
    pairs = prefill.total() * decode.total()
    apart = sum(prefill[p] * decode[d] for p in prefill for d in decode if p != d and None not in (p, d))
    link = case.deployment.platform.scale_out
    if apart and link:
        fact = find_link(link)
        message = (
            f"{apart} of {pairs} prefill/decode pairs are in different NVLink domains; "
            f"their KV goes over the NICs ({fact.label}, {fact.bytes_per_s / 1e9:.0f} GB/s each at most)"
        )
        yield finding("DSG312", message, where="decode")


def gpus_in_steps(case: Case) -> Iterator[Finding]:
    """DSG314: --base-gpu-id counts up in equal steps, and the worker's GPUs do not."""
    for pool in case.deployment.pools if case.deployment.select_gpus == "base_gpu_id" else ():
        for worker in pool.workers:
            for share in worker.shares:
                steps = {after - before for before, after in pairwise(share.gpus)}
                if len(steps) > 1 or min(steps, default=1) < 1:
                    message = f"{worker.name} is placed on GPUs {list(share.gpus)} of {share.host.name}"
                    yield finding("DSG314", message, where=f"{pool.where}.place")


def gpus_by_hand(case: Case) -> Iterator[Finding]:
    """DSG315: a variable that takes the GPUs which disagg gives a worker away again."""
    for pool in case.deployment.pools if not case.deployment.platform.on_cpu else ():
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
            if name in pool.worker.env:
                gpus = ",".join(map(str, pool.worker.shares[0].gpus))
                message = f"{name}={pool.worker.env[name]} for {pool.where}; disagg gives {pool.worker.name} {gpus}"
                yield finding("DSG315", message, where=case.at(pool, "env", name))


def not_verified(case: Case) -> Iterator[Finding]:
    """DSG313: nobody has run disagg's topologies on this platform."""
    platform = case.deployment.platform
    if not platform.verified:
        yield finding("DSG313", f"platform {platform.name} is not verified", where="platform")


def _sizes(pool: Pool) -> str:
    worker = pool.worker
    plain = f" x dp {worker.dp}" if worker.dp > 1 and not worker.dp_attention else ""
    return f"tp {worker.tp} x pp {worker.pp}{plain}"


RULES = (
    does_not_fit,
    gpus_per_worker,
    nodes_of_pool,
    idle_nodes,
    crosses_domain,
    pairs_between_domains,
    gpus_in_steps,
    gpus_by_hand,
    not_verified,
)
