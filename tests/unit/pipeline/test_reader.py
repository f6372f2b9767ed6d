"""Ranges as Arrow batches: what is lost is said, damage is named, splits are fair."""

from __future__ import annotations

import pytest

from stratamq.errors import (
    BadLength,
    BadMagic,
    CorruptionError,
    DataLost,
    MisplacedRecord,
    OffsetOutOfRange,
    PipelineError,
)
from stratamq.formats.arrow import DecompressionFailed
from stratamq.formats.consume_queue import encode_unit
from stratamq.logstore import mappings
from stratamq.logstore.snapshot import StoreFiles, StoreSnapshot
from stratamq.pipeline.reader import Lost, arrow_batches, plan_splits, spans_of
from tests.unit.logstore.tiny_store import T0, TinyStore, flip

FIRST = "commitlog/00000000000000000000"


def filled(root, count=100):
    store = TinyStore(root, index_entries=256)
    for number in range(count):
        store.put(queue_id=number % 2, body=b"x" * (number % 50), properties=f"TAGS\x01t\x02KEYS\x01k{number}\x02")
    return store


def offsets(batches):
    return [offset for batch in batches for offset in batch.column("queue_offset").to_pylist()]


def test_a_range_gives_its_rows_in_order_and_only_the_columns_asked_for(tmp_path):
    filled(tmp_path / "s").write()
    batches = list(arrow_batches(tmp_path / "s", "orders", 1, 7, 33, ["keys", "queue_offset"], batch_rows=5))
    assert offsets(batches) == list(range(7, 33))
    assert {tuple(batch.schema.names) for batch in batches} == {("keys", "queue_offset")}
    assert batches[0].column("keys").to_pylist()[0] == "k15"
    assert max(batch.num_rows for batch in batches) == 5
    assert list(arrow_batches(tmp_path / "s", "orders", 1, 7, 7)) == []
    empty = list(arrow_batches(tmp_path / "s", "orders", 1, 7, 9, []))
    assert [(batch.num_rows, batch.num_columns) for batch in empty] == [(2, 0)]


def test_columns_of_the_queue_do_not_need_the_log(tmp_path):
    store = filled(tmp_path / "s").write()
    with StoreFiles(tmp_path / "s") as files:
        for path in (tmp_path / "s/commitlog").iterdir():
            path.write_bytes(bytes(4096))
        mappings.drop_all_mappings()
        columns = ["topic", "queue_id", "queue_offset", "physical_offset"]
        rows = [row for batch in arrow_batches(files, "orders", 0, 0, 50, columns) for row in batch.to_pylist()]
    wanted = [record.physical_offset for record in store.records if record.queue_id == 0]
    assert [row["physical_offset"] for row in rows] == wanted


def test_unknown_columns_are_refused(tmp_path):
    filled(tmp_path / "s").write()
    with pytest.raises(PipelineError, match="unknown column colour; there are topic"):
        next(arrow_batches(tmp_path / "s", "orders", 0, 0, 1, ["colour"]))


def test_records_of_a_deleted_file_are_lost_loudly_or_skipped(tmp_path):
    store = filled(tmp_path / "s").write()
    gone = sum(record.physical_offset < 4096 and record.queue_id == 0 for record in store.records)
    with StoreFiles(tmp_path / "s") as opened_before:
        (tmp_path / "s" / FIRST).unlink()
        mappings.drop_all_mappings()
        for files in (opened_before, tmp_path / "s"):
            with pytest.raises(DataLost) as caught:
                list(arrow_batches(files, "orders", 0, 3, 50))
            for part in ("orders, queue 0", "wanted [3, 50)", f"missing [3, {gone})", f"available [{gone}, 50)"):
                assert part in str(caught.value)
            lost: list[Lost] = []
            assert offsets(arrow_batches(files, "orders", 0, 3, 50, skip_lost=lost.append)) == list(range(gone, 50))
            assert lost == [Lost("orders", 0, 3, gone)]


def test_a_file_missing_in_the_middle_is_a_gap(tmp_path):
    store = filled(tmp_path / "s").write()
    with StoreFiles(tmp_path / "s") as files:
        (tmp_path / "s/commitlog/00000000000000004096").unlink()
        mappings.drop_all_mappings()
        with pytest.raises(BadLength):
            list(arrow_batches(files, "orders", 0, 0, 50))  # a store with a hole is refused when looked at again
    assert store.records


