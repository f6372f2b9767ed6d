"""A lake's log: each batch once, whoever commits meanwhile and whatever is lost on the way."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from stratamq.errors import BackendError, CorruptionError, ObjectExists, PipelineError
from stratamq.pipeline.lake import Lake, LakeFile
from stratamq.tiered.backend import MemoryBackend

SCHEMA = json.dumps({"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]})
OTHER = json.dumps({"type": "struct", "fields": [{"name": "n", "type": "string", "nullable": True, "metadata": {}}]})


def put(lake: Lake, made_ms: int = 1) -> LakeFile:
    return lake.put_file(b"PAR1", 5, made_ms)


def test_a_batch_is_there_once():
    lake = Lake(MemoryBackend())
    assert lake.snapshot() == (-1, None, (), {})
    first, again, second = put(lake), put(lake), put(lake)
    assert lake.commit("q", 0, SCHEMA, [first], 10)
    assert not lake.commit("q", 0, SCHEMA, [again], 11), "the driver was killed before it noted the batch"
    assert lake.commit("q", 1, SCHEMA, [second], 12)
    assert not lake.commit("q", 0, SCHEMA, [again], 13)
    assert lake.commit("other", 0, SCHEMA, [], 14)
    found = lake.snapshot()
    assert (found.version, found.schema, found.batches) == (2, SCHEMA, {"q": 1, "other": 0})
    assert found.files == (first, second)


class Losing(MemoryBackend):
    """Writes, and loses the answer."""

    def __init__(self, error: type[Exception]) -> None:
        super().__init__()
        self.error = error
        self.left = 1

    def put_new(self, name, parts):
        super().put_new(name, parts)
        if name.startswith("_delta_log/") and self.left:
            self.left -= 1
            raise BackendError("put", name, "the answer was lost") if self.error is BackendError else ObjectExists(name)


@pytest.mark.parametrize("error", [BackendError, ObjectExists])
def test_a_commit_whose_answer_was_lost_stays_and_is_no_second_one(error):
    lake = Lake(Losing(error))
    file = put(lake)
    if error is BackendError:
        with pytest.raises(BackendError):
            lake.commit("q", 0, SCHEMA, [file], 10)
    assert not lake.commit("q", 0, SCHEMA, [file], 10)
    assert lake.snapshot().files == (file,)
    assert lake.clean(10**15) == []


class Racing(MemoryBackend):
    """Somebody else commits just before us, a few times."""

    left = 3

    def put_new(self, name, parts):
        if name.startswith("_delta_log/") and self.left:
            self.left -= 1
            Lake(self).commit(f"rival{self.left}", 0, SCHEMA, [], 1)
        super().put_new(name, parts)


def test_of_two_writers_of_a_version_one_takes_the_next():
    lake = Lake(Racing())
    file = put(lake)
    assert lake.commit("q", 0, SCHEMA, [file], 10)
    found = lake.snapshot()
    assert found.version == 3
    assert found.batches == {"q": 0, "rival0": 0, "rival1": 0, "rival2": 0}
    assert found.files == (file,)


def test_what_no_commit_names_is_cleaned_when_it_is_old():
    lake = Lake(MemoryBackend())
    named, old, new = put(lake), put(lake, 50), put(lake, 100)
    lake.commit("q", 0, SCHEMA, [named], 10)
    assert lake.clean(100) == [old.name]
    assert {entry.name for entry in lake.backend.list("data/")} == {named.name, new.name}


def test_another_schema_is_refused():
    lake = Lake(MemoryBackend())
    lake.commit("q", 0, SCHEMA, [], 10)
    with pytest.raises(PipelineError, match="has the columns"):
        lake.commit("q", 1, OTHER, [], 10)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("nonsense", CorruptionError),
        ('{"add": {"path": "../x", "size": 1}}', CorruptionError),
        ('{"add": {"path": "/etc/passwd", "size": 1}}', CorruptionError),
        ('{"add": {"path": "s3://x", "size": 1}}', CorruptionError),
        ('{"add": 1}', CorruptionError),
        ('{"add": {"path": "data/x"}}', CorruptionError),
        ('{"add": {"path": "data/x", "size": "many"}}', CorruptionError),
        ('{"add": {"path": "data/x", "size": 1, "stats": "{"}}', CorruptionError),
        ('{"txn": {"appId": ["q"], "version": 1}}', CorruptionError),
        ('{"txn": {"appId": "q"}}', CorruptionError),
        ('{"metaData": {"schemaString": "[]"}}', CorruptionError),
        ('{"protocol": {"minReaderVersion": "three"}}', CorruptionError),
        ('{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7}}', PipelineError),
    ],
)
def test_logs_that_are_not_ours_are_refused(text, error):
    lake = Lake(MemoryBackend())
    lake.backend.put_new("_delta_log/00000000000000000000.json", [text.encode()])
    with pytest.raises(error):
        lake.snapshot()


def test_names_may_hold_what_other_texts_end_lines_with():
    lake = Lake(MemoryBackend())
    schema = SCHEMA.replace('"n"', '"n\u2028\x85"', 1)
    assert lake.commit("q\u2028", 0, schema, [], 10)
    assert not lake.commit("q\u2028", 0, schema, [], 10)
    assert lake.snapshot().schema == schema


def test_a_log_that_was_cut_off_is_refused():
    lake = Lake(MemoryBackend())
    lake.backend.put_new("_delta_log/00000000000000000010.json", [b"{}"])
    with pytest.raises(PipelineError, match="begins at version 10"):
        lake.snapshot()


def test_rows_go_into_files_of_bounded_size(monkeypatch):
    pytest.importorskip("pyspark")
    import io

    import pyarrow.parquet as pq

    from stratamq.pipeline import lake_sink

    monkeypatch.setattr(lake_sink, "FILE_BYTES", 20_000)
    lake = Lake(MemoryBackend())
    batches = [pa.record_batch({"n": list(range(at, at + 5_000))}) for at in range(0, 20_000, 5_000)]
    files = list(lake_sink.put_batches(lake, iter([batches[0].slice(0, 0), *batches]), lambda: 7))
    assert len(files) > 1
    assert [file.rows for file in files] == [
        pq.read_metadata(io.BytesIO(lake.backend.read(f.name))).num_rows for f in files
    ]
    rows = [n for f in files for n in pq.read_table(io.BytesIO(lake.backend.read(f.name))).column("n").to_pylist()]
    assert rows == list(range(20_000))
