"""Reading across tiers: one range of offsets, the same rows as from the local files, nothing twice, nothing missing."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratamq.errors import BackendError, CorruptionError, DataLost
from stratamq.formats.arrow import SCHEMA
from stratamq.formats.cold_manifest import FLAT, PARQUET, Segment
from stratamq.logstore.types import QueueKey
from stratamq.pipeline.cold import cut_span
from stratamq.pipeline.options import parse_options
from stratamq.pipeline.origins import RangeReader
from stratamq.pipeline.plan import plan_read
from stratamq.pipeline.reader import Lost, QueueSpan, Split
from tests.unit.logstore.tiny_store import T0, TinyStore
from tests.unit.pipeline.cold_store import ColdStore
from tests.unit.tiered.conftest import s3_config as s3_config
from tests.unit.tiered.conftest import s3_endpoint as s3_endpoint

KEY = QueueKey("orders", 0)
COUNT = 200
FILE_BYTES = 4096


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A store of 200 messages in one queue: with and without tags, keys and ids, some compressed, some from IPv6."""
    store = TinyStore(tmp_path_factory.mktemp("whole") / "store", file_bytes=FILE_BYTES, index_entries=10_000)
    for number in range(COUNT):
        properties = "" if number % 5 == 0 else f"TAGS\x01t{number % 3}\x02KEYS\x01k{number} k\x02"
        if number % 2:
            properties += f"UNIQ_KEY\x01id{number}\x02"
        body, flag = b"body %d" % number, 0
        if number % 7 == 0:
            body, flag = zlib.compress(body * 3), 1
        store.put("orders", 0, body, properties=properties, stored=T0 + 1000 * number, sys_flag=flag)
    return store.write().root


@pytest.fixture
def store(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "store"))


@pytest.fixture
def cold(store, tmp_path) -> ColdStore:
    return ColdStore(store, tmp_path / "tier")


def drop_files(store: Path, count: int) -> None:
    """As retention does."""
    for path in sorted((store / "commitlog").iterdir())[:count]:
        path.unlink()


def read(splits: list[Split], columns=None, lenient: list[Lost] | None = None, **given_options: str) -> pa.Table:
    names = list(columns or SCHEMA.names)
    batches = []
    skip = None if lenient is None else lenient.append
    with RangeReader(parse_options(given_options), names, skip) as reader:
        for one in splits:
            batches += reader.batches(QueueKey(one.topic, one.queue_id), one.lo, one.hi, one.segments)
    schema = pa.schema([SCHEMA.field(name) for name in names])
    return pa.Table.from_batches(batches, schema)


def rows(columns=None, **given_options: str) -> pa.Table:
    return read(plan_read(parse_options(given_options)), columns, **given_options)


@pytest.mark.parametrize("decompress", ["true", "false"])
@pytest.mark.parametrize("format", [FLAT, PARQUET])
def test_the_tier_alone_gives_the_rows_of_the_files(store, cold, format, decompress):
    cold.seal(KEY, [0, 50, 120, COUNT], format=format)
    wanted = rows(path=str(store), decompress=decompress)
    assert wanted.num_rows == COUNT
    found = rows(tier=cold.url, decompress=decompress)
    for name in SCHEMA.names:
        assert found.column(name).to_pylist() == wanted.column(name).to_pylist(), name
    for name in ("body", "queue_offset", "physical_offset"):
        assert rows([name], tier=cold.url, decompress=decompress).equals(wanted.select([name])), name


