"""Slurm 24.11 of Debian 13, which knows NVLink blocks and --segment; Debian 12's own, 22.05, does not.

Nothing is installed: its packages are unpacked into a folder, and its programs are made to find their libraries there.
"""

import shutil
import subprocess
from pathlib import Path

import debian

SUITE = "trixie"
MIRROR = "http://deb.debian.org/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
ASKED = ("slurmctld", "slurmd", "slurm-client")
CLIENTS = ("salloc", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
DAEMONS = ("slurmctld", "slurmd", "slurmstepd")


def unpacked(folder: Path) -> Path:
    """Fetch it into an empty folder: the folder of its programs there. debian.NotInstalled says why that fails."""
    if not shutil.which("patchelf"):
        debian.install("patchelf")
    for package in _downloaded(folder / "apt"):
        _run("dpkg-deb", "--extract", str(package), str(folder))
    shutil.rmtree(folder / "apt")
    (programs := folder / "bin").mkdir(exist_ok=True)
    for name in CLIENTS:
        _at_home(folder / "usr/bin" / name, programs / name)
    for name in DAEMONS:
        _at_home(folder / "usr/sbin" / f"{name}-wlm", programs / name)
    return programs


def plugins(programs: Path) -> Path:
    """Where its plugins are (slurm.conf: PluginDir)."""
    (found,) = programs.parent.glob("usr/lib/*/slurm-wlm")
    return found


def _downloaded(place: Path) -> list[Path]:
    """Its packages, and those of the libraries that they need, down to the C library's.

    To apt it is a machine of its own, of that suite, on which nothing is installed yet.
    """
    for name in ("lists/partial", "cache/archives/partial"):
        (place / name).mkdir(parents=True)
    (place / "status").touch()
    (place / "sources.list").write_text(f"deb [signed-by={KEYRING}] {MIRROR} {SUITE} main\n")
    settings = {
        "Dir::Etc::sourcelist": place / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State::status": place / "status",
        "Dir::State::lists": place / "lists",
        "Dir::Cache": place / "cache",
        "APT::Sandbox::User": "root",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    debian.apt_get(*options, "update")
    debian.apt_get(*options, "install", "-y", "--no-install-recommends", "--download-only", *ASKED)
    return [found for kind in ("slurm", "lib") for found in (place / "cache/archives").glob(f"{kind}*.deb")]


def _at_home(program: Path, copy: Path) -> None:
    """Copy a program so that it takes its loader and its libraries from where it was unpacked, and no variable says so:
    slurmctld starts itself anew as /proc/self/exe, and jobs are not to get those libraries."""
    (loader,) = program.parents[2].glob("usr/lib/*/ld-linux-*.so.*")
    libraries = f"{loader.parent}:{loader.parent}/slurm-wlm"
    where = ("--set-interpreter", str(loader), "--force-rpath", "--set-rpath", libraries)
    _run("patchelf", *where, "--output", str(copy), str(program))
    copy.chmod(0o755)


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise debian.NotInstalled(f"{' '.join(argv)}: {done.stderr.strip()[-500:]}")
