"""What is particular to hosts that ssh reaches: addresses, configuration, connections."""

import asyncio
import gc
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from places import FOREVER, HERE, ssh_place
from ssh_lab import HOSTS
from waiting import until

from disagg_cli.errors import LaunchFailed
from disagg_cli.executors import openssh, sessions
from disagg_cli.executors.openssh import PRIVATE, SINCE_8_7
from disagg_cli.executors.protocol import Site
from disagg_cli.executors.ssh import SshExecutor
from disagg_cli.executors.ssh_connection import _give_up
from disagg_cli.settings import Timeouts
from disagg_cli.topology.deployment import Host


def connections(lab, host):
    """Connections of this disagg's ssh to a host's sshd."""
    there, ours = (HOSTS[host], lab.port), str(openssh.private())
    made = [one for one in psutil.net_connections("tcp4") if tuple(one.raddr) == there and one.pid]
    return [one for one in made if ours in " ".join(psutil.Process(one.pid).cmdline())]


async def test_a_host_has_the_address_that_ssh_connects_to(ssh_lab, tmp_path):
    async with ssh_place(tmp_path, ssh_lab) as here:
        hosts = [replace(here.host, name=name, address=name) for name in HOSTS]
        placed = await here.executor.place(hosts)
        assert {name: host.address for name, host in placed.items()} == HOSTS


async def test_an_address_that_the_topology_gives_stays(ssh_lab):
    site = Site(settings={"config": str(ssh_lab.config), "addresses": {"h1": "10.0.0.1"}})
    assert await SshExecutor(site).place([replace(HERE, name="h1", address="10.0.0.1")]) == {}


async def test_an_ssh_config_that_never_ends(tmp_path):
    """It is as much the user's as the hosts are; a wait for it has an end, and leaves nothing behind."""
    config = tmp_path / "ssh_config"
    config.write_text(f'Match exec "sleep 60; : {tmp_path}"\n  User nobody\n')
    site = Site(settings={"config": str(config)}, timeouts=Timeouts(connect=1.0))
    with pytest.raises(LaunchFailed, match="`ssh -G h1` does not end within 1 s"):
        await SshExecutor(site).place([replace(HERE, name="h1")])
    await until(
        lambda: not [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in _words(one)], within=60
    )


async def test_a_proxy_command_that_never_ends(tmp_path):
    """As ssh to a jump host does that answers nothing: it would outlive the ssh that was given up."""
    (config := tmp_path / "ssh_config").write_text(f'Host *\n  ProxyCommand sh -c "sleep 300; : {tmp_path}"\n')
    executor = SshExecutor(Site(settings={"config": str(config)}, timeouts=Timeouts(ask=1.0)))
    (facts,) = await executor.look([replace(HERE, name="h1")], {}, [])
    await executor.close()
    assert facts.problem == "no answer within 1 s"
    await until(
        lambda: not [one for one in psutil.process_iter(["cmdline"]) if f": {tmp_path}" in _words(one)], within=60
    )


def _words(process):
    return " ".join(process.info["cmdline"] or ())


async def test_an_ssh_config_in_the_home_folder(ssh_lab, tmp_path, monkeypatch):
    """A topology that others use as well cannot name that folder."""
    monkeypatch.setenv("HOME", str(ssh_lab.config.parent))
    settings = {"config": f"~/{ssh_lab.config.name}", "python": sys.executable}
    executor = SshExecutor(Site(settings=settings))
    placed = await executor.place([replace(HERE, name="h1", address="h1")])
    (facts,) = await executor.look([replace(HERE, name="h1")], {}, [])
    await executor.close()
    assert (placed["h1"].address, facts.problem) == (HOSTS["h1"], "")


async def test_one_connection_carries_everything(ssh_lab, tmp_path):
    """Also the questions of another executor of the same disagg, as the check before a launch is."""
    async with ssh_place(tmp_path, ssh_lab) as here:
        for _ in range(3):
            await here.start(FOREVER)
        other = here.again()
        await other.look([here.host], {}, [])
        assert len(connections(ssh_lab, "h1")) == 1
        await other.close()


@pytest.mark.parametrize(
    "does",
    ['printf "Welcome to h1\\n"', 'printf "Welcome to h1, "', "export PYTHONIOENCODING=utf-16"],
    ids=["prints a line", "prints an unfinished line", "sets an encoding"],
)
async def test_what_the_login_shell_does_changes_no_answer(ssh_lab, tmp_path, does):
    noisy = tmp_path / "python"
    noisy.write_text(f'#!/bin/sh\n{does}\nexec "{sys.executable}" "$@"\n')
    noisy.chmod(0o755)
    executor = SshExecutor(Site(settings={"config": str(ssh_lab.config), "python": str(noisy)}))
    (facts,) = await executor.look([replace(HERE, name="h1")], {}, [])
    assert (facts.problem, facts.python) == ("", str(noisy))
    await executor.close()


