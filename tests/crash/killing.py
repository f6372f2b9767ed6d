"""Victims that say on their output what they have done, and are killed in the middle of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_and_kill(module: str, directory: Path, seed: int, first_ms: int, lines_before_death: int) -> list[list[str]]:
    """Run ``tests.crash.MODULE``, kill -9 it after so many lines; return the words of all that it got out.

    The victim is given its directory, a seed and the time its clock begins at; its first line is ``ready``.
    """
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", f"tests.crash.{module}", str(directory), str(seed), str(first_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as victim:
        assert victim.stdout is not None
        lines = []
        for line in victim.stdout:
            lines.append(line)
            if len(lines) > lines_before_death:
                victim.kill()
        victim.wait()
    assert victim.returncode == -signal.SIGKILL
    assert lines[0] == "ready\n"
    return [line.split() for line in lines[1:] if line.endswith("\n")]
