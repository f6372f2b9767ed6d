"""The Arrow reader against pyarrow reading the same rows from Parquet, on one core, from the page cache.

Both give RecordBatches with the same columns and values; both run on one thread (`use_threads=False`), since each of
Spark's tasks has one core. Parquet is written by pyarrow with row groups of 65,536 rows, dictionaries as it chooses,
in three compressions. Rates are bytes of the commit log a second, also for Parquet: the same rows count the same.
"""

from __future__ import annotations

import random
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.rows import Row, pairs
from stratamq.formats import vector
from stratamq.formats.consume_queue import encode_unit
from stratamq.formats.java import tags_code
from stratamq.formats.message import BLANK_BYTES, encode_blank, encode_host, encode_record
from stratamq.logstore.snapshot import StoreSnapshot
from stratamq.pipeline.reader import SCHEMA, arrow_batches, spans_of

STORE_BYTES = 400 * 1024 * 1024
FILE_BYTES = 128 * 1024 * 1024
QUEUES = 8
QUEUE_FILE_BYTES = 6_000_000
TARGET_RATE = 1500.0
NARROW = ["queue_offset", "store_timestamp", "tags"]


def run(rounds: int) -> list[Row]:
    """All rows: whole records and a few columns, 1 KB and 128 B bodies, against three kinds of Parquet."""
    rows: list[Row] = []
    for body_bytes in (1024, 128):
        with store_of(body_bytes) as root:
            rows += _rows(root, body_bytes, rounds)
    return rows