@pytest.mark.parametrize("jump", [True, False])
async def test_what_only_ssh_reaches(ssh_lab, behind_a_jump_host, jump):
    """Servers there could never be seen to be healthy. It is tried with listeners where they will listen."""
    python = behind_a_jump_host(sys.executable) if jump else sys.executable
    executor = SshExecutor(Site(settings={"config": str(ssh_lab.config), "python": str(python)}))
    host = Host(name="h1", address=HOSTS["h1"], gpus=0, local=False)
    ports = {21900: "prefill-0 http", 21901: "prefill-0 bootstrap", 21902: "router"}
    (facts,) = await executor.look([host], {host: ports, replace(host, address="0.0.0.0"): {21903: "router"}}, [])
    await executor.close()
    assert (facts.problem, facts.unreachable) == ("", {HOSTS["h1"]: (21900, 21902)} if jump else {})
    assert sessions.taken(HOSTS["h1"], ports) == ()


async def test_hosts_that_do_not_reach_each_other(ssh_lab, behind_a_jump_host, tmp_path):
    """h2 has a network of its own: a decode worker there would not get to prefill, nor the router to that."""
    alone = behind_a_jump_host(sys.executable)
    (python := tmp_path / "python").write_text(
        f'#!/bin/sh\n[ "$LAB_HOST" != h2 ] || exec "{alone}" "$@"\nexec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    executor = SshExecutor(Site(settings={"config": str(ssh_lab.config), "python": str(python)}))
    h1, h2, h3 = (Host(name=name, address=address, gpus=0, local=False) for name, address in HOSTS.items())
    ports = {
        h1: {21910: "router", 21911: "prefill-0 http", 21912: "prefill-0 bootstrap"},
        h2: {21913: "decode-0 http"},
        h3: {21914: "decode-1 http"},
    }
    found = await executor.look([h1, h2, h3], ports, [])
    await executor.close()
    for connection in executor._connections.values():
        connection._leave()  # other tests count connections
    assert [(one.problem, one.cut_off) for one in found] == [
        ("", {"h2": {h1.address: (21912,)}}),
        ("", {"h1": {h2.address: (21913,)}}),
        ("", {}),
    ]
    assert [one.unreachable for one in found] == [{}, {h2.address: (21913,)}, {}]
    assert [sessions.taken(host.address, wanted) for host, wanted in ports.items()] == [()] * 3


async def test_hosts_of_one_address(ssh_lab, behind_a_jump_host):
    """As containers that ssh reaches at forwarded ports of this machine: each has its own ports there."""
    python = behind_a_jump_host(sys.executable)
    executor = SshExecutor(Site(settings={"config": str(ssh_lab.config), "python": str(python)}))
    hosts = [Host(name=name, address="127.0.0.1", gpus=0, local=False) for name in ("h1", "h2")]
    ports = dict(zip(hosts, [{21920: "prefill-0 http"}, {21921: "decode-0 http"}], strict=True))
    found = await executor.look(hosts, ports, [])
    await executor.close()
    for connection in executor._connections.values():
        connection._leave()  # other tests count connections
    assert [one.unreachable for one in found] == [{"127.0.0.1": (21920,)}, {"127.0.0.1": (21921,)}]


async def test_a_python_in_the_home_folder_there(ssh_lab, tmp_path):
    with tempfile.TemporaryDirectory(dir=Path.home(), prefix=".disagg test-") as folder:
        (Path(folder) / "python").symlink_to(sys.executable)
        python = f"~/{Path(folder).name}/python"
        executor = SshExecutor(Site(settings={"config": str(ssh_lab.config), "python": python}))
        (facts,) = await executor.look([replace(HERE, name="h1")], {}, [])
        assert (facts.problem, facts.python) == ("", f"{folder}/python")
        await executor.close()


async def test_an_ssh_config_for_a_terminal(ssh_lab, tmp_path):
    """What people have in theirs must not end, hide or detach the connection."""
    settings = {
        "IgnoreUnknown": "UseKeychain",
        "UseKeychain": "yes",
        "LocalForward": f"{ssh_lab.port} localhost:1",  # taken
        "ExitOnForwardFailure": "yes",
        "ControlMaster": "no",
        "ControlPath": "none",
        "RequestTTY": "force",
        "RemoteCommand": "tmux attach",
        "SessionType": "none",
        "StdinNull": "yes",
        "ForkAfterAuthentication": "yes",
        "PermitLocalCommand": "yes",
        "LocalCommand": f"touch {tmp_path}/ran",
        "ConnectionAttempts": "9",
    }
    config = tmp_path / "ssh_config"
    config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()) + ssh_lab.config.read_text())
    with socket.create_server(("127.0.0.1", ssh_lab.port)):
        executor = SshExecutor(Site(settings={"config": str(config), "python": sys.executable}))
        (facts,) = await executor.look([replace(HERE, name="h2")], {}, [])
        assert (facts.problem, len(connections(ssh_lab, "h2"))) == ("", 1)
        await executor.close()
    assert not (tmp_path / "ran").exists()


