"""``stratamq serve`` as a process: what it writes, how it ends, what it refuses."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from stratamq.cli.serve import LineFormatter
from tests.interop.broker_process import ROOT, BrokerProcess


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end, which must come by itself."""
    return subprocess.run(
        [sys.executable, "-m", "stratamq.cli.serve", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


FREE = ("--namesrv-port=0", "--broker-port=0", "--http-port=0")


def test_it_serves_and_stops_in_order(tmp_path):
    broker = BrokerProcess(tmp_path)
    with broker:
        assert broker.addresses.keys() - {"amqp"} == {"namesrv", "broker", "http"}
        with urllib.request.urlopen(f"http://{broker.addresses['http']}/healthz", timeout=100) as answer:
            assert answer.read() == b"ok\n"
        assert (broker.data_dir / "abort").exists()
        assert broker.stop() == 0
    assert not (tmp_path / "ready.json").exists()
    assert not (broker.data_dir / "abort").exists()
    lines = broker.log().splitlines()
    assert "ready: name server 127.0.0.1:" in lines[-3]
    assert lines[-1].endswith("stopped")


def test_a_second_one_on_the_same_directory_or_port_says_why(tmp_path):
    with BrokerProcess(tmp_path) as broker:
        done = run(f"--data-dir={broker.data_dir}", *FREE)
        assert done.returncode == 3
        assert broker.process is not None
        assert f"is in use by process {broker.process.pid}" in done.stderr
        port = broker.addresses["broker"].rpartition(":")[2]
        done = run(f"--data-dir={tmp_path / 'other'}", "--namesrv-port=0", "--http-port=0", f"--broker-port={port}")
        assert done.returncode == 1
        assert f"port {port} on 127.0.0.1 is in use" in done.stderr
        assert "--broker-port" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_broker_conf_is_read_as_it_is(tmp_path):
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=broker-z\nlistenPort=0\nfileReservedTime=48\nbrokerIP1=127.0.0.2\nnovelty=1\n")
    with BrokerProcess(tmp_path, f"--config={conf}", "--amqp-port=0") as broker:  # somebody else may have 5672
        with urllib.request.urlopen(f"http://{broker.addresses['http']}/api/v1/overview") as got:
            overview = json.load(got)
        assert overview["broker"] == "broker-z"
        assert broker.addresses["broker"].startswith("127.0.0.2:")
    assert "keys without effect here: novelty" in broker.log()
    assert broker.log().count("WARNING") == 1


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("flushDiskType=FAST", "allowed: SYNC_FLUSH or ASYNC_FLUSH"),
        ("maxMessageSize=1", "allowed: at least 10"),
        ("brokerRole=SLAVE", "allowed: 1 or more for brokerRole=SLAVE"),
        ("brokerRole=SLAVE\nbrokerId=1", "a slave runs as stratamq broker"),
    ],
)
def test_a_bad_value_is_refused_with_the_allowed_form(tmp_path, line, text):
    conf = tmp_path / "broker.conf"
    conf.write_text(line + "\n")
    done = run(f"--data-dir={tmp_path / 'data'}", f"--config={conf}", *FREE)
    assert (done.returncode, text in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "data").exists()


def test_bad_flags_are_refused(tmp_path):
    assert run(f"--data-dir={tmp_path}", "--broker-port=99999").returncode == 2
    assert run(f"--data-dir={tmp_path}", "--host=localhost", *FREE).returncode == 2
    done = run(*FREE)
    assert (done.returncode, "--data-dir" in done.stderr) == (2, True)
    assert run(f"--data-dir={tmp_path}", f"--config={tmp_path / 'none'}", *FREE).returncode == 2


def test_a_directory_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    done = run(f"--data-dir={tmp_path / 'file' / 'data'}", *FREE)
    assert done.returncode == 1
    assert str(tmp_path / "file") in done.stderr
    assert "Traceback" not in done.stderr


def test_the_store_directory_may_stand_in_the_file(tmp_path):
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={tmp_path / 'elsewhere'}\nflushDiskType=FAST\n")
    assert run(f"--config={conf}", *FREE).returncode == 2
    assert Path(tmp_path / "elsewhere").exists() is False


def test_half_open_connections_do_not_keep_it_from_stopping(tmp_path):
    with BrokerProcess(tmp_path) as broker:
        socks = []
        for name in ("namesrv", "broker", "http"):
            host, _, port = broker.addresses[name].rpartition(":")
            socks.append(socket.create_connection((host, int(port))))
            socks[-1].sendall(b"\x00\x00")
        assert broker.stop() == 0
        for sock in socks:
            sock.close()


def test_a_log_record_stays_one_line():
    import logging

    record = logging.LogRecord("n", logging.INFO, "p", 1, "a\nb\r%s", ("c\nd",), None)
    assert "\n" not in LineFormatter().format(record)
    assert "a\\nb\\rc\\nd" in LineFormatter().format(record)
