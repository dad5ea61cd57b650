"""Rules about the environment that decides how KV travels, and when waiting ends."""

from collections.abc import Iterator

from disagg_cli.findings.finding import Finding, finding
from disagg_cli.findings.topology_case import Case, arg, fraction, noted, number
from disagg_cli.topology.deployment import Pool

NETWORK = {f"{kind}{by}" for kind in ("rc", "dc", "ud") for by in ("", "_x", "_v", "_mlx5")} | {"ib", "all", "srd"}
SEES_GPUS = {"cuda_copy", "cuda", "all", "rocm_copy", "rocm"}
TIMEOUTS = ("SGLANG_DISAGGREGATION_WAITING_TIMEOUT", "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT")
HEARTBEAT = "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE"
LONG_S = 3600
FIRST_REQUEST_S = 120
"""A first request through NIXL has been seen to take 110 s (sglang #31295)."""


def no_net_devices(case: Case) -> Iterator[Finding]:
    """DSG601: which NICs UCX uses is left to UCX, on hosts with several."""
    platform = case.deployment.platform
    nics = platform.nics_per_node
    if not case.across_hosts or nics < 2 or not case.nixl or _over_nvlink(case):
        return
    flag = not case.before("0.5.23")
    left = [
        pool
        for pool in case.deployment.pools
        if _ucx(pool)
        and "UCX_NET_DEVICES" not in pool.worker.env
        and not (flag and arg(pool, "disaggregation-ib-device"))
    ]
    if left:
        message = f"UCX_NET_DEVICES is not set for {_names(left)}; {platform.name} hosts have {nics} NICs"
        yield finding("DSG601", message, where=_where(case, left))


def _names(pools: list[Pool]) -> str:
    return " and ".join(pool.where for pool in pools)


def _where(case: Case, pools: list[Pool]) -> str:
    """Where a setting that several pools lack would be put."""
    return "engine.env" if len(pools) == len(case.deployment.pools) else f"{pools[0].where}.env"


def _over_nvlink(case: Case) -> bool:
    """Whether every pair is in one NVLink domain that reaches beyond a host, and UCX is told to use it."""
    domains = {worker.host.domain for worker in case.deployment.workers}
    return len(domains) == 1 and None not in domains and all(_mnnvl(pool) for pool in case.deployment.pools)


def _mnnvl(pool: Pool) -> bool:
    return pool.worker.env.get("UCX_CUDA_IPC_ENABLE_MNNVL", "").lower() in ("y", "yes", "1", "on", "try")


def _ucx(pool: Pool) -> bool:
    return pool.worker.env.get("SGLANG_DISAGGREGATION_NIXL_BACKEND", "UCX").upper() == "UCX"


def ib_device_ignored(case: Case) -> Iterator[Finding]:
    """DSG602: --disaggregation-ib-device, which NIXL does not read before 0.5.23."""
    for pool in case.deployment.pools:
        if case.nixl and case.before("0.5.23") and (device := arg(pool, "disaggregation-ib-device")):
            release = case.choice.sglang
            message = f"--disaggregation-ib-device {device} has no effect on NIXL in SGLang {release}"
            fix = f"set UCX_NET_DEVICES: {device}:1 in its place, under env"
            yield finding("DSG602", message, where=case.at(pool, "args", "disaggregation-ib-device"), fix=fix)


def ib_device_overridden(case: Case) -> Iterator[Finding]:
    """DSG603: both ways to name NICs, of which UCX_NET_DEVICES wins."""
    for pool in case.deployment.pools:
        device, nets = arg(pool, "disaggregation-ib-device"), pool.worker.env.get("UCX_NET_DEVICES")
        if case.nixl and not case.before("0.5.23") and device and nets:
            message = f"UCX_NET_DEVICES={nets} wins over --disaggregation-ib-device {device}"
            yield finding("DSG603", message, where=case.at(pool, "args", "disaggregation-ib-device"))


