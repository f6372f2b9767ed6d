"""Which message files are collected, and that their space goes back to the file system while messages are read."""

from __future__ import annotations

import dataclasses

import pytest

from stratamq.config import QueueStoreConfig
from stratamq.queuestore.collector import Figures, choose
from stratamq.queuestore.store import QueueStore
from stratamq.testing.clock import ManualClock

CONFIG = QueueStoreConfig(
    queue_index_embed_msgs_below=64, msg_store_file_size_limit=4096, write_buffer_bytes=1024, maintenance_bytes=1024
)


@pytest.mark.parametrize(
    ("live", "chosen"),
    [
        ([100, 100, 100], None),
        ([50, 50, 50], None),
        ([10, 10], None),
        ([10, 10, 100], (0, 2)),
        ([100, 10, 10, 10, 100, 10], (1, 4)),
        ([0, 90, 0, 10, 20], (0, 4)),
        ([60, 60, 0, 20], (1, 4)),
    ],
)
def test_the_run_that_frees_most_is_chosen(live, chosen):
    files = [Figures(100, bytes_, True) for bytes_ in live]
    assert choose(files, garbage_percent=50, files_min=3, file_bytes=100) == chosen


def test_the_file_being_written_is_left_alone():
    files = [Figures(100, 90, True), Figures(100, 10, True), Figures(100, 0, False), Figures(100, 10, True)]
    assert choose(files, garbage_percent=50, files_min=3, file_bytes=100) == (0, 2)


def test_space_comes_back_and_what_is_left_can_be_read(tmp_path):
    store = QueueStore.open(tmp_path, CONFIG, clock=ManualClock())
    queue = store.declare_queue("q", durable=True)
    for number in range(200):
        store.publish(b"%03d" % number * 100, persistent=True, queues=[queue])
    while store.tick():
        pass

    def used() -> int:
        return sum(path.stat().st_size for path in tmp_path.rglob("*.rdq"))

    full = used()
    queue.ack(seq for seq in range(200) if seq % 10)
    while store.tick():
        assert queue.read(100) == b"100" * 100
    assert used() < full / 2
    assert store.status().garbage_bytes * 2 <= store.status().message_bytes
    queue.ack(range(200))
    while store.tick():
        pass
    store.close()
    store = QueueStore.open(tmp_path, dataclasses.replace(CONFIG), clock=ManualClock())
    assert store.queues()[0].counts() == (0, 0, 0)
    while store.tick():
        pass
    assert used() == 0
    store.close()
