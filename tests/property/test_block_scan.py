"""Scanning the log by blocks against scanning it record by record, over whole and damaged files."""

from __future__ import annotations

import random

import pytest

from stratamq.config import DELAY_LEVELS_DEFAULT, parse_delay_levels
from stratamq.formats.java import index_key_hash
from stratamq.formats.message import SYS_TRANSACTION_MASK, SYS_TRANSACTION_ROLLBACK
from stratamq.logstore.block_scan import scan_blocks
from stratamq.logstore.dispatch import index_keys, unit_tags_code
from stratamq.logstore.scan import Walk
from tests.unit.logstore.stores import message, open_store, put, small_config

LEVELS = parse_delay_levels(DELAY_LEVELS_DEFAULT)
TOPICS = ["A", "B", "%RETRY%" + "g" * 130, "SCHEDULE_TOPIC_XXXX"]


def random_store(directory, rng):
    store = open_store(directory, small_config(commit_log_file_bytes=1 << 16, index_enabled=False))
    for number in range(rng.randint(1, 120)):
        properties = {"KEYS": rng.choice(["", "a", "a  b", "käy", f"k{number}"]), "TAGS": rng.choice(["", "x", "标签"])}
        properties |= {"UNIQ_KEY": rng.choice(["", f"u{number}"]), "DELAY": rng.choice(["", "3", "0", "x", "99", "٣"])}
        properties |= {"NUL": rng.choice(["", "", "a\0b"])}
        sys_flag = rng.choice([0, 0, 0, 4, 8, 12])
        body = rng.randbytes(rng.choice([0, 1, 50, 900]))
        kept = {name: value for name, value in properties.items() if value}
        put(store, message(body, topic=rng.choice(TOPICS), queue_id=rng.randint(0, 3), sys_flag=sys_flag, **kept))
    return store


def rows_of_walk(walk):
    return [
        (
            record.physical_offset,
            record.size,
            record.queue_offset,
            record.store_timestamp,
            unit_tags_code(record.topic, record.properties, record.store_timestamp, LEVELS),
            record.is_queued,
            (record.topic, record.queue_id),
            []
            if record.sys_flag & SYS_TRANSACTION_MASK == SYS_TRANSACTION_ROLLBACK
            else [index_key_hash(record.topic, key) for key in index_keys(record.properties)],
        )
        for record in walk
    ]


def rows_of_blocks(blocks):
    rows = []
    for block in blocks:
        keys = [[] for _ in block.sizes]
        for row, key_hash in zip(block.key_rows.tolist(), block.key_hashes.tolist(), strict=True):
            keys[row].append(key_hash)
        queues = [block.queues[number] for number in block.queue_numbers.tolist()]
        columns = (block.physical_offsets, block.sizes, block.queue_offsets, block.store_timestamps, block.tags_codes)
        rows += zip(*(column.tolist() for column in columns), block.is_queued.tolist(), queues, keys, strict=True)
        assert block.end == rows[-1][0] + rows[-1][1]
    return rows


@pytest.mark.parametrize("seed", range(60))
def test_blocks_hold_the_same_records(tmp_path, seed, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr("stratamq.logstore.block_scan.BLOCK_ROWS", rng.choice([1, 5, 1000]))
    store = random_store(tmp_path, rng)
    if rng.random() < 0.7:
        at = rng.randrange(store.max_physical_offset % (1 << 16) or 1)
        fd = store._fs.open(store._log.path_of(0))
        byte = store._fs.read(fd, 1, at)[0]
        store._fs.write(fd, [bytes([byte ^ 1 << rng.randrange(8)])], at)
        store._fs.close(fd)
    doubt_from = rng.choice([None, 0, 3000])
    walk = Walk(store._log, 0, verify_from=0, doubt_from=doubt_from, stop_at=1 << 16)
    expected = rows_of_walk(walk)
    blocks = scan_blocks(store._log, 0, verify_from=0, doubt_from=doubt_from, delay_levels=LEVELS, stop_at=1 << 16)
    found = rows_of_blocks(blocks)
    assert found == expected[: len(found)]
    ends_early = len(found) < len(expected)
    if ends_early and doubt_from is None:
        raise AssertionError("without doubts only a flaw ends a block")
    store.close()
