"""The queue-store commands as a script sees them, on a golden store that nothing may change."""

from __future__ import annotations

import json
import os

import pytest

from stratamq.cli.queue_store import COMMANDS
from stratamq.queuestore.store import QueueStore
from stratamq.server.definitions_file import DefinitionsFile
from stratamq.testing.clock import ManualClock
from tests.golden.archives import GOLDEN, unpack_store
from tests.golden.queue_store import CONFIG, files_of, make
from tests.unit.cli.test_store_commands import run, run_json


@pytest.fixture
def data(tmp_path):
    """A data directory with the golden store and definitions that name its queues."""
    (tmp_path / "amqp").mkdir()
    unpack_store("queue-store", tmp_path / "amqp")
    rows = [
        {"vhost": "/", "name": "orders", "durable": True, "arguments": {"x-max-priority": 1}},
        {"vhost": "/", "name": "invoices", "durable": True, "arguments": {}},
        {"vhost": "test", "name": "orders", "durable": True, "arguments": {}},
    ]
    DefinitionsFile(tmp_path / "amqp").store({"queues": rows})
    return tmp_path


def golden(name: str, data) -> object:
    """What a command said when the archive was made."""
    text = (GOLDEN / "queue-store" / name).read_text()
    return json.loads(text.replace("DATA", str(data)))


def test_the_archive_is_what_its_script_makes(tmp_path):
    make(tmp_path / "new")
    unpack_store("queue-store", tmp_path)
    new, old = files_of(tmp_path / "new"), files_of(tmp_path / "store")
    assert new.keys() == old.keys()
    for files in (new, old):
        del files["manifest"]  # it holds compressed bits, and builds of zlib compress differently
    assert new == old


@pytest.mark.parametrize("verb", ["inspect", "check"])
def test_the_golden_store_is_described_as_it_was(capsys, data, verb):
    before = files_of(data)
    code, (answer,), _ = run_json(capsys, "queue-store", verb, data)
    assert code == 0
    assert answer == golden(f"{verb}.json", data)
    assert files_of(data) == before
    for place in (data / "amqp", data / "amqp" / "store"):
        assert run_json(capsys, "queue-store", verb, place)[1] == [answer]


def test_inspect_says_what_a_start_finds(capsys, data):
    _, (answer,), _ = run_json(capsys, "queue-store", "inspect", data)
    store = QueueStore.open(data / "amqp" / "store", CONFIG, clock=ManualClock())
    try:
        found = {tuple(queue.name.split("\n")): queue.counts() for queue in store.queues()}
        assert answer["state"]["messages"] == store.recovery.messages
        assert answer["state"]["replayed_bytes"] == store.recovery.journal_bytes
        assert answer["state"]["scanned_files"] == store.recovery.files_scanned
        for row in answer["queues"]:
            counts = [one for key, one in found.items() if key[:2] == (row["vhost"], row["queue"])]
            assert row["messages"] == sum(one.ready for one in counts)
            assert row["size_bytes"] == sum(one.bytes for one in counts)
    finally:
        store.close()


def test_damage_ends_with_4_and_says_where_and_what_to_do(capsys, data):
    path = sorted((data / "amqp/store/msg_store_persistent").glob("*.rdq"))[1]
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.write_bytes(content)
    code, (answer,), _ = run_json(capsys, "queue-store", "check", data)
    assert code == 4
    (finding,) = [one for one in answer["findings"] if one["severity"] == "error"]
    assert (finding["kind"], finding["file"], finding["offset"]) == ("message-record", str(path), 0)
    assert finding["expected"].startswith("0x")
    assert "restore the file from a copy" in finding["advice"]
    code, out, _ = run(capsys, "queue-store", "check", data)
    assert (code, out.endswith("The store is damaged.\n")) == (4, True)


def test_a_store_in_use_is_said_to_be(capsys, data):
    store = QueueStore.open(data / "amqp" / "store", CONFIG, clock=ManualClock())
    try:
        code, (answer,), _ = run_json(capsys, "queue-store", "inspect", data)
        assert code == 0
        assert (answer["state"]["is_live"], answer["state"]["owner_pid"]) == (True, os.getpid())
        code, (answer,), _ = run_json(capsys, "queue-store", "check", data)
        assert (code, answer["summary"]["is_live"]) == (0, True)
    finally:
        store.close()
    _, (answer,), _ = run_json(capsys, "queue-store", "inspect", data)
    assert (data / "amqp/store/lock").read_text() == str(os.getpid())
    assert (answer["state"]["is_live"], answer["state"]["was_stopped_cleanly"]) == (False, True)


def test_a_directory_without_a_queue_store_ends_with_3(capsys, tmp_path):
    for verb in COMMANDS:
        code, out, err = run(capsys, "queue-store", verb, tmp_path)
        assert (code, out) == (3, "")
        assert "is not a store directory" in err
        assert run(capsys, "queue-store", verb, tmp_path / "none")[0] == 3
