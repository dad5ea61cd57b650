"""Debian's packages for the labs, installed where they are missing, and no service started."""

import os
import shutil
import subprocess
from pathlib import Path

NO_SERVICES = Path("/usr/sbin/policy-rc.d")


class NotInstalled(Exception):
    """A package cannot be had here, and why."""


def install(*packages: str) -> None:
    """Install packages. Needs root; NotInstalled where there is no apt, or it fails."""
    if ours := not NO_SERVICES.exists():
        NO_SERVICES.write_text("#!/bin/sh\nexit 101\n")
        NO_SERVICES.chmod(0o755)
    try:
        apt_get("update")
        apt_get("install", "-y", "--no-install-recommends", *packages)
    finally:
        if ours:
            NO_SERVICES.unlink()


def apt_get(*words: str) -> None:
    """Run apt-get, which asks nothing then. NotInstalled says why it failed."""
    if not shutil.which("apt-get"):
        raise NotInstalled(f"no apt-get to {' '.join(words)}")
    argv = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", *words]
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise NotInstalled(f"{' '.join(argv)}: {done.stderr.strip()[-500:]}")
