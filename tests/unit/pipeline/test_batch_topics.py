"""Topics with queue.type=BatchCQ through the pipeline: a row for each message, none lost, none twice."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratamq.errors import CorruptionError, DataLost
from stratamq.formats.message import decode_record
from stratamq.logstore import mappings
from stratamq.logstore.snapshot import StoreFiles
from stratamq.logstore.types import QueueKey
from stratamq.pipeline.options import parse_options
from stratamq.pipeline.plan import plan_read
from stratamq.pipeline.pulling import BrokerOrigin, broker_batches
from stratamq.pipeline.reader import arrow_batches
from stratamq.testing.clock import ManualClock
from tests.unit.logstore.stores import message, open_store, put
from tests.unit.logstore.test_batch_queues import SMALL, batch, entry, fill, fresh
from tests.unit.pipeline.fake_broker import FakeBroker
from tests.unit.pipeline.test_pulling import cluster_of

T0 = 1_700_000_000_000


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A store, and the bodies of both queues of topic B: batches and single messages by turns."""
    root = tmp_path_factory.mktemp("batches") / "store"
    store = fresh(root)
    expected, _ = fill(store)
    store.close()
    return root, expected


def rows_of(root, lo, hi, columns=("queue_offset", "body"), queue_id=0, **options):
    batches = arrow_batches(root, "B", queue_id, lo, hi, list(columns), **options)
    return [tuple(row.values()) for one in batches for row in one.to_pylist()]


@settings(max_examples=40, deadline=None)
@given(data=st.data(), queue_id=st.integers(0, 1), batch_rows=st.sampled_from([1, 3, 4096]))
def test_any_range_gives_its_messages(filled, data, queue_id, batch_rows):
    root, expected = filled
    bodies = expected[queue_id]
    lo = data.draw(st.integers(0, len(bodies)))
    hi = data.draw(st.integers(lo, len(bodies)))
    wanted = [(offset, bodies[offset]) for offset in range(lo, hi)]
    assert rows_of(root, lo, hi, queue_id=queue_id, batch_rows=batch_rows) == wanted
    assert rows_of(root, lo, hi, queue_id=queue_id, views=True) == wanted


def test_what_units_say_needs_no_log_and_is_what_the_log_says(filled):
    root, expected = filled
    names = ["topic", "queue_id", "queue_offset", "physical_offset"]
    by_log = rows_of(root, 3, len(expected[1]), [*names, "flag"], queue_id=1)
    assert rows_of(root, 3, len(expected[1]), names, queue_id=1) == [row[:4] for row in by_log]
    assert [row[:3] for row in by_log] == [("B", 1, offset) for offset in range(3, len(expected[1]))]


def test_a_message_has_its_own_properties_and_the_rest_of_its_record(tmp_path):
    store = fresh(tmp_path)
    put(store, batch("a", "b", inner={"KEYS": "k", "TAGS": "t", "UNIQ_KEY": "own"}, KEYS="whole"), batch("c"))
    record = decode_record(store.get("B", 0, 0, 1).records[0])
    store.close()
    columns = ["keys", "tags", "message_id", "properties", "sys_flag", "physical_offset", "queue_offset", "born_host"]
    first, second, third = rows_of(tmp_path, 0, 3, columns)
    own = ("k", "t", "own", [("UNIQ_KEY", "own"), ("KEYS", "k"), ("TAGS", "t")], 0, 0)
    assert (*first[:3], sorted(first[3]), *first[4:6]) == (*own[:3], sorted(own[3]), *own[4:])
    assert [row[6] for row in (first, second, third)] == [0, 1, 2]
    assert second[:6] == first[:6]
    assert third[:3] == (None, None, decode_record_id(tmp_path, record.size))
    assert first[7] == "10.0.0.1:50000"


def decode_record_id(root, position):
    (log,) = sorted((root / "commitlog").iterdir())
    return decode_record(log.read_bytes(), position).message_id


def compressed_batch(*bodies):
    body = zlib.compress(b"".join(entry(body.encode()) for body in bodies))
    return message(body, topic="B", sys_flag=0xC1, UNIQ_KEY="whole", INNER_NUM=len(bodies))


@pytest.mark.parametrize("decompress", [True, False])
def test_a_compressed_batch_is_unpacked(tmp_path, decompress):
    store = fresh(tmp_path)
    squeezed = zlib.compress(b"single")
    put(store, compressed_batch("a", "b"), message(squeezed, topic="B", sys_flag=1))
    store.close()
    found = rows_of(tmp_path, 0, 3, ("body", "sys_flag"), decompress=decompress)
    assert found == [(b"a", 0), (b"b", 0), (b"single" if decompress else squeezed, 1)]


def spans(root, **options):
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    return [tuple(split)[:4] for split in plan_read(parse_options({"path": str(root), **texts}))]


def test_a_plan_has_them_and_cuts_between_records(filled):
    root, expected = filled
    whole = [("B", queue_id, 0, len(expected[queue_id])) for queue_id in (0, 1)]
    assert spans(root, topics="B") == whole
    assert {topic for topic, *_ in spans(root)} == {"B", "T", "%LMQ%x"}
    fine = spans(root, topics="B", minPartitions="30")
    assert len(fine) >= 30
    for queue_id in (0, 1):
        cuts = [(lo, hi) for _, number, lo, hi in fine if number == queue_id]
        assert [lo for lo, _ in cuts] == [0, *(hi for _, hi in cuts[:-1])]
        assert cuts[-1][1] == len(expected[queue_id])
        assert [row[1] for lo, hi in cuts for row in rows_of(root, lo, hi, queue_id=queue_id)] == expected[queue_id]
    assert spans(root, topics="B", queues="0", startingOffsets={"B": {"0": 4}}, endingOffsets={"B": {"0": 7}}) == [
        ("B", 0, 4, 7)
    ]


