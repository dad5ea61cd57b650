"""Whole runs of the built-in questions against the mock server."""

import asyncio
import json

from mock_server import MockServer, serving

from disagg_cli.evals.client import Deadlines
from disagg_cli.evals.data import load
from disagg_cli.evals.run import run_gsm8k
from disagg_cli.evals.settings import EvalSettings

GOLDS = {question.question: question.answer for question in load("mini").questions}
QUESTIONS = list(GOLDS)
QUICK = Deadlines(request_s=4, first_token_s=2, idle_s=2)  # long enough for a busy machine


def run(server: MockServer, out, progress=lambda _now: None, **settings):
    chosen = EvalSettings(**{"dataset": "mini", **settings})

    async def both():
        async with serving(server):
            return await run_gsm8k(chosen, server.url, out, progress)

    return asyncio.run(both())


def samples(out):
    return [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]


def interrupted(tmp_path, **settings):
    """A run that answers ten questions and is then cancelled."""

    async def cancelled():
        async with serving(MockServer(GOLDS)) as server:
            chosen = EvalSettings(**{"dataset": "mini", "concurrency": 1, **settings})
            work = run_gsm8k(chosen, server.url, tmp_path, lambda now: now.done == 10 and task.cancel())
            task = asyncio.ensure_future(work)
            await asyncio.wait([task])

    asyncio.run(cancelled())


def resume(server: MockServer, out, **settings):
    async def resumed():
        async with serving(server):
            chosen = EvalSettings(**{"dataset": "mini", **settings})
            return await run_gsm8k(chosen, server.url, out, resume=True)

    return asyncio.run(resumed())
