"""A throw-away Slurm cluster on this machine, for tests: Debian's slurmctld, and nodes that are namespaces.

Each node has a host name, a network, process ids and a /dev/shm of its own; the file system is shared, as on a real
cluster, and so is a small disk. GPUs are links to /dev/null. Nothing outlives the process that started the lab: every
daemon dies with it. Needs root, and apt where Slurm is not installed yet.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import debian
from slurm_newer import plugins

PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "ip": "iproute2",
    "pgrep": "procps",
    "hostname": "hostname",
}
GPUS, CPUS = 4, 16
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")
NAMESPACES = ("--uts", "--mount", "--pid", "--net")
NODE = ("unshare", *NAMESPACES, "--fork", "--kill-child=KILL", "--mount-proc")
MYSELF = (sys.executable, "-S", "-E", __file__)

CONF = """\
ClusterName=lab{id}
SlurmctldHost=ctl({subnet}.254)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/spool/%n.pid
MailProg=/bin/true
ProctrackType=proctrack/{track}
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=4
WaitTime=0
InactiveLimit=0
SlurmdTimeout=10
SlurmctldTimeout=10
UnkillableStepTimeout=60
MinJobAge=300
EnforcePartLimits=ALL
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
"""


class NoLab(Exception):
    """There can be no lab here, and why."""


@dataclass
class Lab:
    """A running cluster. nodes: their names. programs: the folder of another Slurm than this machine's."""

    id: int
    folder: Path
    nodes: tuple[str, ...]
    programs: Path | None = None
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    inits: dict[str, int] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        """slurm.conf."""
        return self.folder / "slurm.conf"

    @property
    def small_disk(self) -> Path:
        """A folder on a disk of 4 MiB that all machines share."""
        return self.folder / "small-disk"

    @property
    def env(self) -> dict[str, str]:
        """What its clients need."""
        found = {"SLURM_CONF": str(self.conf)}
        return found | {"PATH": f"{self.programs}:{os.environ['PATH']}"} if self.programs else found

    @property
    def bridge(self) -> str:
        """The network of all nodes, and of this machine, which is the login node."""
        return f"slab{self.id}"

    def address(self, node: str) -> str:
        """The address of a node; of the controller and the login node for any other name."""
        return f"198.18.{100 + self.id}.{self.nodes.index(node) + 1 if node in self.nodes else 254}"

    def run(self, *argv: str | Path, within: float = 30) -> str:
        """Run a client of this cluster and return what it prints."""
        env = os.environ | self.env
        done = subprocess.run([*map(str, argv)], env=env, capture_output=True, text=True, timeout=within, check=False)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def on(self, node: str, *argv: str) -> str:
        """Run a program in a node, outside of any job."""
        return self.run("nsenter", "-t", str(self.inits[node]), *NAMESPACES, "--", *argv)

    def jobs(self) -> dict[str, str]:
        """Every job that has not ended, with its state."""
        return dict(line.split() for line in self.run("squeue", "-h", "-o", "%A %T").splitlines())

    def job(self, number: str) -> dict[str, str]:
        """What the controller knows of a job."""
        text = self.run("scontrol", "show", "job", "-o", number)
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def processes(self) -> list[tuple[str, str]]:
        """(node, command line) of whatever runs in the nodes beside their slurmd; zombies left out."""
        found = []
        for node in self.inits:
            for line in self.on(node, "ps", "-eo", "pid=,stat=,args=").splitlines():
                pid, stat, args = line.split(None, 2)
                if pid != "1" and stat[0] != "Z" and not args.startswith(("slurmd ", "ps ", "[", "/usr/sbin/slurmd ")):
                    found.append((node, args))
        return found

    def idle(self) -> bool:
        """Whether every node waits for work."""
        return set(self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split()) == set(self.nodes)

    def empty(self) -> None:
        """End all jobs, and bring back nodes that have crashed."""
        for job in self.jobs():
            subprocess.run(["scancel", job.partition("+")[0]], env=os.environ | self.env, check=False)
        for node in set(self.nodes) - set(self.inits):
            _wait(lambda node=node: "DOWN" in self.run("scontrol", "show", "node", node), 90, f"{node} to be down")
            self.boot(node)
        _wait(lambda: not self.jobs() and self.idle(), 60, "an idle cluster")

    def boot(self, node: str) -> None:
        """Start a node."""
        (self.folder / "spool" / node).mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{node}.log").open("ab") as log:
            outer = subprocess.Popen(
                [*DIE_WITH_PARENT, *NODE, *MYSELF, str(self.folder), node, f"{self.address(node)}/24"],
                stdin=subprocess.DEVNULL,
                env=os.environ | self.env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        _wait(lambda: children.exists() and children.read_text(), 20, f"{node}'s namespaces")
        init = int(children.read_text())
        link = f"{self.bridge}-{self.nodes.index(node)}"
        _no_link(link)  # of a lab that was killed
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(init))
        _ip("link", "set", link, "master", self.bridge, "up")
        self.running[node], self.inits[node] = outer, init

    def crash(self, node: str) -> None:
        """Pull a node's plug."""
        os.kill(self.inits.pop(node), signal.SIGKILL)
        self.running.pop(node).wait(20)
        _no_link(f"{self.bridge}-{self.nodes.index(node)}")

    def start(self, name: str, *argv: str) -> None:
        """Start a daemon of the controller's machine."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*DIE_WITH_PARENT, *argv],
                stdin=subprocess.DEVNULL,
                env=os.environ | self.env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


@contextlib.contextmanager
def lab(count: int = 3, *, programs: Path | None = None, block: int = 0):
    """A cluster of so many nodes, while the body runs. NoLab says why there can be none.

    programs: of another Slurm than this machine's (slurm_newer.py). block: so many nodes in a row are an NVLink domain.
    """
    _require()
    folder = Path(tempfile.mkdtemp(prefix="slab-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        number = _own_number(stack)
        one = Lab(number, folder, tuple(f"s{number}n{i + 1}" for i in range(count)), programs)
        stack.callback(_down, one)
        _write_conf(one, block)
        _up(one)
        yield one


def _require() -> None:
    if os.geteuid() != 0:
        raise NoLab("a Slurm cluster in namespaces needs root")
    if missing := [package for program, package in PACKAGES.items() if not shutil.which(program)]:
        try:
            debian.install(*missing)
        except debian.NotInstalled as why:
            raise NoLab(str(why)) from None
    tried = subprocess.run(
        ["unshare", *NAMESPACES, "--fork", "--mount-proc", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        raise NoLab(f"no namespaces here: {tried.stderr.strip()}")


def _own_number(stack: contextlib.ExitStack) -> int:
    """A number that no other lab of this machine has: its network, port and cgroups are named by it."""
    for number in range(100):
        lock = os.open(f"/tmp/slab-{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        stack.callback(os.close, lock)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return number
    raise NoLab("a hundred labs are up")


def _up(one: Lab) -> None:
    folder = one.folder
    one.small_disk.mkdir()
    _must("mount", "-t", "tmpfs", "-o", "size=4m", "small", str(one.small_disk))  # nodes have it from their start
    _no_link(one.bridge)  # of a lab that was killed
    _ip("link", "add", one.bridge, "type", "bridge")
    _ip("addr", "add", f"{one.address('ctl')}/24", "dev", one.bridge)
    _ip("link", "set", one.bridge, "up")
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    files = {name: f"{folder}/munge/{name}" for name in ("key", "log", "pid", "seed")}
    options = [f"--{name}-file={file}" for name, file in files.items()]
    one.start("munged", "munged", "--foreground", "--force", f"--socket={folder}/munge/socket", *options)
    _wait((folder / "munge" / "socket").exists, 20, "munged")
    one.start("slurmctld", "unshare", "--uts", *MYSELF, "ctl", "slurmctld", "-D", "-f", str(one.conf))
    for node in one.nodes:
        one.boot(node)
    _wait(lambda: _answers(one) and one.idle(), 60, "an idle cluster")


def _answers(one: Lab) -> bool:
    env = os.environ | one.env
    return subprocess.run(["sinfo", "-h"], env=env, capture_output=True, timeout=60, check=False).returncode == 0


def _write_conf(one: Lab, block: int) -> None:
    one.folder.chmod(0o755)
    for name in ("state", "spool", "dev", "munge"):
        (one.folder / name).mkdir(mode=0o755)
    folder, names = one.folder, ",".join(one.nodes)
    freezer = Path("/sys/fs/cgroup/freezer")
    track = "cgroup" if freezer.is_dir() and os.access(freezer, os.W_OK) else "linuxproc"
    conf = CONF.format(id=one.id, subnet=f"198.18.{100 + one.id}", port=26000 + one.id, folder=folder, track=track)
    shape = f"CPUs={CPUS} Boards=1 SocketsPerBoard=1 CoresPerSocket={CPUS} ThreadsPerCore=1 RealMemory=4000"
    for node in one.nodes:
        conf += f"NodeName={node} NodeAddr={one.address(node)} Port=6818 {shape} Gres=gpu:{GPUS} State=UNKNOWN\n"
    conf += f"PartitionName=gpu Nodes={names} Default=YES PriorityTier=1\n"
    conf += f"PartitionName=urgent Nodes={names} PriorityTier=2\n"
    if one.programs:
        conf += f"PluginDir={plugins(one.programs)}\n"
    if block:
        conf += "TopologyPlugin=topology/block\n"
        blocks = [",".join(one.nodes[first : first + block]) for first in range(0, len(one.nodes), block)]
        lines = [f"BlockName=b{number} Nodes={nodes}\n" for number, nodes in enumerate(blocks)]
        (folder / "topology.conf").write_text("".join(lines) + f"BlockSizes={block}\n")
    one.conf.write_text(conf)
    for gpu in range(GPUS):
        (folder / "dev" / f"nvidia{gpu}").symlink_to("/dev/null")
    (folder / "gres.conf").write_text(f"NodeName={names} Name=gpu File={folder}/dev/nvidia[0-{GPUS - 1}]\n")
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n")
    hosts = "".join(f"{one.address(name)} {name}\n" for name in (*one.nodes, "ctl"))
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + hosts)
    (folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")


def _down(one: Lab) -> None:
    for node in list(one.inits):
        one.crash(node)
    for name in ("slurmctld", "munged"):
        if daemon := one.running.get(name):
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait(10)
    _no_link(one.bridge)
    subprocess.run(["umount", "--lazy", one.small_disk], capture_output=True, check=False)
    for groups in Path("/sys/fs/cgroup").glob(f"*/slurm_s{one.id}n*"):  # a node that crashes leaves empty ones
        for group in sorted(groups.glob("**/"), reverse=True):
            with contextlib.suppress(OSError):
                group.rmdir()


def _no_link(name: str) -> None:
    subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)


def _ip(*words: str) -> None:
    _must("ip", *words)


def _must(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoLab(f"{' '.join(argv)}: {done.stderr.strip()}")


def _wait(true, within: float, what: str) -> None:
    deadline = time.monotonic() + within
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} after {within} s")
        time.sleep(0.05)


def _be_a_node(folder: str, name: str, address: str) -> None:
    """Process 1 of a node: give it a name and a network, start slurmd, and reap whatever is orphaned here."""
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run(["hostname", name], **quiet)
    for file in ("hosts", "nsswitch.conf"):
        Path("/etc", file).touch()
        subprocess.run(["mount", "--bind", f"{folder}/{file}", f"/etc/{file}"], **quiet)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm"], **quiet)
    _wait(lambda: "eth0" in Path("/proc/net/dev").read_text(), 20, "eth0")
    for words in (["link", "set", "lo", "up"], ["addr", "add", address, "dev", "eth0"], ["link", "set", "eth0", "up"]):
        subprocess.run(["ip", *words], **quiet)
    own = ["-N", name, "-f", f"{folder}/slurm.conf", "-d", str(shutil.which("slurmstepd"))]
    slurmd = subprocess.Popen(["slurmd", "-D", "-b", *own])
    while os.wait()[0] != slurmd.pid:
        pass


if __name__ == "__main__":
    if sys.argv[1] == "ctl":
        subprocess.run(["hostname", "ctl"], check=True)
        os.execvp(sys.argv[2], sys.argv[2:])
    _be_a_node(*sys.argv[1:])
