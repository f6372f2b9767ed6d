"""AMQP clients that are not Python: amqplib (npm) and librabbitmq's command-line tools (Debian), unmodified."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.broker_process import BrokerProcess
from tests.interop.node_packages import installed

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
HERE = Path(__file__).with_name("amqplib")
SECONDS = 150


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker's AMQP address."""
    with BrokerProcess(tmp_path_factory.mktemp("amqp"), "--amqp-port=0") as broker:
        yield f"amqp://guest:guest@{broker.addresses['amqp']}"


def amqplib(url: str, job: str) -> Any:
    """What one job of the driver prints."""
    done = subprocess.run(
        ["node", str(HERE / "driver.js"), url, job],
        env={**os.environ, "NODE_PATH": str(installed(HERE))},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_amqplib_confirms_consumes_and_keeps_the_order(url):
    assert amqplib(url, "work") == list(range(500))


def test_amqplib_calls_and_is_answered(url):
    assert amqplib(url, "rpc") == ["HELLO", "7"]


def test_amqplib_is_told_what_is_wrong(url):
    assert amqplib(url, "errors") == [312, 406, 0]


def test_amqplib_finds_what_was_rejected(url):
    assert amqplib(url, "dead") == ["bad", "rejected", "node-src", 1]


def test_amqplib_reads_a_stream_twice(url):
    assert amqplib(url, "stream") == [list(range(20))] * 2


TOOLS = ("amqp-declare-queue", "amqp-publish", "amqp-get", "amqp-consume", "amqp-delete-queue")
needs_tools = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in TOOLS), reason="Debian's amqp-tools are not installed"
)


def tool(url: str, name: str, *words: str, code: int = 0, data: bytes = b"") -> bytes:
    """What a tool prints."""
    done = subprocess.run([name, "-u", url, *words], input=data, capture_output=True, check=False, timeout=SECONDS)
    assert done.returncode == code, done.stderr
    return done.stdout


@needs_tools
def test_librabbitmq_tools_declare_publish_get_consume_and_delete(url):
    assert tool(url, "amqp-declare-queue", "-d", "-q", "tools").strip() == b"tools"
    for text in ("one", "two", "three"):
        tool(url, "amqp-publish", "-r", "tools", "-p", "-b", text)
    assert tool(url, "amqp-get", "-q", "tools") == b"one"
    assert tool(url, "amqp-consume", "-q", "tools", "-c", "2", "cat") == b"twothree"
    tool(url, "amqp-get", "-q", "tools", code=2)  # there is nothing
    large = os.urandom(300_000).hex().encode()
    tool(url, "amqp-publish", "-r", "tools", "-p", data=large)
    assert tool(url, "amqp-get", "-q", "tools") == large
    assert tool(url, "amqp-delete-queue", "-q", "tools").strip() == b"0"
    tool(url, "amqp-get", "-q", "tools", code=1)
