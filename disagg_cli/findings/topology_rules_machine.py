"""Rules about a machine, this one or a host: installed wheels, copies of UCX, network adapters. Facts are values."""

from collections.abc import Iterator

from packaging.version import Version

from disagg_cli.findings.finding import Finding, finding
from disagg_cli.findings.topology_case import Case, arg, doubtful
from disagg_cli.topology.deployment import Pool


def _here(case: Case) -> bool:
    """Whether workers run on the machine that the facts are about, with what is installed there."""
    return (case.host is not None or case.deployment.executor == "local") and case.facts.installed is not None


def nixl_missing(case: Case) -> Iterator[Finding]:
    """DSG721: SGLang is installed here, and no NIXL."""
    wheels = [name for name in case.facts.packages if name.startswith("nixl") and case.facts.packages[name]]
    if _here(case) and case.nixl and not wheels:
        yield finding("DSG721", "sglang is installed here, and no nixl", where="connector.backend")


def nixl_for_other_cuda(case: Case) -> Iterator[Finding]:
    """DSG722: no NIXL wheel for the CUDA that torch was built for."""
    cuda, packages = case.facts.torch_cuda, case.facts.packages
    wheels = [f"{name} {packages[name]}" for name in ("nixl-cu12", "nixl-cu13") if packages.get(name)]
    if _here(case) and cuda and wheels and not packages.get(f"nixl-cu{cuda}"):
        message = f"torch is built for CUDA {cuda}, and NIXL is {', '.join(wheels)}"
        found = finding("DSG722", message, where="connector.backend", fix=f"pip install nixl-cu{cuda}")
        yield doubtful(found) if case.deployment.platform.on_cpu else found


def nixl_versions_differ(case: Case) -> Iterator[Finding]:
    """DSG723: the meta package and its wheel are of different versions."""
    packages = case.facts.packages
    meta = packages.get("nixl")
    wheel = packages.get(f"nixl-cu{case.facts.torch_cuda}")
    if _here(case) and meta and wheel and meta != wheel:
        message = f"nixl {meta} beside nixl-cu{case.facts.torch_cuda} {wheel}"
        yield finding("DSG723", message, where="connector.backend")


def nixl_too_old(case: Case) -> Iterator[Finding]:
    """DSG725: a NIXL of before 1.0 with an SGLang that calls what came with it."""
    packages = case.facts.packages
    wheels = {name: packages[name] for name in ("nixl-cu12", "nixl-cu13", "nixl") if packages.get(name)}
    old = [f"{name} {version}" for name, version in wheels.items() if version and Version(version) < Version("1.0")]
    if _here(case) and case.nixl and old and not case.before("0.5.10.post1"):
        yield finding("DSG725", f"{old[0]} with SGLang {case.choice.sglang}", where="connector.backend")


def second_ucx(case: Case) -> Iterator[Finding]:
    """DSG724: UCX libraries beside the one that NIXL brings."""
    if _here(case) and case.nixl and case.facts.ucx and not case.deployment.platform.on_cpu:
        message = f"UCX beside NIXL's own: {', '.join(case.facts.ucx[:3])}"
        yield finding("DSG724", message, where="connector.backend")


def _named(pool: Pool) -> tuple[str, list[str]]:
    """Where a pool names its adapters, and which."""
    if nets := pool.worker.env.get("UCX_NET_DEVICES"):
        names = [name.strip() for name in nets.split(",")]
        return "env.UCX_NET_DEVICES", [n.partition(":")[0] for n in names if ":" in n or n.startswith("mlx5")]
    device = str(arg(pool, "disaggregation-ib-device") or "")
    names = [] if "{" in device else [name.strip() for name in device.split(",") if name.strip()]
    return "args.disaggregation-ib-device", names


def no_such_adapter(case: Case) -> Iterator[Finding]:
    """DSG731: an adapter that this machine does not have, or that is not up."""
    if not _here(case) or case.facts.rails is None:
        return
    known = {rail.name: rail for rail in case.facts.rails}
    for pool in case.deployment.pools:
        where, names = _named(pool)
        for name in names:
            what = "is not in /sys/class/infiniband" if name not in known else None if known[name].active else "is down"
            if what:
                message = f"{name} ({pool.where}) {what}; there are {', '.join(known) or 'none'}"
                yield finding("DSG731", message, where=f"{pool.where}.{where}")


def far_adapter(case: Case) -> Iterator[Finding]:
    """DSG732: an adapter that is nearer to other GPUs than to the worker's."""
    rails = {rail.name: rail for rail in case.facts.rails or ()}
    for pool in case.deployment.pools if _here(case) else ():
        where, names = _named(pool)
        for worker in pool.workers:
            gpus = {gpu for share in worker.shares if case.host in (None, share.host.name) for gpu in share.gpus}
            near = {rail.name for rail in rails.values() if gpus & set(rail.gpus)}
            far = [name for name in names if name in rails and near and name not in near]
            if far:
                node = rails[far[0]].numa
                at = f"{far[0]}" + (f" (NUMA node {node})" if node is not None else "")
                message = f"{worker.name} on GPUs {sorted(gpus)} uses {at}; nearer: {', '.join(sorted(near))}"
                yield finding("DSG732", message, where=f"{pool.where}.{where}")


RULES = (
    nixl_missing,
    nixl_for_other_cuda,
    nixl_versions_differ,
    nixl_too_old,
    second_ucx,
    no_such_adapter,
    far_adapter,
)