def test_times_find_whole_records(tmp_path):
    clock = ManualClock(T0)
    store = fresh(tmp_path, clock=clock)
    for number in range(6):
        put(store, batch(f"{number}a", f"{number}b"))
        clock.advance(1_000)
    store.close()
    found = spans(tmp_path, topics="B", startingTimestamp=str(T0 + 1_500), endingTimestamp=str(T0 + 4_000))
    assert found == [("B", 0, 4, 8)]
    assert spans(tmp_path, topics="B", startingTimestamp=str(T0 + 10**6)) == []


def test_what_retention_took_is_loud_or_left_out(filled, tmp_path):
    store = fresh(tmp_path)
    for number in range(30):
        put(store, batch(f"{number}a", f"{number}b"), message(bytes(400), topic="T"))
    store.close()
    with StoreFiles(tmp_path) as files:
        first = files.files[0]
    kept = [offset for offset, place in rows_of(tmp_path, 0, 60, ("queue_offset", "physical_offset")) if place >= 4096]
    (tmp_path / "commitlog" / first.path.rpartition("/")[2]).unlink()
    mappings.drop_all_mappings()
    with pytest.raises(DataLost, match=rf"missing \[1, {kept[0]}\), available \[{kept[0]}, 60\)"):
        rows_of(tmp_path, 1, 60)
    lost = []
    assert [offset for offset, _ in rows_of(tmp_path, 1, 60, skip_lost=lost.append)] == kept
    assert [tuple(one) for one in lost] == [("B", 0, 1, kept[0])]
    with pytest.raises(DataLost, match=r"missing \[60, 61\)"):
        rows_of(tmp_path, 59, 61)


def test_a_batch_that_is_not_what_it_says_is_damage(tmp_path):
    store = fresh(tmp_path)
    put(store, batch("a", "b", INNER_NUM=3))
    store.close()
    with pytest.raises(CorruptionError, match="3 messages from offset 0"):
        rows_of(tmp_path, 0, 3)


def test_a_unit_of_another_record_is_damage(tmp_path):
    store = fresh(tmp_path)
    put(store, batch("a", "b"), batch("c", "d"))
    store.close()
    path = tmp_path / "batchconsumequeue/B/0/00000000000000000000"
    raw = bytearray(path.read_bytes())
    raw[46 + 35] += 2  # the base of the second unit
    path.write_bytes(raw)
    with pytest.raises(CorruptionError, match="queue offset 4 as in the consume queue"):
        rows_of(tmp_path, 4, 6)


# --- over the network ---


class BatchBroker(FakeBroker):
    """Gives records as a broker does: from the one on that holds the offset asked for."""

    def __init__(self, root, bodies):
        super().__init__(len(bodies), gives=3)
        store = open_store(root, SMALL)
        result = store.get("B", 0, 0, 10**6)
        self.records = {}
        while result.next_offset <= len(bodies) and result.records:
            for view in result.records:
                self.records[decode_record(view).queue_offset] = bytes(view)
            result = store.get("B", 0, result.next_offset, 10**6)
        store.close()

    def _pull(self, address, offset, count):
        below = [first for first in self.records if first <= offset]
        return super()._pull(address, max(below) if offset < self.end else offset, count)


@pytest.fixture(scope="module")
def broker(filled):
    root, expected = filled
    return BatchBroker(root, expected[0]), expected[0]


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_pulled_ranges_are_those_of_files(broker, data):
    fake, bodies = broker
    lo = data.draw(st.integers(0, len(bodies)))
    hi = data.draw(st.integers(lo, len(bodies)))
    batches = broker_batches(cluster_of(fake), QueueKey("orders", 0), lo, hi, ["queue_offset", "body"])
    found = [tuple(row.values()) for one in batches for row in one.to_pylist()]
    assert found == [(offset, bodies[offset]) for offset in range(lo, hi)]


def test_times_are_found_over_the_network_too(broker):
    fake, bodies = broker
    origin = BrokerOrigin(cluster_of(fake).options)
    origin.cluster = cluster_of(fake)
    assert origin.offset_by_time("orders", 0, 0) == 0
    assert origin.offset_by_time("orders", 0, 2**60) == len(bodies)


def test_a_stream_whose_limit_cuts_through_batches_reads_all_once(filled):
    pytest.importorskip("pyspark.sql.streaming.datasource")
    from pyspark.sql.streaming.datasource import ReadMaxRows

    from stratamq.pipeline.schema import spark_schema
    from stratamq.pipeline.stream import StrataStreamReader

    root, expected = filled
    texts = {"path": str(root), "topics": "B", "startingOffsets": "earliest"}
    stream = StrataStreamReader(spark_schema(["queue_id", "body"]), parse_options(texts, streaming=True))
    found, sizes = {0: [], 1: []}, []
    at = stream.initialOffset()
    while (end := stream.latestOffset(at, ReadMaxRows(7))) is not at:
        rows = [row for part in stream.partitions(at, end) for batch in stream.read(part) for row in batch.to_pylist()]
        for row in rows:
            found[row["queue_id"]].append(row["body"])
        sizes.append(len(rows))
        at = end
    assert found == expected
    assert set(sizes[:-1]) == {7}
