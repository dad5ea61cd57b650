"""When servers count as healthy, and for how long that is waited for; with real ones, which answer as they are told."""

import asyncio
import socket
import time
from itertools import pairwise

import pytest
from supervised import FOREVER, HERE, command
from waiting import until

from disagg_cli.errors import LaunchFailed
from disagg_cli.settings import ON_CPU, ON_GPU, Timeouts
from disagg_cli.topology.deployment import Ports, Share, Worker

# A hung or failing server cannot be had from SGLang on demand.
SERVER = """
import http.server
class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        {}
        self.send_response(CODE)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", PORT), Server).serve_forever()
"""


def worker(name, port):
    ports = Ports(http=port, bootstrap=0, nccl=0, dist_init=0)
    shares = (Share(host=HERE, gpus=()),)
    return Worker(name=name, role="decode", pool=0, tp=1, dp=1, dp_attention=False, pp=1, shares=shares, ports=ports)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def server(name, port, code=200, first="pass"):
    """A command that answers /health."""
    return command(name, SERVER.format(first).replace("PORT", str(port)).replace("CODE", str(code)))


def url(port):
    return f"http://127.0.0.1:{port}"


def urls(*workers):
    return {one.name: one.url for one in workers}


async def test_healthy(supervised):
    ports = free_port(), free_port()
    async with supervised() as run:
        await run.start(server("decode-0", ports[0]), server("decode-1", ports[1]))
        await run.supervisor.healthy(urls(worker("decode-0", ports[0]), worker("decode-1", ports[1])))
        assert (run.phase("decode-0"), run.phase("decode-1")) == ("healthy", "healthy")


async def test_health_is_noticed_while_another_server_says_nothing(supervised):
    """As one does that loads weights for minutes, and takes requests meanwhile."""
    ports = free_port(), free_port()
    async with supervised(Timeouts(health=60.0, health_request=30.0, poll=0.01)) as run:
        late = "import time; time.sleep(0.5)\n" + server("decode-1", ports[1]).argv[-1]
        await run.start(server("decode-0", ports[0], first="import time; time.sleep(60)"), command("decode-1", late))
        waiting = asyncio.create_task(run.supervisor.healthy({"decode-0": url(ports[0]), "decode-1": url(ports[1])}))
        await until(lambda: run.phase("decode-1") == "healthy")
        assert run.recorder.state.waiting_for == "/health of decode-0"
        waiting.cancel()


@pytest.mark.parametrize("times", [ON_CPU, ON_GPU], ids=["on CPUs", "on GPUs"])
async def test_health_is_asked_after_often_enough_to_be_noticed_within_half_a_second(supervised, times):
    """The shortest of some pauses counts: any of them may be longer on busy cores."""
    port = free_port()
    async with supervised(times) as run:
        await run.start(server("decode-0", port, 503, "import time; print('asked', time.monotonic(), flush=True)"))
        waiting = asyncio.create_task(run.supervisor.healthy({"decode-0": url(port)}))
        log = run.recorder.directory.log("decode-0")
        await until(lambda: log.read_text().count("asked") > 5)
        waiting.cancel()
        asked = [float(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("asked")]
        assert min(later - sooner for sooner, later in pairwise(asked)) <= 0.5


@pytest.mark.parametrize(
    ("code", "first"), [(503, "pass"), (200, "import time; time.sleep(9)")], ids=["says 503", "says nothing"]
)
async def test_not_healthy_in_time(supervised, code, first):
    port = free_port()
    async with supervised(Timeouts(health=0.4, health_request=0.1, poll=0.01)) as run:
        await run.start(server("decode-0", port, code, first), command("decode-1", FOREVER))
        await run.ready("decode-1")
        with pytest.raises(LaunchFailed) as caught:
            await run.supervisor.healthy(urls(worker("decode-0", port), worker("decode-1", free_port())))
        assert caught.value.what.startswith("not healthy after 0 s: decode-0, decode-1\n")
        assert "decode-1, last lines:\n  | ready" in caught.value.what
        assert str(run.recorder.directory.log("decode-0")) in caught.value.where


async def test_the_time_is_up_as_a_request_is_given_up(supervised):
    """aiohttp's timeout takes what cancels a request in that moment for its own (3.14.5): the wait would not end."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with supervised(Timeouts(health=0.1, health_request=0.15, poll=0.01)) as run:
            await run.start(command("decode-0", FOREVER))
            waiting = asyncio.create_task(run.supervisor.healthy({"decode-0": url(silent.getsockname()[1])}))
            await asyncio.sleep(0.05)
            time.sleep(0.2)  # noqa: ASYNC251 - both times are up when the loop comes to look
            await asyncio.wait({waiting}, timeout=5)
            assert isinstance(waiting.exception(), LaunchFailed)


async def test_what_is_waited_for_is_on_record(supervised):
    port = free_port()
    async with supervised() as run:
        await run.start(server("decode-0", port))
        waiting = asyncio.create_task(run.supervisor.healthy(urls(worker("decode-0", port))))
        await until(lambda: run.recorder.state.waiting_for == "/health of decode-0")
        await waiting


async def test_loading_is_seen_in_the_log(supervised):
    async with supervised() as run:
        await run.start(command("decode-0", f"print('Load weight begin. avail mem=1 GB'); {FOREVER}"))
        await run.ready("decode-0")
        waiting = asyncio.create_task(run.supervisor.healthy(urls(worker("decode-0", free_port()))))
        await until(lambda: run.phase("decode-0") == "loading")
        waiting.cancel()
