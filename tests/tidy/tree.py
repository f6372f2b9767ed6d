"""The project's files as the tidy tests see them."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Folders that are made on a machine and never belong to the project; used where Git cannot be asked.
MADE_ON_THE_SPOT = {".git", ".venv", ".dev", "data", "build", "dist", "target", "node_modules", "demo-output"}


@functools.cache
def project_files() -> tuple[Path, ...]:
    """Every file of the project: what Git tracks, and what it would offer to track."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
        names = {name for name in listed.decode().split("\0") if name}
    except (OSError, subprocess.CalledProcessError):
        names = set()
        for folder, below, files in os.walk(ROOT):
            below[:] = [name for name in below if name not in MADE_ON_THE_SPOT and not name.endswith("cache")]
            names.update(str(Path(folder, name).relative_to(ROOT)) for name in files)
    return tuple(path for path in sorted(ROOT / name for name in names) if path.is_file())


def relative(path: Path) -> str:
    """The name of a project file as people write it."""
    return path.relative_to(ROOT).as_posix()


def text_of(path: Path) -> str | None:
    """A file's text, or None when it is not text."""
    data = path.read_bytes()
    if b"\0" in data[:8192]:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def python_files(*tops: str) -> list[Path]:
    """The project's Python files below the folders named."""
    return [path for path in project_files() if path.suffix == ".py" and relative(path).split("/")[0] in tops]


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a Python file. Shared between checks: do not change it."""
    return ast.parse(path.read_bytes(), filename=str(path))


def module_name(path: Path) -> str:
    """The name under which a file in src is imported."""
    parts = list(path.relative_to(ROOT / "src").with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def expect_none(lines: Iterable[object]) -> None:
    """Fail a test with every line that a check found, each on its own line and none left out."""
    found = [str(line) for line in lines]
    if found:
        pytest.fail("\n".join([f"{len(found)} found:", *found]), pytrace=False)