def _rows(root: Path, body_bytes: int, rounds: int) -> list[Row]:
    size_bytes = write_parquet(root)
    found = []
    for codec in ("zstd", "snappy", "none"):
        for job, columns in (("whole records", None), ("3 narrow columns", NARROW)):
            ours, theirs = pairs(
                partial(rate, partial(read_store, root / "store", columns), size_bytes),
                partial(rate, partial(read_parquet, root / codec, columns), size_bytes),
                rounds=rounds,
            )
            note = ""
            if columns is None:
                met = "met" if sorted(ours)[len(ours) // 2] >= TARGET_RATE else "missed"
                note = f"{TARGET_RATE:,.0f} MB/s a core: {met}"
            found.append(
                Row(
                    job=f"read {job}, {body_bytes} B bodies",
                    peer=f"pyarrow {pa.__version__}, Parquet {codec}",
                    unit="MB/s",
                    ours=ours,
                    theirs=theirs,
                    target=1.0 if columns is None else None,
                    note=note,
                )
            )
    return found


def rate(job: Callable[[], int], size_bytes: int) -> float:
    """Commit-log megabytes a second of one run; ``job`` returns how many rows it saw."""
    started = time.perf_counter()
    count = job()
    assert count > 0
    return size_bytes / (time.perf_counter() - started) / 1e6


def read_store(path: Path, columns: list[str] | None) -> int:
    """Read everything as a task does: spans from a snapshot, then batches. Returns the number of rows."""
    count = 0
    with StoreSnapshot.open(path) as snapshot:
        for span in spans_of(snapshot):
            for batch in arrow_batches(snapshot, *span, columns):
                count += batch.num_rows
    return count


def read_parquet(folder: Path, columns: list[str] | None) -> int:
    """Read every file batch by batch on one thread. Returns the number of rows."""
    count = 0
    for path in sorted(folder.iterdir()):
        with pq.ParquetFile(path, memory_map=True) as file:
            for batch in file.iter_batches(batch_size=4096, columns=columns, use_threads=False):
                count += batch.num_rows
    return count


def write_parquet(root: Path) -> int:
    """Write what the store holds as Parquet, one file a queue. Returns the bytes of the log that were read."""
    size_bytes = 0
    with StoreSnapshot.open(root / "store") as snapshot:
        for codec in ("zstd", "snappy", "none"):
            (root / codec).mkdir()
            for span in spans_of(snapshot):
                table = pa.Table.from_batches(arrow_batches(snapshot, *span), SCHEMA)
                pq.write_table(
                    table, root / codec / f"{span.queue_id}.parquet", compression=codec, row_group_size=65_536
                )
        for span in spans_of(snapshot):
            size_bytes += int(snapshot.units(*span)["size"].sum(dtype=np.int64))
    return size_bytes


@contextmanager
def store_of(body_bytes: int, *, store_bytes: int = STORE_BYTES) -> Iterator[Path]:
    """A folder with a store in ``store``: order events over eight queues, bodies of about ``body_bytes``."""
    root = Path(tempfile.mkdtemp(prefix="stratamq-bench-bulk-"))
    try:
        write_store(root / "store", body_bytes, store_bytes)
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def write_store(path: Path, body_bytes: int, store_bytes: int) -> None:
    """Write the store with the codecs alone."""
    chooser = random.Random(7)
    host = encode_host("10.1.2.3", 10911)
    fragments = [
        f'{{"sku":"{chooser.randrange(10**6):06d}","qty":{chooser.randrange(9)},"price":{chooser.randrange(10**4)}.90,'
        f'"ref":"{chooser.getrandbits(64):016x}"}},'
        for _ in range(100_000)
    ]
    per_body = max(1, round(body_bytes / len(fragments[0])))
    (path / "commitlog").mkdir(parents=True)
    units: list[list[bytes]] = [[] for _ in range(QUEUES)]
    log = bytearray()
    number = 0
    while len(log) < store_bytes:
        tag = f"Tag{number % 5}"
        body = "".join(chooser.choices(fragments, k=per_body + chooser.randrange(-1, 2) % (per_body + 1))).encode()
        properties = (
            f"KEYS\x01order-{number}\x02UNIQ_KEY\x017F000001ABCD18B4AAC2{number:012X}\x02CLUSTER\x01DefaultCluster"
            f"\x02TAGS\x01{tag}\x02"
        )
        queue = number % QUEUES

        def encode(
            position: int, body: bytes = body, properties: str = properties, queue: int = queue, number: int = number
        ) -> bytes:
            return encode_record(
                body=body,
                topic=b"orders",
                properties=properties.encode(),
                queue_id=queue,
                flag=0,
                queue_offset=number // QUEUES,
                physical_offset=position,
                sys_flag=0,
                born_timestamp=1_700_000_000_000 + number,
                born_host=host,
                store_timestamp=1_700_000_000_000 + number,
                store_host=host,
            )

        data = encode(len(log))
        left = FILE_BYTES - len(log) % FILE_BYTES
        if len(data) + BLANK_BYTES > left:
            log += encode_blank(left).ljust(left, b"\0")
            data = encode(len(log))
        units[queue].append(encode_unit(len(log), len(data), tags_code(tag)))
        log += data
        number += 1
    for base in range(0, len(log), FILE_BYTES):
        (path / "commitlog" / f"{base:020d}").write_bytes(log[base : base + FILE_BYTES].ljust(FILE_BYTES, b"\0"))
    for queue, found in enumerate(units):
        folder = path / "consumequeue" / "orders" / str(queue)
        folder.mkdir(parents=True)
        stream = b"".join(found)
        for base in range(0, len(stream), QUEUE_FILE_BYTES):
            part = stream[base : base + QUEUE_FILE_BYTES].ljust(QUEUE_FILE_BYTES, b"\0")
            (folder / f"{base:020d}").write_bytes(part)


def main() -> None:
    """Print the rows, and what single steps cost."""
    for row in run(5):
        ours, theirs = sorted(row.ours)[len(row.ours) // 2], sorted(row.theirs)[len(row.theirs) // 2]
        print(f"{row.job:40s} {row.peer:32s} {ours:8,.0f} {theirs:8,.0f} MB/s  ratio {row.ratio:.2f}  {row.note}")
    for body_bytes in (1024, 128):
        with store_of(body_bytes) as root:
            steps(root / "store")


def steps(path: Path) -> None:
    """What single steps cost a record, warm."""
    with StoreSnapshot.open(path) as snapshot:
        count = sum(span.hi - span.lo for span in spans_of(snapshot))
        file = snapshot.files[0]
        log = snapshot.bytes_of(file)
        walked = vector.walk(log, 0, file.length, physical_base=file.base)
        checked = vector.check_records(log, walked.positions, end=file.length, physical_base=file.base)
        jobs: list[tuple[str, Callable[[], object], int]] = [
            ("walk frames", lambda: vector.walk(log, 0, file.length, physical_base=0), len(walked.positions)),
            (
                "check heads and lengths",
                lambda: vector.check_records(log, walked.positions, end=file.length, physical_base=0),
                len(walked.positions),
            ),
            ("compare checksums", lambda: vector.crc_matches(log, checked), len(walked.positions)),
        ]
        jobs += [(f"column {name}", partial(read_store, path, [name]), count) for name in SCHEMA.names]
        jobs.append(("all columns", lambda: read_store(path, None), count))
        for name, job, records in jobs:
            best = min(_seconds(job) for _ in range(3))
            print(f"  {name:28s} {best / records * 1e9:7.0f} ns a record")


def _seconds(job: Callable[[], object]) -> float:
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


if __name__ == "__main__":
    assert struct.calcsize("P") == 8
    main()
