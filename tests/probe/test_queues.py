"""What waits in the PD queues of both workers."""

from fake_workers import serving

from disagg_cli.probe.queues import waiting

TEXT = """# TYPE sglang:num_prefill_inflight_queue_reqs gauge
sglang:num_prefill_inflight_queue_reqs{tp_rank="0"} 1.0
sglang:num_prefill_inflight_queue_reqs{tp_rank="1"} 2.0
sglang:num_prefill_bootstrap_queue_reqs{tp_rank="0"} 0.0
sglang:num_running_reqs 7.0
"""


async def test_ranks_are_summed_and_a_worker_that_tells_nothing_is_left_out():
    async with serving(TEXT, 503) as (prefill, decode):
        told = await waiting(prefill.worker("prefill-0"), decode.worker("decode-0"))
    assert told == {"prefill-0 inflight": 3.0, "prefill-0 bootstrap": 0.0}
