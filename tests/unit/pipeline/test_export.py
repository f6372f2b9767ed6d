"""A table of exported messages: each one once, whatever is killed, and nothing else."""

from __future__ import annotations

import json
import random

import pyarrow.parquet as pq
import pytest

from stratamq.errors import CorruptionError, DataLost, PipelineError
from stratamq.pipeline.jobs import export as job
from stratamq.pipeline.jobs import table as tables
from stratamq.pipeline.jobs.running import run_here
from stratamq.pipeline.jobs.table import Table
from stratamq.pipeline.options import parse_options
from tests.unit.logstore.tiny_store import T0, TinyStore

DAY = 86_400_000


def store_of(root, count, *, first=0):
    made = TinyStore(root, file_bytes=16384, queue_file_units=64, index_slots=500, index_entries=2000)
    for number in range(count):
        topic = ["orders", "%RETRY%group"][number % 2]
        made.put(topic, number % 3, b"%d" % number, f"KEYS\x01k{number}\x02", stored=T0 + number * DAY // 40)
    return made.write()


def options_of(store, **more):
    return parse_options({"path": str(store.root), **more})


def rows_in(table_root):
    """Topic, day, queue, offset and body of all rows that a reader of the folder finds."""
    found = []
    for path in table_root.rglob("*.parquet"):
        relative = path.relative_to(table_root)
        if any(part.startswith(("_", ".")) for part in relative.parts):
            continue
        rows = pq.read_table(path, partitioning=None)
        day = relative.parts[1].removeprefix("date=")
        for row in rows.to_pylist():
            assert row["store_timestamp"].date().isoformat() == day
            found.append((tables.topic_of(str(relative)), row["queue_id"], row["queue_offset"], row["body"]))
    return sorted(found)


def expected(store):
    return sorted((one.topic, one.queue_id, one.queue_offset, one.body) for one in store.records)


def test_everything_once_by_topic_and_day(tmp_path):
    store = store_of(tmp_path / "store", 200)
    done = job.export(run_here, options_of(store), Table(tmp_path / "out"))
    assert (done.messages, done.commits, done.lost) == (200, 1, 0)
    assert rows_in(tmp_path / "out") == expected(store)
    days = {path.name for path in (tmp_path / "out").glob("topic=*/date=*")}
    assert len(days) >= 5
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "_stratamq", "topic=%25RETRY%25group", "topic=orders",
    ]  # fmt: skip
    assert job.export(run_here, options_of(store), Table(tmp_path / "out")) == job.Exported(0, 0, 0, 0, 0)


def test_a_second_run_adds_what_is_new(tmp_path):
    table = Table(tmp_path / "out")
    store = store_of(tmp_path / "store", 90)
    job.export(run_here, options_of(store), table)
    (tmp_path / "store").rename(tmp_path / "before")
    longer = store_of(tmp_path / "store", 150)
    assert job.export(run_here, options_of(longer), table).messages == 60
    assert rows_in(tmp_path / "out") == expected(longer)
    assert sum(file.rows for file in table.files()) == 150


def test_times_and_columns(tmp_path):
    store = store_of(tmp_path / "store", 200)
    table = Table(tmp_path / "out")
    bounds = {"startingTimestamp": str(T0 + 2 * DAY), "endingTimestamp": str(T0 + 3 * DAY), "topics": "orders"}
    job.export(run_here, options_of(store, **bounds), table, columns=["queue_id", "queue_offset", "body"])
    wanted = [
        one for one in store.records if one.topic == "orders" and T0 + 2 * DAY <= one.store_timestamp < T0 + 3 * DAY
    ]
    files = [tmp_path / "out" / file.path for file in table.files()]
    found = [row for path in files for row in pq.read_table(path, partitioning=None).to_pylist()]
    assert sorted(row["body"] for row in found) == sorted(one.body for one in wanted)
    assert set(found[0]) == {"queue_id", "queue_offset", "body"}
    assert job.export(run_here, options_of(store, topics="orders"), table).messages == sum(
        one.topic == "orders" and one.store_timestamp >= T0 + 3 * DAY for one in store.records
    ), "the second run goes on where the first ended"
    with pytest.raises(PipelineError, match="no column nonsense"):
        job.export(run_here, options_of(store), table, columns=["nonsense"])