def test_what_a_killed_disagg_leaves_in_tmp(tmp_path):
    """The sockets of its shared connections; the next one removes them, and nobody else's."""
    code = "from disagg_cli.executors import openssh; print(openssh.private(), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        left = Path(first.stdout.readline().decode().strip())
        first.kill()
    with tempfile.TemporaryDirectory(prefix=PRIVATE, dir="/tmp") as unknown:
        run = subprocess.run([sys.executable, "-c", code], input=b"\n", capture_output=True, check=True)
        assert Path(unknown).exists()
    assert not left.exists()
    assert not Path(run.stdout.decode().strip()).exists()


async def test_no_ssh_here(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    executor = SshExecutor(Site(settings={"addresses": {"h1": "10.0.0.1"}}))
    (facts,) = await executor.look([replace(HERE, name="h1")], {}, [])
    assert (facts.problem.partition(":")[0], facts.fix) == ("ssh cannot be run", "install the OpenSSH client")


def test_an_old_ssh_is_not_asked_for_what_it_does_not_know(ssh_lab, tmp_path, monkeypatch):
    """Before 8.7 it ends with "Bad configuration option"."""
    (tmp_path / "ssh").write_text("#!/bin/sh\nexit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    newer = openssh._newer_options.__wrapped__
    assert newer() == SINCE_8_7
    monkeypatch.setenv("PATH", str(tmp_path))
    assert newer() == {}


async def test_connections_that_are_lost_again_and_again(ssh_lab, tmp_path):
    """How often does not matter, only for how long: a question is asked until there is an answer, or no time left."""
    async with ssh_place(tmp_path, ssh_lab) as here:
        handle = await here.start(FOREVER)
        connection, lost = here.executor._at("h1"), []
        real = connection._exchange

        async def flapping(process, do, what, within):
            if do == "alive" and len(lost) < 5:
                lost.append(do)
                raise ConnectionResetError("cut")
            return await real(process, do, what, within)

        connection._exchange = flapping
        assert await here.executor.survivors(handle) == (handle.pid,)
        assert len(lost) == 5


async def test_a_lost_connection_is_gone_before_there_is_another(ssh_lab, tmp_path):
    """Two questions lose it at once: what the first one tidies up must not be what the second one has just made."""
    async with ssh_place(tmp_path, ssh_lab) as here:
        handle = await here.start(FOREVER)
        connection, order = here.executor._at("h1"), []
        forget, connect = connection._forget_shared, connection._connect

        async def forgetting():
            await asyncio.sleep(0.5)
            await forget()
            order.append("forgotten")

        async def connecting(left):
            order.append("connecting")
            return await connect(left)

        connection._forget_shared, connection._connect = forgetting, connecting
        process = connection._process
        dropping = asyncio.create_task(connection._drop(process, "cut"))
        await asyncio.sleep(0)
        assert await here.executor.survivors(handle) == (handle.pid,)
        await dropping
        assert order == ["forgotten", "connecting"]


async def test_a_connection_that_breaks_under_a_question_prints_nothing(ssh_lab, tmp_path):
    """Its pipe breaks and its answer fails in the same moment; asyncio would say so on the user's screen."""
    said = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["message"]))
    async with ssh_place(tmp_path, ssh_lab) as here:
        handle = await here.start(FOREVER)
        connection = here.executor._at("h1")

        async def breaks():
            connection._fail("cut")
            raise ConnectionResetError("Connection lost")

        connection._process.stdin.drain = breaks
        assert await here.executor.survivors(handle) == (handle.pid,)
        gc.collect()
        assert said == []


