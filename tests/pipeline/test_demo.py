"""The demo from end to end, small: it ends well, it leaves nothing running, and it sees what is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("rocketmq", reason="the unmodified C++ client exists for Linux on x86-64 only")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]


def demo(out: Path, events: int, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / "demo" / "run.py"), "--events", str(events), "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=out.parent,
        env={**os.environ, **environment},
    )


def test_all_of_it_with_an_empty_home(tmp_path):
    out = tmp_path / "demo out"
    process = demo(out, 1000, HOME="")
    said, _ = process.communicate()
    assert process.returncode == 0, said
    for text in (
        "1,000 acknowledged",
        "none lost, none twice",
        "QUERY_MESSAGE",
        "1,000 tasks done",
        "exit code 0",
        "from the cold tier",
        "just what was sent",
    ):
        assert text in said
    assert "Traceback" not in said
    assert json.loads((out / "report.json").read_text())["messages"] == 1000
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir()] == ["demo out"]


def test_ctrl_c_ends_everything(tmp_path):
    out = tmp_path / "out"
    process = demo(out, 100_000)
    ready = out / "logs" / "ready.json"
    deadline = time.monotonic() + 200
    while not ready.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    started = psutil.Process(process.pid).children(recursive=True)
    while len(started) < 5 and time.monotonic() < deadline:  # the broker and four senders
        time.sleep(0.05)
        started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert len(started) == 5
    assert [child for child in started if child.is_running() and child.status() != psutil.STATUS_ZOMBIE] == []
