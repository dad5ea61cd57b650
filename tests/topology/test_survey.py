"""Whether the places where servers will listen are reached."""

from pathlib import Path

import pytest

from disagg_cli.topology import survey

HOSTS = 200


@pytest.mark.skipif(int(Path("/proc/sys/net/core/somaxconn").read_text()) < HOSTS, reason="the kernel allows no more")
def test_a_listener_that_many_hosts_connect_to():
    """Prefill's bootstrap server is asked by every host of decode workers, and nobody accepts while that is tried."""
    with survey.listen("127.0.0.1", 0) as listener:
        where = {"127.0.0.1": [listener.getsockname()[1]]}
        assert all(survey.unreached(where, 10) == {} for _ in range(HOSTS))


def test_a_place_where_nobody_listens():
    with survey.listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    assert survey.unreached({"127.0.0.1": [port]}, 10) == {"127.0.0.1": [port]}
