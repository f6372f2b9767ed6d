"""What ``pip install stratamq`` brings: the package with its types, the Spark entry module, the command, no more."""

from __future__ import annotations

import subprocess
import sys
import zipfile

from tests.tidy.tree import ROOT, expect_none, python_files


def misfits(names: list[str], wanted: set[str]) -> list[str]:
    """Name what a wheel lacks, and what it holds besides the package's own files."""
    held = {name for name in names if ".dist-info/" not in name}
    strangers = {name for name in held - wanted if not name.startswith("stratamq/")}
    return [f"lacks {name}" for name in sorted(wanted - held)] + [f"holds {name}" for name in sorted(strangers)]


def test_the_wheel_holds_the_package(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        (entry_points,) = (wheel.read(name).decode() for name in names if name.endswith("/entry_points.txt"))
    source = {file.relative_to(ROOT / "src").as_posix() for file in python_files("src")}
    expect_none(misfits(names, source | {"stratamq/py.typed"}))
    assert "stratamq = stratamq.cli.main:main" in entry_points
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_a_misfit_is_caught():
    names = ["stratamq/__init__.py", "stratamq/console/page.html", "tests/test_x.py", "stratamq-1.dist-info/RECORD"]
    assert misfits(names, {"stratamq/__init__.py", "stratamq/py.typed"}) == [
        "lacks stratamq/py.typed",
        "holds tests/test_x.py",
    ]
