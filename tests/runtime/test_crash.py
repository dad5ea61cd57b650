"""Why a process died: the cause that its log tells, and "unknown" rather than a guess."""

import json
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cli.findings.finding import catalogue
from disagg_cli.runtime.crash import Crash, Evidence, cause_of, causes, ending

# Last lines of servers that died of it: SGLang 0.5.23 and sglang-router 0.3.2, started with the fault in question.
SEEN = {
    "invalid-flag": (2, "sglang serve: error: unrecognized arguments: --no-such-flag"),
    "invalid-router-flag": (2, "launch_router.py: error: unrecognized arguments: --no-such-flag"),
    "model-missing": (
        1,
        (
            "OSError: Repo id must use alphanumeric chars, '-', '_' or '.'. The name cannot start or end with '-' or "
            "'.' and the maximum length is 96: '/nope'."
        ),
    ),
    "port-in-use": (1, "RuntimeError: Address already in use (os error 98)"),
}
# What their sources print; the faults need a GPU, a full machine, or a hub.
WRITTEN = {
    "gpu-out-of-memory": (
        1,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139 GiB",
    ),
    "no-room-for-kv": (1, "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."),
    "kv-used-up": (1, "RuntimeError: Decode out of memory. Try to lower your batch size."),
    "host-out-of-memory": (
        1,
        "RuntimeError: [enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory",
    ),
    "disk-full": (1, "OSError: [Errno 28] No space left on device"),
    "model-gated": (1, "huggingface_hub.errors.GatedRepoError: 403 Client Error."),
    "module-missing": (1, "/usr/bin/python3: No module named sglang"),
    "gpu-missing": (1, "RuntimeError: CUDA error: invalid device ordinal"),
    "peer-unreachable": (
        1,
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
    ),
    "too-many-files": (1, "OSError: [Errno 24] Too many open files"),
    "scheduler-stuck": (
        -9,
        "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\nSIGQUIT received. signum=None",
    ),
}
DEAD_RANK = "Subprocess scheduler_0 (pid=77) crashed with exit code {}. Triggering SIGQUIT for cleanup..."


def test_a_port_that_the_server_cannot_bind():
    """It goes on for 10 s, says worse things, and ends with a code of its own."""
    text = """ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 2101): address already in use
requests.exceptions.ReadTimeout: HTTPConnectionPool(host='127.0.0.1', port=2101): Read timed out. (read timeout=10)
[2026-11-30 06:05:49] The server is fired up and ready to roll!
[2026-11-30 06:05:49] kill_process_tree called: parent_pid=10302, include_parent=False, pid=10302
"""
    for code in (3, None):  # None: it is still on its way out
        cause, line = cause_of(Evidence(text=text, exit_code=code))
        assert cause.name == "port-in-use"
        assert "('127.0.0.1', 2101)" in line


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ("nixlNotFoundError: NIXL_ERR_NOT_FOUND", "nixl-plugin-missing"),
        ("nixlBackendError: NIXL_ERR_BACKEND", "nixl-backend-failed"),
    ],
)
def test_a_backend_that_nixl_cannot_make(error, name):
    """The same errors of NIXL mean something else where a transfer has failed."""
    text = f"""    self.backends[backend] = self.agent.createBackend(backend, initParams)
                             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
nixl_cu13._bindings.{error}

[2026-11-30 06:48:03] Received sigquit from a child process. It usually means the child failed.
"""
    for code in (-9, None):
        cause, line = cause_of(Evidence(text=text, exit_code=code))
        assert (cause.name, line) == (name, f"nixl_cu13._bindings.{error}")
    assert name_of(text.replace("createBackend", "postXferReq"), code=-9) is None


def name_of(text, code=1, signs=()):
    cause, _ = cause_of(Evidence(text=text, exit_code=code, signs=frozenset(signs)))
    return cause.name if cause else None


