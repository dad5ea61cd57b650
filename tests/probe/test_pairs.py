"""Every prefill/decode pair is driven directly; what it answers is proof, or says what is wrong."""

import asyncio
import dataclasses
import time

import aiohttp
import pytest
from fake_workers import LENGTH, event, good, hang, says, serving

from disagg_cli.probe.pairs import AT_ONCE, TOKENS, PairResult, prove_pair, prove_pairs


async def proof(prefill, decode, timeout_s=10.0):
    """The result of one pair that answers like this."""
    async with serving(prefill, decode) as (p, d), aiohttp.ClientSession() as session:
        return await prove_pair(session, p.worker("prefill-0"), d.worker("decode-0"), timeout_s=timeout_s)


async def test_a_pair_that_moves_kv():
    result = await proof(good, good)
    assert (result.ok, result.error, result.tokens) == (True, None, TOKENS)
    assert 0 < result.first_token_s <= result.total_s
    assert result.document()["ok"] is True


async def test_both_get_the_same_request():
    async with serving(good, good) as (p, d), aiohttp.ClientSession() as session:
        await prove_pair(session, p.worker("prefill-0"), d.worker("decode-0"), timeout_s=10)
    (asked,) = p.requests
    assert d.requests == [asked]
    assert (asked["bootstrap_host"], asked["bootstrap_port"]) == ("127.0.0.1", 1234)
    assert (asked["stream"], asked["sampling_params"]["temperature"]) == (True, 0)


async def test_every_pair_has_a_prompt_and_a_room_of_its_own():
    """A prompt that was seen before would be answered from the prefix cache: nothing would move."""
    async with serving(good, good, good) as (p, *ds):
        workers = [d.worker(f"decode-{n}") for n, d in enumerate(ds)]
        await prove_pairs([(p.worker("prefill-0"), d) for d in workers] * 2, timeout_s=10, done=lambda _: None)
    assert len({request["text"] for request in p.requests}) == 4
    assert len({request["bootstrap_room"] for request in p.requests}) == 4
    assert all(0 <= request["bootstrap_room"] < 2**63 for request in p.requests)


@pytest.mark.parametrize(
    ("decode", "error"),
    [
        pytest.param(500, "decode-0 answered HTTP 500: the reason", id="HTTP 500"),
        pytest.param(
            says({"error": {"message": "KVTransferError"}}),
            "decode-0 answered an error: {'message': 'KVTransferError'}",
            id="an error inside the stream",
        ),
        pytest.param(
            says(event(1), event(1, {"type": "abort", "message": "Aborted"})),
            "decode ended with {'type': 'abort', 'message': 'Aborted'}",
            id="abort",
        ),
        pytest.param(says(event(2, LENGTH)), "decode made 2 of 4 tokens", id="too few tokens"),
        pytest.param(says(), "decode ended with no finish reason", id="nothing"),
        pytest.param(says(event(4)), "decode ended with no finish reason", id="no end"),
    ],
)
async def test_an_answer_that_is_no_proof(decode, error):
    result = await proof(good, decode)
    assert (result.ok, result.error) == (False, error)


async def test_bytes_that_are_no_json():
    async def broken(response):
        await response.write(b"data: {oops\n\n")

    assert "decode-0: JSONDecodeError" in (await proof(good, broken)).error


async def test_a_connection_that_breaks():
    async def breaks(response):
        await response.write(b"data: {}\n\n")
        response._req.transport.abort()

    result = await proof(good, breaks)
    assert result.error.startswith("decode-0: Client")


async def test_nobody_listens():
    async with serving(good, good) as (p, d), aiohttp.ClientSession() as session:
        d.port = 1
        result = await prove_pair(session, p.worker("prefill-0"), d.worker("decode-0"), timeout_s=10)
    assert result.error.startswith("decode-0: ClientConnectorError")


async def test_no_answer():
    result = await proof(says(then=hang), says(then=hang), timeout_s=0.1)
    assert (result.error, result.first_token_s, result.tokens) == ("no answer within 0 s", None, 0)


async def test_what_waits_is_asked_before_the_request_is_given_up():
    async with serving(says(then=hang), says(then=hang)) as (p, d), aiohttp.ClientSession() as session:
        d.metrics = 'sglang:num_decode_transfer_queue_reqs{tp_rank="0"} 1.0\n'
        result = await prove_pair(session, p.worker("prefill-0"), d.worker("decode-0"), timeout_s=0.1)
    assert result.queues == {"decode-0 transfer": 1.0}
    assert result.timed_out


@pytest.mark.parametrize(("prefill_dp", "decode_dp"), [(2, 1), (1, 3), (2, 3)])
async def test_every_dp_group_of_both_workers_is_met(prefill_dp, decode_dp):
    """Prefill's are chosen by the room (SGLang's follow_bootstrap_room), decode's by name."""
    async with serving(good, good) as (p, d), aiohttp.ClientSession() as session:
        prefill = dataclasses.replace(p.worker("prefill-0"), tp=prefill_dp, dp=prefill_dp, dp_attention=True)
        decode = dataclasses.replace(d.worker("decode-0"), tp=decode_dp, dp=decode_dp, dp_attention=True)
        result = await prove_pair(session, prefill, decode, timeout_s=10)
    assert (result.ok, result.requests) == (True, max(prefill_dp, decode_dp))
    assert {asked["bootstrap_room"] % prefill_dp for asked in p.requests} == set(range(prefill_dp))
    assert {asked.get("data_parallel_rank", 0) for asked in d.requests} == set(range(decode_dp))
    assert all("data_parallel_rank" not in asked for asked in p.requests)


@pytest.mark.parametrize("seen", [1, 3])
async def test_a_stall_after_some_tokens(seen):
    """The first token comes from prefill; a transfer that never ends shows after it."""
    result = await proof(good, says(*(event(n + 1) for n in range(seen)), then=hang), timeout_s=0.3)
    assert result.error == f"only {seen} token(s) within 0 s"
    assert result.first_token_s is not None


async def test_prefills_failure_does_not_wait_for_decode():
    """Decode would wait 300 s for a prefill that has refused."""
    begun = time.monotonic()
    result = await proof(500, says(then=hang), timeout_s=60)
    assert result.error == "prefill-0 answered HTTP 500: the reason"
    assert time.monotonic() - begun < 5


async def test_the_workers_are_named_in_the_result():
    result = await proof(good, 500)
    assert (result.prefill, result.decode) == ("prefill-0", "decode-0")


async def test_one_failure_does_not_hide_the_others():
    async with serving(good, good, 500, good) as (p, *ds):
        pairs = [(p.worker("prefill-0"), d.worker(f"decode-{n}")) for n, d in enumerate(ds)]
        heard: list[PairResult] = []
        results = await prove_pairs(pairs, timeout_s=10, done=heard.append)
    assert [result.ok for result in results] == [True, False, True]
    assert sorted(result.decode for result in heard) == ["decode-0", "decode-1", "decode-2"]


async def test_only_a_few_at_once():
    """And waiting for a turn is no part of a pair's time."""
    now = most = 0

    async def slow(response):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        await good(response)
        now -= 1

    async with serving(good, slow) as (p, d):
        pair = (p.worker("prefill-0"), d.worker("decode-0"))
        results = await prove_pairs([pair] * (AT_ONCE + 2), timeout_s=10, done=lambda _: None)
    assert all(result.ok for result in results)
    assert most == AT_ONCE