async def test_the_end_of_an_ssh_that_is_given_up_is_asyncios_to_find():
    """Where somebody else is faster, it says so on the screen."""
    process = await asyncio.create_subprocess_exec("sleep", "60", stdin=subprocess.PIPE, start_new_session=True)
    looks = []
    process._transport.get_extra_info("subprocess").poll = lambda: looks.append("looked")
    await _give_up(process)
    assert (process.returncode, looks) == (-signal.SIGKILL, [])


async def test_a_look_that_is_cancelled_waits_for_the_end_of_every_ssh(ssh_lab, tmp_path):
    """Afterwards there may be no event loop that could."""
    executor = SshExecutor(Site(settings={"config": str(ssh_lab.config), "python": sys.executable}))
    looking = asyncio.create_task(executor.look([replace(HERE, name=name) for name in HOSTS], {}, []))
    await until(lambda: len([one for one in psutil.Process().children() if one.name() == "ssh"]) == len(HOSTS))
    looking.cancel()
    await asyncio.wait([looking])
    left = asyncio.all_tasks() - {asyncio.current_task()}
    await executor.close()
    assert left == set()


PYTHON = "executor.ssh.python"


@pytest.mark.parametrize(
    ("change", "problem", "fix"),
    [
        ({"PubkeyAuthentication": "no"}, "Permission denied", "ssh-add"),
        ({"UserKnownHostsFile": "/dev/null"}, "Host key verification failed", "ssh h1 true"),
        ({"Port": "1"}, "Connection refused", "its sshd"),
        ({"HostName": "nobody.invalid"}, "Could not resolve hostname", "correct the name"),
        ({"Nonsense": "yes"}, "Bad configuration option: nonsense", "correct the ssh_config"),
    ],
)
async def test_why_a_host_cannot_be_reached(ssh_lab, tmp_path, change, problem, fix):
    """In ssh's words, with what to do."""
    config = tmp_path / "ssh_config"
    config.write_text("".join(f"{name} {value}\n" for name, value in change.items()) + ssh_lab.config.read_text())
    executor = SshExecutor(Site(settings={"config": str(config), "python": sys.executable}))
    (facts,) = await executor.look([replace(HERE, name="h1")], {}, [])
    await executor.close()
    assert problem in facts.problem
    assert fix in facts.fix


@pytest.mark.parametrize(
    ("said", "problem", "fix"),
    [
        ("echo This account is not available; exit 1", "This account is not available", "see what `ssh h1 true` says"),
        (
            "echo '  File \"<string>\", line 1' >&2; echo 'SyntaxError: invalid syntax' >&2; exit 1",
            "SyntaxError",
            PYTHON,
        ),
        ("exec /etc/passwd", "/etc/passwd: Permission denied", PYTHON),
        (
            "printf 'fish: Unknown command: python4\\nfish: \\nexec python4\\n     ^~~~~~^\\n' >&2; exit 127",
            "Unknown command",
            PYTHON,
        ),
        ("echo 'rbash: line 1: exec: restricted' >&2; exit 127", "exec: restricted", "whose shell is not a restricted"),
        (f"read -r _; exec '{sys.executable}' \"$@\"", "a start-up file of the login shell reads", "~/.bashrc on h1"),
    ],
    ids=["nologin", "an old Python", "no program", "fish", "a restricted shell", "a start-up file that reads"],
)
async def test_why_there_is_no_python_there(ssh_lab, tmp_path, said, problem, fix):
    """In the words of whatever stands in its place, which may take more than the last line, or the output."""
    (python := tmp_path / "python").write_text(f"#!/bin/sh\n{said}\n")
    python.chmod(0o755)
    executor = SshExecutor(Site(settings={"config": str(ssh_lab.config), "python": str(python)}))
    (facts,) = await executor.look([replace(HERE, name="h1")], {}, [])
    await executor.close()
    assert problem in facts.problem
    assert fix in facts.fix


async def test_letting_go_of_a_host_does_not_read_the_ssh_config(ssh_lab, tmp_path):
    """It may take its time, for each host: the socket is all that is needed."""
    config, asked = tmp_path / "ssh_config", tmp_path / "asked"
    config.write_text(f'Match exec "echo >> {asked}"\n' + ssh_lab.config.read_text())
    executor = SshExecutor(Site(settings={"config": str(config), "python": sys.executable}))
    await executor.look([replace(HERE, name="h1")], {}, [])
    connection, before = executor._at("h1"), asked.read_text()
    await executor.close()

    def shares():
        return [one for one in psutil.process_iter(["cmdline"]) if f"{connection._socket} [mux]" in _words(one)]

    assert shares()
    connection._leave()
    await until(lambda: not shares(), within=60)
    assert asked.read_text() == before