@pytest.mark.parametrize("name", [*SEEN, *WRITTEN])
def test_a_cause_is_known_by_its_line(name):
    code, line = (SEEN | WRITTEN)[name]
    cause, told = cause_of(Evidence(text=f"[2026-01-01] starting\n{line}\n", exit_code=code))
    assert cause.name == name
    assert line.splitlines()[0].startswith(told.partition(" ... (")[0])


def test_unknown_is_an_answer():
    assert name_of("[2026-01-01] starting\nRuntimeError: something else\n") is None
    assert name_of("") is None


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_what_somebody_killed_did_not_die_of_what_its_log_says(signum):
    """It may have survived that for hours."""
    assert name_of("OSError: [Errno 24] Too many open files\n", code=-signum) is None


def test_sglang_kills_itself_after_a_rank_has_failed():
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB\nSIGQUIT received. signum=None\n"
    assert name_of(text, code=-signal.SIGKILL) == "gpu-out-of-memory"
    assert name_of(text, code=None) == "gpu-out-of-memory"


def test_a_rank_that_was_killed_did_not_die_of_what_the_log_says():
    text = "OSError: [Errno 24] Too many open files\n" + DEAD_RANK.format(-9)
    assert name_of(text, code=None) is None


def test_the_oom_killer():
    assert name_of("", code=-9, signs=["oom_killer"]) == "oom-killer"
    assert name_of(DEAD_RANK.format(-9), code=None, signs=["oom_killer"]) == "oom-killer"


def test_shared_memory_that_is_full():
    assert name_of(DEAD_RANK.format(-7), code=None, signs=["shm_full"]) == "shared-memory-full"


def test_a_full_disk_is_named_only_where_the_log_says_nothing():
    assert name_of("", signs=["disk_full"]) == "disk-full-for-logs"
    assert name_of(SEEN["port-in-use"][1], signs=["disk_full"]) == "port-in-use"


def test_of_two_causes_the_later_one_counts():
    first, last = WRITTEN["too-many-files"][1], WRITTEN["gpu-out-of-memory"][1]
    assert name_of(f"{first}\n{last}\n") == "gpu-out-of-memory"


def test_what_ends_nothing_by_itself_counts_last():
    weak = "prefill bootstrap_thread died on engine_rank=0; requests to this rank will time out"
    assert name_of(weak) == "bootstrap-thread-died"
    assert name_of(f"{WRITTEN['gpu-out-of-memory'][1]}\n{weak}\n") == "gpu-out-of-memory"


@given(st.text(max_size=300), st.integers(-31, 255))
def test_no_text_is_too_odd(text, code):
    cause_of(Evidence(text=text, exit_code=code))


@pytest.mark.parametrize("cause", causes().values(), ids=lambda cause: cause.name)
def test_every_cause_can_be_met_and_has_a_fix_and_a_source(cause):
    assert cause.lines or cause.sign
    assert cause.what
    assert cause.fix
    assert cause.source
    assert cause.finding is None or cause.finding in catalogue()


CRASH = Crash(
    process="decode-0",
    host="node-1",
    pid=7,
    how="exit code 1",
    exit_code=1,
    phase="loading",
    after_s=12.3,
    last_lines=("Traceback", "RuntimeError: x"),
    log="/runs/x/logs/decode-0.log",
)


def test_a_report_in_words():
    assert CRASH.text() == "decode-0 died: exit code 1\ncause: unknown\n  | Traceback\n  | RuntimeError: x"
    assert CRASH.fix is None


def test_a_report_for_a_program():
    document = json.loads(json.dumps(CRASH.document()))
    assert (document["process"], document["host"], document["cause"], document["signal"]) == (
        "decode-0",
        "node-1",
        None,
        None,
    )
    assert document["last_lines"] == ["Traceback", "RuntimeError: x"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-signal.SIGKILL, "killed by SIGKILL"),
        (-signal.SIGSEGV, "killed by SIGSEGV"),
        (-200, "killed by signal 200"),
    ],
)
def test_how_a_process_ended(code, words):
    assert ending(code) == words