def device_spelling(case: Case) -> Iterator[Finding]:
    """DSG604: UCX wants `mlx5_0:1`, SGLang's flag `mlx5_0`."""
    for pool in case.deployment.pools:
        nets = [name for name in pool.worker.env.get("UCX_NET_DEVICES", "").split(",") if name.startswith("mlx5")]
        if bare := [name for name in nets if ":" not in name]:
            message = f"UCX_NET_DEVICES names {bare[0]} without its port"
            yield finding("DSG604", message, where=case.at(pool, "env", "UCX_NET_DEVICES"), fix=f"write {bare[0]}:1")
        device = str(arg(pool, "disaggregation-ib-device") or "")
        if ":" in device and "{" not in device:
            message = f"--disaggregation-ib-device {device} has a port"
            where = f"{pool.where}.args.disaggregation-ib-device"
            yield finding("DSG604", message, where=where, fix=f"write {device.partition(':')[0]}")


def _tls(pool: Pool) -> tuple[bool, set[str]] | None:
    """UCX_TLS as (whether it lists what not to use, names), None where it is not set."""
    text = pool.worker.env.get("UCX_TLS", "").strip()
    return (text.startswith("^"), {word.strip() for word in text.lstrip("^").split(",")}) if text else None


def blind_to_gpus(case: Case) -> Iterator[Finding]:
    """DSG605: UCX_TLS without the transport by which UCX knows GPU memory."""
    if case.deployment.platform.on_cpu:
        return
    for pool in case.deployment.pools:
        tls = _tls(pool) if case.nixl and _ucx(pool) else None
        if tls and (bool(tls[1] & {"cuda_copy", "cuda", "all"}) if tls[0] else not tls[1] & SEES_GPUS):
            message = f"UCX_TLS={pool.worker.env['UCX_TLS']} leaves cuda_copy out"
            yield finding("DSG605", message, where=case.at(pool, "env", "UCX_TLS"))


def mnnvl_contradicted(case: Case) -> Iterator[Finding]:
    """DSG606: NVLink between hosts is asked for and its transport is excluded."""
    for pool in case.deployment.pools:
        tls = _tls(pool)
        out = tls and (("cuda_ipc" in tls[1]) if tls[0] else not tls[1] & {"cuda_ipc", "cuda", "all"})
        if _mnnvl(pool) and out:
            tls_text = pool.worker.env["UCX_TLS"]
            message = f"UCX_CUDA_IPC_ENABLE_MNNVL is on and UCX_TLS={tls_text} leaves cuda_ipc out"
            yield finding("DSG606", message, where=case.at(pool, "env", "UCX_TLS"))


def tcp_only(case: Case) -> Iterator[Finding]:
    """DSG607: nothing but TCP between hosts."""
    for pool in case.deployment.pools:
        tls = _tls(pool)
        if case.across_hosts and tls and not tls[0] and not tls[1] & NETWORK and not _over_nvlink(case):
            message = f"UCX_TLS={pool.worker.env['UCX_TLS']}: KV between hosts goes over TCP"
            yield finding("DSG607", message, where=case.at(pool, "env", "UCX_TLS"))


def mnnvl_memory(case: Case) -> Iterator[Finding]:
    """DSG608: NVLink between hosts without a network transport to fall back to."""
    for pool in case.deployment.pools:
        tls = _tls(pool)
        if case.across_hosts and _mnnvl(pool) and tls and not tls[0] and not tls[1] & NETWORK:
            message = f"UCX_TLS={pool.worker.env['UCX_TLS']} carries KV by nothing else where MNNVL fails"
            yield finding("DSG608", message, where=case.at(pool, "env", "UCX_TLS"))


def platform_environment(case: Case) -> Iterator[Finding]:
    """DSG609: what the platform's transports want and is not set."""
    for setting in case.deployment.platform.environment:
        if setting.value is None or (setting.when == "mnnvl" and not case.across_hosts):
            continue
        lack = [
            pool
            for pool in case.deployment.pools
            if setting.name not in pool.worker.env and (setting.when != "cross_host" or len(pool.worker.shares) > 1)
        ]
        if lack:
            said = f"{setting.name}={setting.value} is not set for {_names(lack)} ({setting.transport})"
            fix = f"set {setting.name}: '{setting.value}' under engine.env"
            yield finding("DSG609", f"{said}: {setting.why}", where=_where(case, lack), fix=fix)


