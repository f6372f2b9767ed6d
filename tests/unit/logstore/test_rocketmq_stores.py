"""Stores that Apache RocketMQ wrote: opened, read whole, searched, rebuilt byte for byte."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stratamq.config import StoreConfig
from stratamq.logstore.store import LogStore
from tests.golden.archives import unpack_store
from tests.unit.logstore.stores import FOREVER, open_store, put, read_all, records_of
from tests.unit.logstore.test_batch_queues import batch
from tests.unit.logstore.test_batch_queues import read as read_batches

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
STORES = ["rocketmq-5.3-clean", "rocketmq-5.3-killed", "rocketmq-5.5-clean"]


class Golden:
    """One golden store, unpacked where a test may change it."""

    def __init__(self, name: str, root: Path) -> None:
        self.manifest: dict[str, Any] = json.loads((GOLDEN / name / "MANIFEST.json").read_text())
        self.directory = unpack_store(name, root)
        settings = {key: int(value) for key, value in self.manifest["settings"].items() if value.isdigit()}
        self.config = StoreConfig(
            commit_log_file_bytes=settings["mappedFileSizeCommitLog"],
            consume_queue_file_bytes=settings["mappedFileSizeConsumeQueue"],
            index_slots=settings["maxHashSlotNum"],
            index_entries=settings["maxIndexNum"],
        )

    def open(self) -> LogStore:
        return open_store(self.directory, self.config)

    def files(self, part: str) -> dict[str, bytes]:
        """Every file of a part of the store by its path in it."""
        root = self.directory / part
        return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


@pytest.fixture(autouse=True, params=["by blocks", "one by one"])
def _both_ways(request, monkeypatch):
    """See test_recovery."""
    if request.param == "by blocks":
        monkeypatch.setattr("stratamq.logstore.recovery.BLOCK_BYTES_MIN", 0)


@pytest.fixture(params=STORES)
def golden(request, tmp_path):
    return Golden(request.param, tmp_path)


def check_everything(store: LogStore, manifest: dict[str, Any]) -> None:
    """Every queue holds what RocketMQ's own tools saw in the log, and its key queries give the same answers."""
    found = {
        (record.topic, record.queue_id, record.queue_offset): record.message_id
        for key in store.queues()
        for record in read_all(store, *key)
    }
    expected = {
        (row["topic"], row["queueId"], row["queueOffset"]): row["offsetMsgId"]
        for row in manifest["records"]
        if row["sysFlag"] & 0xC in (0, 8)
    }
    assert found == expected
    for query in manifest["queries"]:
        result = store.query(query["topic"], query["key"], 64, 0, FOREVER)
        ids = {record.message_id for view in result.records for record in records_of(view)}
        assert ids == {text for text in query["offsetMsgIds"] if not text.startswith("CODE: 208")}


def test_it_is_read_whole(golden):
    store = golden.open()
    assert store.recovery.clean == (golden.manifest["ended"] != "kill -9")
    check_everything(store, golden.manifest)
    store.close()


def test_a_cleanly_closed_store_is_left_as_it_is(golden):
    if golden.manifest["ended"] == "kill -9":
        pytest.skip("this one was killed")
    before = {part: golden.files(part) for part in ("commitlog", "consumequeue", "index", "config")}
    golden.open().close()
    assert {part: golden.files(part) for part in before} == before


def test_queues_and_index_are_rebuilt_to_the_same_bytes(golden):
    golden.open().close()  # after a kill RocketMQ's own queues and index end early: compare with what recovery made
    queues, index = golden.files("consumequeue"), golden.files("index")
    shutil.rmtree(golden.directory / "consumequeue")
    shutil.rmtree(golden.directory / "index")
    store = golden.open()
    check_everything(store, golden.manifest)
    store.close()
    assert golden.files("consumequeue") == queues
    if not golden.manifest["rocketmq"].startswith("5.5"):  # 5.5 also indexes tags, which is not done here
        assert list(golden.files("index").values()) == list(index.values())


def test_messages_are_added_behind_what_is_there(golden):
    from tests.unit.logstore.stores import message, put

    store = golden.open()
    before = store.max_offset("Orders", 0)
    put(store, message(b"ours", topic="Orders", KEYS="ours"))
    assert store.max_offset("Orders", 0) == before + 1
    store.close()
    store = golden.open()
    assert read_all(store, "Orders", 0)[-1].body == b"ours"
    assert len(store.query("Orders", "ours", 5, 0, FOREVER).records) == 1
    store.close()


def test_a_wrong_file_length_setting_is_told_by_its_rocketmq_name(golden):
    from stratamq.errors import BadLength

    with pytest.raises(BadLength, match="mappedFileSizeCommitLog"):
        open_store(golden.directory, StoreConfig())


def test_a_store_with_other_kinds_of_queues_opens(tmp_path):
    golden = Golden("rocketmq-5.3-special", tmp_path)
    before = golden.files("batchconsumequeue")
    store = golden.open()
    check_special(store)
    store.close()
    assert golden.files("batchconsumequeue") == before


def check_special(store):
    for key in store.queues():
        if key.topic != "InnerBatches":
            assert read_all(store, *key)
    inner = [f"inner {number}".encode() for number in (*range(3), *range(5))]
    assert read_batches(store, "InnerBatches") == inner
    for name in ("%LMQ%one", "%LMQ%two"):
        (record,) = read_all(store, name)
        assert (record.topic, record.body) == ("Light", b"three queues")


@pytest.mark.parametrize("gone", ["batchconsumequeue/InnerBatches/0", "both", "checkpoint"])
def test_light_queues_and_queues_of_batches_are_rebuilt_to_the_same_bytes(tmp_path, gone):
    golden = Golden("rocketmq-5.3-special", tmp_path)
    golden.config = dataclasses.replace(
        golden.config, batch_consume_queue_file_bytes=460, light_queues=True, multi_dispatch=True
    )
    queues, batches = golden.files("consumequeue"), golden.files("batchconsumequeue")
    if gone == "both":
        shutil.rmtree(golden.directory / "consumequeue")
        shutil.rmtree(golden.directory / "batchconsumequeue")
    elif gone == "checkpoint":
        (golden.directory / gone).unlink()
        (golden.directory / "abort").touch()
    else:
        shutil.rmtree(golden.directory / gone)
        (golden.directory / "checkpoint").unlink()
        (golden.directory / "abort").touch()
    store = golden.open()
    check_special(store)
    store.close()
    assert (golden.files("consumequeue"), golden.files("batchconsumequeue")) == (queues, batches)
    store = golden.open()
    assert store.recovery.clean
    put(store, batch("ours", "too", topic="InnerBatches"))
    assert read_batches(store, "InnerBatches")[-2:] == [b"ours", b"too"]
    store.close()
