"""Rules about the environment that decides how KV travels, and when waiting ends."""

import re
from collections.abc import Iterator

from disagg_cli.findings.finding import Finding, finding
from disagg_cli.findings.topology_case import Case, arg, attention_tp, fraction, noted, number
from disagg_cli.findings.topology_rules_ucx import over_nvlink, used
from disagg_cli.topology.deployment import Pool

NETS = "UCX_NET_DEVICES"
TIMEOUTS = ("SGLANG_DISAGGREGATION_WAITING_TIMEOUT", "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT")
HEARTBEAT = "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE"
LONG_S = 3600
FIRST_REQUEST_S = 120
FIRST_SEEN_S = 110
"""What a first request through NIXL has been seen to take (sglang #31295)."""
IP_INTERFACE = re.compile(r"|lo|(eth|bond|ib|wlan|br|docker)\d*|en[opsx]\w*")
"""Names that Linux gives interfaces of its IP stack; adapters are called mlx5_0:1, rocep1s0:1, bnxt_re0:1."""


def no_net_devices(case: Case) -> Iterator[Finding]:
    """DSG601: which NICs UCX uses is left to UCX, on hosts with several."""
    platform = case.deployment.platform
    nics = platform.nics_per_node
    if not case.across_hosts or nics < 2 or not case.nixl or over_nvlink(case):
        return
    flag = not case.before("0.5.23")
    left = [
        pool
        for pool in case.deployment.pools
        if used(pool)
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


def ib_device_ignored(case: Case) -> Iterator[Finding]:
    """DSG602: --disaggregation-ib-device, which NIXL does not read before 0.5.23."""
    for pool in case.deployment.pools:
        if case.nixl and case.before("0.5.23") and (device := arg(pool, "disaggregation-ib-device")):
            release = case.choice.sglang
            message = f"--disaggregation-ib-device {device} has no effect on NIXL in SGLang {release}"
            devices = ",".join(f"{name.strip()}:1" for name in str(device).split(","))
            fix = f"set UCX_NET_DEVICES: {devices} in its place, under env"
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
        if portless := [name for name in nets if ":" not in name]:
            message = f"UCX_NET_DEVICES names {portless[0]} without its port"
            yield finding(
                "DSG604", message, where=case.at(pool, "env", "UCX_NET_DEVICES"), fix=f"write {portless[0]}:1"
            )
        device = str(arg(pool, "disaggregation-ib-device") or "")
        if ":" in device and "{" not in device:
            message = f"--disaggregation-ib-device {device} has a port"
            where = case.at(pool, "args", "disaggregation-ib-device")
            bare = ",".join(name.partition(":")[0] for name in device.split(","))
            yield finding("DSG604", message, where=where, fix=f"write {bare}")


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


def waits_too_short(case: Case) -> Iterator[Finding]:
    """DSG618: SGLang gives a transfer up before a slow first one is through."""
    for pool in case.deployment.pools:
        env = pool.worker.env
        value = fraction(env.get(TIMEOUTS[0]))
        if value is not None and value < FIRST_REQUEST_S and case.nixl and not case.deployment.platform.on_cpu:
            message = f"{TIMEOUTS[0]}={env[TIMEOUTS[0]]}: a first transfer has been seen to take {FIRST_SEEN_S} s"
            yield finding("DSG618", message, where=case.at(pool, "env", TIMEOUTS[0]))


def bootstrap_timeout_ignored(case: Case) -> Iterator[Finding]:
    """DSG623: a time-out that NIXL's prefill does not read before 0.5.18."""
    for pool in case.role("prefill") if case.nixl and case.before("0.5.18") else ():
        if TIMEOUTS[1] in pool.worker.env:
            message = f"{TIMEOUTS[1]} has no effect on a prefill by NIXL in SGLang {case.choice.sglang}"
            yield finding("DSG623", message, where=case.at(pool, "env", TIMEOUTS[1]))


def ip_interface(case: Case) -> Iterator[Finding]:
    """DSG620: interfaces of the IP network, or none at all, where UCX wants adapters."""
    for pool in case.deployment.pools if case.across_hosts and case.deployment.platform.nics_per_node else ():
        nets = pool.worker.env.get("UCX_NET_DEVICES")
        names = [name.strip() for name in (nets or "").split(",")]
        if nets is not None and used(pool) and case.nixl and all(IP_INTERFACE.fullmatch(name) for name in names):
            said = f"UCX_NET_DEVICES={nets} names no RDMA adapter" if nets.strip() else "UCX_NET_DEVICES is empty"
            message = f"{said} ({pool.where}): KV between hosts goes over TCP, or not at all"
            yield finding("DSG620", message, where=case.at(pool, "env", "UCX_NET_DEVICES"))


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
    """DSG614: the one-node all-reduce in a worker whose attention spans nodes. A note where it is on by default."""
    name = "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2"
    for pool in case.deployment.pools:
        worker, hosts = pool.worker, len(pool.worker.shares)
        if hosts == 1 or attention_tp(worker) * hosts <= worker.tp:
            continue
        value = worker.env.get(name)
        if value is not None and value.lower() in ("1", "true", "yes", "on"):
            message = f"{name} is on for {pool.where}, whose workers span {hosts} hosts"
            yield finding("DSG614", message, where=case.at(pool, "env", name))
        elif value is None and not case.before("0.5.12") and case.deployment.platform.nodes_per_domain > 1:
            message = f"{name} is on by default in SGLang {case.choice.sglang}; {pool.where} spans {hosts} hosts"
            yield noted(finding("DSG614", message, where=f"{pool.where}.env"))


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
    platform_environment,
    ip_interface,
    waits_too_short,
    bootstrap_timeout_ignored,
    timeouts_off,
    watchdog_off,
    probe_timeout,
    custom_all_reduce,
    other_backends_settings,
    exit_on_disconnect,
    pages_freed_early,
)
