"""The watch in tests/conftest.py sees threads, processes and log handlers that a test leaves behind."""

from __future__ import annotations

import subprocess
import sys

from tests.tidy.tree import ROOT

CASES = """
import logging, subprocess, sys, threading, time
import pytest

STOP = threading.Event()
SLEEPER = [sys.executable, "-c", "import time; time.sleep(40)"]

def test_clean():
    worker = threading.Thread(target=time.sleep, args=(0.2,))
    worker.start()
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()

def test_thread():
    threading.Thread(target=STOP.wait, args=(40,), name="stray", daemon=True).start()

def test_process():
    global child
    child = subprocess.Popen(SLEEPER)

def test_log():
    logging.basicConfig(level="INFO", handlers=[logging.StreamHandler()], force=True)

def test_after_the_stray_ones():
    assert logging.root.level == logging.WARNING
    assert not [one for one in logging.root.handlers if "pytest" not in type(one).__module__]
    STOP.set()
    child.kill()
    child.wait()

@pytest.fixture(scope="module")
def broker():
    global kept
    kept = subprocess.Popen(SLEEPER)
    yield

def test_process_of_a_wider_scope(broker):
    pass
"""


def test_what_is_left_behind_is_found(tmp_path):
    text = (
        (ROOT / "tests/conftest.py").read_text(encoding="utf-8").replace("GRACE_SECONDS = 30.0", "GRACE_SECONDS = 1.0")
    )
    (tmp_path / "conftest.py").write_text(text, encoding="utf-8")
    (tmp_path / "test_cases.py").write_text(CASES, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    said = done.stdout
    assert done.returncode == 1, said + done.stderr
    for name in ("thread", "process", "log"):
        assert f"ERROR test_cases.py::test_{name} " in said
    for name in ("clean", "after_the_stray_ones", "process_of_a_wider_scope"):
        assert f"PASSED test_cases.py::test_{name}\n" in said
        assert f"ERROR test_cases.py::test_{name} " not in said
    assert "the test left behind: thread 'stray'" in said
    assert "the test left behind: log handler <StreamHandler" in said
    assert "the run left behind: process" in said