@pytest.mark.parametrize("gone", [0, 1, 4])
@pytest.mark.parametrize("format", [FLAT, PARQUET])
def test_local_and_cold_are_one_range_of_offsets(store, cold, gone, format):
    wanted = rows(path=str(store))
    cold.seal(KEY, [0, 40, 90, 150], format=format)
    drop_files(store, gone)
    given_options = {"path": str(store), "tier": cold.url}
    assert rows(**given_options, minPartitions="9").equals(wanted)
    assert rows(**given_options, startingOffsets='{"orders": {"0": 13}}').equals(wanted.slice(13))
    for second in (33, 149, 150):
        by_time = rows(["queue_offset"], **given_options, startingTimestamp=str(T0 + 1000 * second))
        assert by_time.column(0).to_pylist() == list(range(second, COUNT))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_files_that_go_between_planning_and_reading_are_read_in_the_tier(whole, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("between")
    store = Path(shutil.copytree(whole, folder / "store"))
    cold = ColdStore(store, folder / "tier")
    files = len(list((store / "commitlog").iterdir()))
    assert files > 5
    ends = data.draw(st.lists(st.integers(1, 180), min_size=2, max_size=4, unique=True).map(sorted))
    kind = data.draw(st.sampled_from([FLAT, PARQUET]))
    before = data.draw(st.integers(0, files - 4))
    cold.seal(KEY, [0, *ends, 190], format=kind)
    drop_files(store, before)
    given_options = {"path": str(store), "tier": cold.url, "minPartitions": str(data.draw(st.integers(1, 9)))}
    splits = plan_read(parse_options(given_options))
    drop_files(store, data.draw(st.integers(0, 2)))
    if kind == FLAT and data.draw(st.booleans()):
        for segment in cold.join(KEY):  # and segments are joined, and the old ones go
            cold.backend.delete(segment.name)
            cold.backend.delete(segment.index_name)
    assert read(splits, ["queue_offset", "body"], **given_options).column(0).to_pylist() == list(range(COUNT))
    shutil.rmtree(folder)


def test_what_is_nowhere_is_named_or_skipped(store, cold):
    cold.seal(KEY, [0, 20, 40, 60], gaps=[1])
    drop_files(store, 3)
    lowest = rows(["queue_offset"], path=str(store)).column(0)[0].as_py()
    assert lowest > 60
    given_options = {"path": str(store), "tier": cold.url}
    with pytest.raises(DataLost, match=r"missing \[20, 40\)"):
        rows(**given_options)
    lost: list[Lost] = []
    splits = plan_read(parse_options(given_options))
    found = read(splits, ["queue_offset"], lost, **given_options).column(0).to_pylist()
    assert found == [*range(20), *range(40, 60), *range(lowest, COUNT)]
    assert sorted(lost) == [Lost(*KEY, 20, 40), Lost(*KEY, 60, lowest)]


def test_what_the_tier_lacks_is_read_where_it_was_sent(store, cold):
    cold.seal(KEY, [0, 20, 40, 60], gaps=[1])
    assert rows(["queue_offset"], path=str(store), tier=cold.url).column(0).to_pylist() == list(range(COUNT))


def test_queues_of_either_side_are_read(store, cold, tmp_path):
    other = TinyStore(tmp_path / "other", file_bytes=FILE_BYTES)
    for number in range(10):
        other.put("orders", 3, b"%d" % number)
        other.put("old", 0, b"%d" % number)
    other.write()
    apart = ColdStore(other.root, tmp_path / "tier")
    for key in (QueueKey("orders", 3), QueueKey("old", 0)):
        apart.seal(key, [0, 10])
    given_options = {"path": str(store), "tier": cold.url}
    assert rows(["queue_offset"], **given_options).num_rows == COUNT + 20
    assert rows(["queue_offset"], **given_options, topics="orders").num_rows == COUNT + 10
    assert rows(["queue_offset"], **given_options, topics="old").num_rows == 10


@pytest.mark.parametrize("format", [FLAT, PARQUET])
def test_a_damaged_segment_is_an_error_that_names_it(store, cold, format, tmp_path):
    manifest = cold.seal(KEY, [0, COUNT], format=format)
    name = manifest.segments[0].name
    path = tmp_path / "tier" / "broker-a" / name
    data = bytearray(path.read_bytes())
    for at in range(100, len(data) - 50, 97):
        data[at] ^= 0xFF
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises(CorruptionError):
        rows(tier=cold.url)
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises((CorruptionError, BackendError)):
        rows(tier=cold.url, retrySeconds="0")


def test_an_object_store_is_read_with_keys_from_the_environment(store, s3_config, monkeypatch):
    pytest.importorskip("obstore")
    cold = ColdStore(store, s3_config)
    cold.seal(KEY, [0, 90, COUNT], format=PARQUET)
    drop_files(store, 2)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_config.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_config.secret_key)
    given_options = {"tier": cold.url, "tierEndpoint": s3_config.endpoint, "tierRegion": s3_config.region}
    for place in ({}, {"path": str(store)}):
        found = rows(["queue_offset", "body"], **place, **given_options)
        assert found.column(0).to_pylist() == list(range(COUNT))
    cold.backend.close()


def segment(first: int, last: int, raw_bytes: int) -> Segment:
    return Segment(
        name=f"s{first}", format=FLAT, first=first, last=last, bytes=1, raw_bytes=raw_bytes, min_ms=0, max_ms=0,
        index_name="i", index_at=0, index_bytes=1, sealed_ms=0,
    )  # fmt: skip


@given(
    counts=st.lists(st.integers(1, 500), max_size=20),
    lo=st.integers(0, 3000),
    size=st.integers(1, 3000),
    bytes_per_split=st.integers(1, 5000),
)
def test_splits_tile_a_span_and_name_their_segments(counts, lo, size, bytes_per_split):
    segments, at = [], 5
    for count in counts:
        segments.append(segment(at, at + count - 1, 10 * count))
        at += count
    splits = cut_span(QueueSpan(*KEY, lo, lo + size), segments, bytes_per_split)
    assert [one.lo for one in splits] == [lo, *(one.hi for one in splits[:-1])]
    assert splits[-1].hi == lo + size
    assert all(one.lo < one.hi for one in splits)
    for one in splits:
        assert one.segments == tuple(s for s in segments if s.last >= one.lo and s.first < one.hi)
        assert one.size_bytes <= 2 * bytes_per_split + 10