def timeouts_off(case: Case) -> Iterator[Finding]:
    """DSG611: SGLang's own failure detection is switched off."""
    for pool in case.deployment.pools:
        env = pool.worker.env
        for name, limit in (*((name, LONG_S) for name in TIMEOUTS), (HEARTBEAT, LONG_S // 5)):
            if (value := fraction(env.get(name))) is not None and value >= limit:
                message = f"{name}={env[name]}: a lost transfer would hang for {_long(name, value)}"
                yield finding("DSG611", message, where=case.at(pool, "env", name))


def _long(name: str, value: float) -> str:
    seconds = value * 5 if name == HEARTBEAT else value
    return f"{seconds / 3600:.0f} hours" if seconds >= 2 * LONG_S else f"{seconds:.0f} s"


def watchdog_off(case: Case) -> Iterator[Finding]:
    """DSG612: the watchdog that ends a stuck worker is switched off."""
    for pool in case.deployment.pools:
        value = number(pool, "watchdog-timeout")
        if value is not None and value >= LONG_S:
            hours = value / 3600
            message = f"--watchdog-timeout {value}: a stuck worker is noticed after {hours:.0f} hours"
            yield finding("DSG612", message, where=case.at(pool, "args", "watchdog-timeout"))


def probe_timeout(case: Case) -> Iterator[Finding]:
    """DSG613: the probe gives up before a slow first request, or after SGLang itself does."""
    timeout = case.deployment.probe.timeout_s
    if case.deployment.platform.on_cpu:
        return
    waiting = min(fraction(pool.worker.env.get(TIMEOUTS[0])) or 300 for pool in case.deployment.pools)
    if timeout < FIRST_REQUEST_S and case.across_hosts:
        message = f"the probe gives up after {timeout:.0f} s; a first request may take {FIRST_REQUEST_S} s"
        yield finding("DSG613", message, where="probe.timeout_s")
    elif timeout > waiting:
        message = f"the probe waits {timeout:.0f} s, and SGLang gives up after {waiting:.0f} s"
        yield noted(finding("DSG613", message, where="probe.timeout_s"))


def custom_all_reduce(case: Case) -> Iterator[Finding]:
    """DSG614: the one-node all-reduce on a worker of several nodes."""
    name = "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2"
    for pool in case.deployment.pools:
        if len(pool.worker.shares) > 1 and pool.worker.env.get(name, "0").lower() in ("1", "true"):
            message = f"{name} is on for {pool.where}, whose workers span {len(pool.worker.shares)} hosts"
            yield finding("DSG614", message, where=case.at(pool, "env", name))


def other_backends_settings(case: Case) -> Iterator[Finding]:
    """DSG615: Mooncake's settings, which NIXL does not read."""
    for pool in case.deployment.pools:
        names = [name for name in pool.worker.env if name.startswith(("MC_", "SGLANG_MOONCAKE_", "MOONCAKE_"))]
        if names and case.backend(pool) == "nixl":
            message = f"{', '.join(names)}: Mooncake's, and KV moves by NIXL"
            yield finding("DSG615", message, where=case.at(pool, "env", names[0]))


def pages_freed_early(case: Case) -> Iterator[Finding]:
    """DSG617: decode frees an aborted request's pages while prefill may still write them."""
    name = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"
    for pool in case.role("decode"):
        if pool.worker.env.get(name, "1").lower() in ("0", "false", "no", "off"):
            yield finding("DSG617", f"{name} is off", where=case.at(pool, "env", name))


def exit_on_disconnect(case: Case) -> Iterator[Finding]:
    """DSG616: workers that end when a peer goes, in a run whose peers cannot come back."""
    name = "SGLANG_DISAGGREGATION_NIXL_EXIT_ON_REMOTE_DISCONNECT"
    for pool in case.deployment.pools:
        if pool.worker.env.get(name, "0").lower() in ("1", "true", "yes"):
            yield finding("DSG616", f"{name} is on", where=case.at(pool, "env", name))


RULES = (
    no_net_devices,
    ib_device_ignored,
    ib_device_overridden,
    device_spelling,
    blind_to_gpus,
    mnnvl_contradicted,
    tcp_only,
    mnnvl_memory,
    platform_environment,
    timeouts_off,
    watchdog_off,
    probe_timeout,
    custom_all_reduce,
    other_backends_settings,
    exit_on_disconnect,
    pages_freed_early,
)