@pytest.mark.parametrize("seed", range(6))
def test_killed_anywhere_and_run_again(tmp_path, monkeypatch, seed):
    """A kill at each step of a commit, or in a task: what a later run leaves is every message once."""
    chance = random.Random(seed)
    store = store_of(tmp_path / "store", 150)
    options = options_of(store)
    steps = {"count": 0, "deadly": chance.randrange(1, 14)}

    def step(real):
        def inner(*arguments, **named):
            steps["count"] += 1
            if steps["count"] == steps["deadly"]:
                raise KeyboardInterrupt
            return real(*arguments, **named)

        return inner

    for _ in range(4):
        with monkeypatch.context() as patched:
            patched.setattr(tables.os, "link", step(tables.os.link))
            patched.setattr(tables.os, "replace", step(tables.os.replace))
            patched.setattr(tables.shutil, "rmtree", step(tables.shutil.rmtree))
            patched.setattr(tables, "write_file", step(tables.write_file))
            steps["count"], steps["deadly"] = 0, chance.randrange(1, 30)
            try:
                job.export(run_here, options, Table(tmp_path / "out"), wave_bytes=chance.choice([1, 4000, 1 << 30]))
            except KeyboardInterrupt:
                found = rows_in(tmp_path / "out")
                assert len(found) == len(set(found)), "a reader sees no message twice at any time"
    job.export(run_here, options, Table(tmp_path / "out"))
    assert rows_in(tmp_path / "out") == expected(store)
    assert list((tmp_path / "out" / "_stratamq").glob("staging/*")) == []
    assert list((tmp_path / "out").rglob("*.tmp")) == []


def test_what_expired_before_it_was_exported_is_loud(tmp_path):
    table = Table(tmp_path / "out")
    store = store_of(tmp_path / "store", 30)
    job.export(run_here, options_of(store), table)
    newest = table.newest()
    path = tmp_path / "out" / "_stratamq" / "commits" / f"{1:020d}.json"
    behind = {key: offset + 100 for key, offset in newest.next_offsets.items()}
    path.write_bytes(tables.encode_commit(newest._replace(next_offsets=behind)))
    with pytest.raises(DataLost, match="--skip-lost"):
        job.export(run_here, options_of(store), table)
    assert job.export(run_here, options_of(store, failOnDataLoss="false"), table).messages == 30


def test_one_table_one_source_one_writer(tmp_path):
    first, second = store_of(tmp_path / "a", 10), store_of(tmp_path / "b", 20)
    table = Table(tmp_path / "out")
    job.export(run_here, options_of(first), table)
    with pytest.raises(PipelineError, match="holds messages of"):
        job.export(run_here, options_of(second), table)
    with table.writing(), pytest.raises(PipelineError, match="another export"):
        job.export(run_here, options_of(first), Table(tmp_path / "out"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', "nonsense", "\xff"])
def test_a_commit_that_cannot_be_read_is_named(tmp_path, text):
    store = store_of(tmp_path / "store", 10)
    table = Table(tmp_path / "out")
    job.export(run_here, options_of(store), table)
    path = tmp_path / "out" / "_stratamq" / "commits" / f"{1:020d}.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(CorruptionError, match="commit 1"):
        job.export(run_here, options_of(store), table)


@pytest.mark.parametrize("path", ["../x.parquet", "/etc/x", "a/../../b"])
def test_a_commit_cannot_name_files_elsewhere(tmp_path, path):
    commit = tables.Commit(1, "s", "x", (tables.ExportedFile(path, "t", 0, 0, 1, 1, 1),), {})
    with pytest.raises(ValueError, match="outside"):
        tables.decode_commit(tables.encode_commit(commit))
    document = json.loads(tables.encode_commit(commit._replace(files=(), staging="../up")))
    with pytest.raises(ValueError, match="outside"):
        tables.decode_commit(json.dumps(document).encode())