def test_what_lies_behind_the_queue_is_lost_too(tmp_path):
    filled(tmp_path / "s").write()
    with pytest.raises(DataLost, match=r"missing \[50, 64\), available \[0, 50\)"):
        list(arrow_batches(tmp_path / "s", "orders", 0, 0, 90))
    lost: list[Lost] = []
    assert offsets(arrow_batches(tmp_path / "s", "orders", 9, 0, 5, skip_lost=lost.append)) == []
    assert lost == [Lost("orders", 9, 0, 5)]


def test_prefilled_units_are_lost_records(tmp_path):
    store = TinyStore(tmp_path / "s", queue_starts={("orders", 0): 5})
    store.put()
    store.write()
    lost: list[Lost] = []
    assert offsets(arrow_batches(tmp_path / "s", "orders", 0, 0, 6, skip_lost=lost.append)) == [5]
    assert lost == [Lost("orders", 0, 0, 5)]


@pytest.mark.parametrize(
    ("at", "error", "where"),
    [
        (4, BadMagic, 4),
        (28, MisplacedRecord, 28),
        (87, BadLength, 0),
        (20, MisplacedRecord, 0),
        (3, MisplacedRecord, 0),
    ],
)
def test_a_damaged_record_is_named(tmp_path, at, error, where):
    store = filled(tmp_path / "s").write()
    record = store.records[8]
    flip(tmp_path / "s" / FIRST, record.physical_offset + at)
    mappings.drop_all_mappings()
    with pytest.raises(error) as caught:
        list(arrow_batches(tmp_path / "s", "orders", 0, 0, 50, ["body"]))
    assert (caught.value.path, caught.value.offset) == (str(tmp_path / "s" / FIRST), record.physical_offset + where)


def test_units_that_do_not_ascend_are_refused(tmp_path):
    store = filled(tmp_path / "s").write()
    path = tmp_path / "s/consumequeue/orders/0/00000000000000000000"
    with path.open("r+b") as file:
        file.seek(60)
        file.write(encode_unit(*store.queues["orders", 0][1]))
    with pytest.raises(CorruptionError, match="ascending physical offsets"):
        list(arrow_batches(tmp_path / "s", "orders", 0, 0, 50))


def test_a_body_that_does_not_decompress_is_named_and_can_be_had_as_it_is(tmp_path):
    store = TinyStore(tmp_path / "s")
    store.put(body=b"plain")
    store.put(body=b"no zlib", sys_flag=1)
    store.write()
    with pytest.raises(DecompressionFailed) as caught:
        list(arrow_batches(tmp_path / "s", "orders", 0, 0, 2))
    assert caught.value.offset == store.records[1].physical_offset + 88
    batches = arrow_batches(tmp_path / "s", "orders", 0, 0, 2, ["body"], decompress=False)
    assert [body for batch in batches for body in batch.column("body").to_pylist()] == [b"plain", b"no zlib"]


@pytest.mark.parametrize("bytes_per_split", [1, 500, 2000, 10**9])
def test_splits_cover_every_record_once_and_are_balanced(tmp_path, bytes_per_split):
    store = filled(tmp_path / "s").write()
    with StoreSnapshot.open(tmp_path / "s") as snapshot:
        spans = spans_of(snapshot)
        splits = plan_splits(snapshot, spans, bytes_per_split=bytes_per_split)
        for queue_id in range(2):
            mine = [split for split in splits if split.queue_id == queue_id]
            assert [split.lo for split in mine] + [50] == [0] + [split.hi for split in mine]
            largest = max(record.size for record in store.records)
            wanted = sum(split.size_bytes for split in mine) / len(mine)
            assert all(abs(split.size_bytes - wanted) <= 2 * largest for split in mine)
        assert sum(split.size_bytes for split in splits) == sum(record.size for record in store.records)
        with pytest.raises(OffsetOutOfRange):
            plan_splits(snapshot, [("orders", 0, 0, 51)])


def test_spans_by_time(tmp_path):
    filled(tmp_path / "s").write()
    with StoreSnapshot.open(tmp_path / "s") as snapshot:
        spans = spans_of(snapshot, ["orders"], from_ms=T0 + 10, until_ms=T0 + 20)
        assert [span[1:] for span in spans] == [(0, 5, 10), (1, 5, 10)]
        assert spans_of(snapshot, ["nothing"]) == []
