"""What servers tell about themselves: the model's name, versions, and Prometheus counters before and after a run."""

import asyncio
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from yarl import URL

from disagg_cli.api_key import api_key_header
from disagg_cli.errors import EvalUndecided, UsageError
from disagg_cli.http import UNTIMED
from disagg_cli.probe.queues import QUEUES

_ANSWER_S = 10
_COUNTERS = (
    "sglang:num_bootstrap_failed_reqs_total",
    "sglang:num_transfer_failed_reqs_total",
    "sglang:num_prefill_retries_total",
    "sglang:num_aborted_requests_total",
    "sglang:num_requests_total",
    "sglang:prompt_tokens_total",
    "sglang:generation_tokens_total",
    "sglang:cached_tokens_total",
    "sglang:kv_transfer_total_mb_sum",
    "sglang:kv_transfer_latency_ms_sum",
    "sglang:kv_transfer_latency_ms_count",
)
_LINE = re.compile(r"^(sglang:[A-Za-z0-9_]+)(?:\{.*\})? ([0-9.eE+-]+|NaN)$", re.MULTILINE)
_ENDPOINT = re.compile(r"/?(?:/v1(?:/(?:chat/)?completions)?|/generate)?/?\Z")
GRACE_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """What a run did to one worker's counters, and what its PD queues held in the end.

    `told`: it told them before and after the run. `restarted`: its counters began anew in between, so that the deltas
    are those since then.
    """

    worker: str
    deltas: Mapping[str, float]
    queues: Mapping[str, float]
    told: tuple[bool, bool] = (True, True)
    restarted: bool = False

    @property
    def leaked(self) -> dict[str, float]:
        """Queues that were not empty within the time of grace."""
        return {name: count for name, count in self.queues.items() if count}

    def notes(self) -> Iterator[str]:
        """What a person must know of this worker."""
        if not any(self.told):
            yield f"{self.worker} tells no metrics (it needs --enable-metrics): its queues were not looked at"
        elif not self.told[1]:
            yield f"{self.worker} told metrics before the run, and tells none after it"
        elif self.restarted:
            yield f"{self.worker} was started again during the run: its counters began anew"
        for name, count in self.leaked.items():
            yield f"{self.worker} still has {count:g} requests in {name.removeprefix('sglang:')} after the run"


def base_url(given: str, option: str = "--url") -> str:
    """A server's address, also from that of one of its endpoints. UsageError where it is none.

    A user or password in it is refused: the address stands in every report.
    """
    try:
        url = URL(given.strip())
        port = url.port
    except ValueError as error:
        raise UsageError(f"not a URL: {given}: {error}", fix=f"{option} http://127.0.0.1:8000") from None
    if url.scheme not in ("http", "https") or not url.host or not port:
        raise UsageError(f"not a URL: {given}", fix=f"{option} http://127.0.0.1:8000")
    if url.user is not None or url.password is not None:
        raise UsageError(f"{option} has a user or password in it", fix="give a key as $DISAGG_API_KEY")
    if url.query_string or url.fragment:
        raise UsageError(f"not a server's address: {given}", fix=f"{option} {url.with_query(None).with_fragment(None)}")
    return _ENDPOINT.sub("", str(url))


async def served_model(url: str) -> str:
    """The name of the model that the server serves; `default`, which SGLang takes for any, where it does not say.

    EvalUndecided where nothing answers at all.
    """
    try:
        async with asyncio.timeout(_ANSWER_S), _session() as session, session.get(url + "/v1/models") as response:
            listing = await response.json(content_type=None)
            return str(listing["data"][0]["id"])
    except aiohttp.ClientConnectorCertificateError as error:
        raise EvalUndecided(
            f"the server's certificate is not trusted: {_cause(error.certificate_error)}",
            where=url,
            fix="set SSL_CERT_FILE to the authority's certificate",
        ) from None
    except aiohttp.ClientConnectorError as error:
        raise EvalUndecided(
            f"nothing answers: {error}", where=url, fix="start the deployment, or give its --url"
        ) from None
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, IndexError, TypeError):
        return "default"


def _cause(error: Exception) -> str:
    return getattr(error, "verify_message", "") or str(error)


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=UNTIMED, headers=api_key_header())


async def versions(urls: Sequence[str]) -> dict[str, dict[str, Any]]:
    """SGLang's version and role of each server that answers /server_info."""
    found = await asyncio.gather(*(_info(url) for url in urls))
    return {url: info for url, info in zip(urls, found, strict=True) if info}


async def _info(url: str) -> dict[str, Any]:
    try:
        async with asyncio.timeout(_ANSWER_S), _session() as session, session.get(url + "/server_info") as response:
            info = await response.json(content_type=None)
            return {
                name: info[name] for name in ("version", "disaggregation_mode", "tp_size", "dp_size") if name in info
            }
    except (aiohttp.ClientError, TimeoutError, ValueError, TypeError):
        return {}


async def scrape(urls: Sequence[str]) -> list[dict[str, float]]:
    """Each worker's metrics, summed over labels; empty for one that tells none."""
    return list(await asyncio.gather(*(_metrics(url) for url in urls)))


async def _metrics(url: str) -> dict[str, float]:
    try:
        async with asyncio.timeout(_ANSWER_S), _session() as session, session.get(url + "/metrics") as response:
            return parse_metrics(await response.text()) if response.status == 200 else {}
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return {}


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus text to name -> value, summed over labels. Only the names that we use are kept."""
    totals: dict[str, float] = {}
    for name, value in _LINE.findall(text):
        if (name in QUEUES or name in _COUNTERS) and math.isfinite(number := float(value)):
            totals[name] = totals.get(name, 0.0) + number
    return totals


async def counters_since(urls: Sequence[str], before: Sequence[Mapping[str, float]]) -> tuple[Counters, ...]:
    """Deltas since `before`, once the queues are empty or the time of grace is over."""
    deadline = asyncio.get_running_loop().time() + GRACE_S
    after = await scrape(urls)
    while _waiting(after) and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.5)
        after = await scrape(urls)
    return tuple(_compared(url, *pair) for url, *pair in zip(urls, before, after, strict=True))


def _waiting(scraped: Sequence[Mapping[str, float]]) -> bool:
    return any(metrics.get(name) for metrics in scraped for name in QUEUES)


def _compared(url: str, before: Mapping[str, float], after: Mapping[str, float]) -> Counters:
    restarted = any(after[name] < before.get(name, 0.0) for name in _COUNTERS if name in after)
    since: Mapping[str, float] = {} if restarted else before
    return Counters(
        worker=url,
        deltas={name: after[name] - since.get(name, 0.0) for name in _COUNTERS if name in after},
        queues={name: after[name] for name in QUEUES if name in after},
        told=(bool(before), bool(after)),
        restarted=restarted,
    )
