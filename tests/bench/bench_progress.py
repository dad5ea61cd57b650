"""What NIXL's progress thread costs while nothing moves, as NIXL sets it and as host-memory mode does.

    python tests/bench/bench_progress.py

Two agents in one process, 4 MiB written from one to the other over UCX. Exits 1 where the resting thread of an agent
takes more than a twentieth of a core.
"""

import contextlib
import statistics
import subprocess
import sys
import time
from typing import Any

IDLE_S, ROUNDS, MOST_OF_A_CORE = 2.0, 9, 0.05


def measure(*, resting: bool) -> tuple[float, float]:
    """Share of a core that each idle agent takes, and milliseconds until both sides know that 4 MiB have arrived."""
    import torch
    from nixl._api import nixl_agent, nixl_agent_config

    if resting:
        from disagg_cli.connector.host_memory.hooks import rest_between_looks

        original = nixl_agent.__init__

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            rest_between_looks(original, self, *args, **kwargs)

        nixl_agent.__init__ = init
    source, target = torch.arange(1 << 20, dtype=torch.float32), torch.zeros(1 << 20)
    here, there = (nixl_agent(name, nixl_agent_config(backends=["UCX"])) for name in ("here", "there"))
    here.register_memory(source)
    there.register_memory(target)
    here.add_remote_agent(there.get_agent_metadata())
    there.add_remote_agent(here.get_agent_metadata())
    begun = time.process_time()
    time.sleep(IDLE_S)
    share = (time.process_time() - begun) / IDLE_S / 2
    took = []
    for number in range(ROUNDS):
        begun, word = time.perf_counter(), b"%d" % number
        target.zero_()
        handle = here.initialize_xfer("WRITE", here.get_xfer_descs(source), there.get_xfer_descs(target), "there", word)
        here.transfer(handle)
        while here.check_xfer_state(handle) != "DONE" or not there.check_remote_xfer_done("here", word):
            if time.perf_counter() - begun > 30:
                raise TimeoutError("no transfer within 30 s")
            time.sleep(0.0002)
        assert torch.equal(source, target)
        took.append((time.perf_counter() - begun) * 1e3)
    return share, statistics.median(took)


def in_a_process(name: str) -> tuple[float, float]:
    """Measure where no other agent is."""
    done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, timeout=120, check=True)
    share, milliseconds = map(float, done.stdout.split()[-2:])
    return share, milliseconds


if __name__ == "__main__":
    if sys.argv[1:]:
        with contextlib.redirect_stdout(sys.stderr):  # NIXL says who it is
            result = measure(resting=sys.argv[1] == "resting")
        print(*result)
        sys.exit()
    shares = {}
    print(f"{'progress thread':<17}{'of a core, idle':>16}{'4 MiB moved in':>17}")
    for name in ("as NIXL sets it", "resting"):
        shares[name], moved = in_a_process(name)
        print(f"{name:<17}{shares[name]:>15.1%}{moved:>14.1f} ms")
    sys.exit(shares["resting"] > MOST_OF_A_CORE)
