"""Packages of npm for tests: installed from a lock file into the cache of the interop tests, outside the repository."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.interop.rocketmq_java.runner import cache_dir

INSTALL_SECONDS = 120.0


def installed(here: Path) -> Path:
    """Folder of node packages for a folder with package.json and its lock; installs them once for each lock file.

    Skips the test where that cannot be, and says what is missing.
    """
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.skip(f"{here.name} cannot run here: {tool} is not installed")
    digest = hashlib.sha256((here / "package-lock.json").read_bytes()).hexdigest()[:16]
    folder = cache_dir() / f"{here.name}-{digest}"
    with (cache_dir() / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            for name in ("package.json", "package-lock.json"):
                shutil.copy(here / name, partial)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            try:
                done = subprocess.run(command, cwd=partial, capture_output=True, text=True, timeout=INSTALL_SECONDS)
            except subprocess.TimeoutExpired:
                pytest.skip(f"{here.name} cannot run here: npm gave no packages within {INSTALL_SECONDS:.0f} s")
            if done.returncode != 0:
                pytest.skip(f"{here.name} cannot run here: npm ci failed: {done.stderr.strip()[-300:]}")
            partial.rename(folder)
    return folder / "node_modules"
