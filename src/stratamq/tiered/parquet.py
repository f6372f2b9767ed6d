"""Parquet segments of the cold tier: one row a message, with everything that the record needs to be made again.

Readers such as Spark, DuckDB and Polars use the columns; the broker puts the records together again, byte for byte, and
checks that with the index's CRC. A record that cannot be put together from its columns (one with lengths that other
writers would not have chosen, say) is kept whole in the column ``record``. Columns: docs/formats/cold-parquet.md.

Needs pyarrow; imported only where a segment is or should be Parquet.
"""

from __future__ import annotations

import io
import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stratamq.errors import CorruptionError
from stratamq.formats import cold_names as names
from stratamq.formats.cold_manifest import PARQUET, Segment
from stratamq.formats.cold_names import Lifetime
from stratamq.formats.cold_segment import (
    HEAD,
    MAGIC,
    VERSION,
    IndexBuilder,
    RawBlock,
    SegmentIndex,
    check_block,
    record_positions,
)
from stratamq.formats.message import MAGIC_V2, decode_record, head_struct
from stratamq.formats.properties import KEYS, TAGS, UNIQ_KEY, decode_properties
from stratamq.tiered import parquet_rows
from stratamq.tiered.backend import Backend, put_checked
from stratamq.tiered.joining import flat_blocks, read_index
from stratamq.units import MiB

ROWS_A_GROUP: Final = 1_024
GROUP_BYTES_MIN: Final = MiB
GROUP_BYTES_MAX: Final = 8 * MiB
"""A row group ends at so many rows or ``GROUP_BYTES_MIN`` of records, whichever is more, and at ``GROUP_BYTES_MAX``."""
_TIME: Final = pa.timestamp("ms", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        ("queue_offset", pa.int64()),
        ("store_timestamp", _TIME),
        ("born_timestamp", _TIME),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("tags", pa.string()),
        ("keys", pa.string()),
        ("message_id", pa.string()),
        ("body", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("physical_offset", pa.int64()),
        ("flag", pa.int32()),
        ("sys_flag", pa.int32()),
        ("reconsume_times", pa.int32()),
        ("prepared_transaction_offset", pa.int64()),
        ("born_host", pa.binary()),
        ("store_host", pa.binary()),
        ("magic", pa.int32()),
        ("body_crc", pa.int32()),
        ("raw_properties", pa.binary()),
        ("record", pa.binary()),
    ]
)
_REBUILD: Final = (
    "magic",
    "body_crc",
    "queue_id",
    "flag",
    "queue_offset",
    "physical_offset",
    "sys_flag",
    "born_timestamp",
    "born_host",
    "store_timestamp",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
    "body",
    "topic",
    "raw_properties",
    "record",
)
FOOTERS_MAX: Final = 64
"""Footers that are kept decoded: some hundred kilobytes each."""
_footers: Final[dict[str, Any]] = {}
"""By name of the object, which is used once. Threads may find one missing; then they read it again."""
_I16: Final = struct.Struct(">h")
NOT_PARQUET: Final = (pa.ArrowException, OSError, ValueError, TypeError, IndexError, OverflowError, struct.error)
"""What pyarrow, or putting records together, raises over damaged files."""


def row_of(record: bytes) -> dict[str, Any]:
    """One record as a row of the table; `record_of` makes the same bytes of it again."""
    found = decode_record(record)
    properties = decode_properties(found.properties)
    raw = record[len(record) - _I16.unpack_from(record, _properties_at(record))[0] :] if found.properties else b""
    row: dict[str, Any] = {
        "queue_offset": found.queue_offset,
        "store_timestamp": found.store_timestamp,
        "born_timestamp": found.born_timestamp,
        "topic": found.topic,
        "queue_id": found.queue_id,
        "tags": properties.get(TAGS),
        "keys": properties.get(KEYS),
        "message_id": properties.get(UNIQ_KEY) or found.message_id,
        "body": found.body,
        "properties": list(properties.items()),
        "physical_offset": found.physical_offset,
        "flag": found.flag,
        "sys_flag": found.sys_flag,
        "reconsume_times": found.reconsume_times,
        "prepared_transaction_offset": found.prepared_transaction_offset,
        "born_host": found.born_host,
        "store_host": found.store_host,
        "magic": found.magic,
        "body_crc": found.crc,
        "raw_properties": raw,
        "record": None,
    }
    if record_of(row) != record:
        row["record"] = record
    return row


def _properties_at(record: bytes) -> int:
    """Where the length of the properties stands."""
    head = head_struct(struct.unpack_from(">i", record, 36)[0])
    at: int = head.size + struct.unpack_from(">i", record, head.size - 4)[0]
    if struct.unpack_from(">i", record, 4)[0] == MAGIC_V2:
        return at + 2 + int(_I16.unpack_from(record, at)[0])
    return at + 1 + record[at]


def record_of(row: dict[str, Any]) -> bytes:
    """The record of a row, byte for byte as it was stored."""
    if row["record"] is not None:
        return bytes(row["record"])
    body, topic, properties = row["body"], row["topic"].encode(), row["raw_properties"]
    length = _I16.pack(len(topic)) if row["magic"] == MAGIC_V2 else bytes((len(topic) & 0xFF,))
    head = head_struct(row["sys_flag"])
    fields = (
        head.size + len(body) + len(length) + len(topic) + 2 + len(properties),
        row["magic"],
        row["body_crc"],
        row["queue_id"],
        row["flag"],
        row["queue_offset"],
        row["physical_offset"],
        row["sys_flag"],
        row["born_timestamp"],
        row["born_host"],
        row["store_timestamp"],
        row["store_host"],
        row["reconsume_times"],
        row["prepared_transaction_offset"],
        len(body),
    )
    return b"".join((head.pack(*fields), body, length, topic, _I16.pack(len(properties)), properties))


# --- writing ------------------------------------------------------------------------------------------------------


def parquet_of(blocks: Iterator[RawBlock], topic: str) -> tuple[bytes, bytes]:
    """A Parquet file and its index, of blocks that follow each other in a queue. A function of its input."""
    sink = io.BytesIO()
    index = IndexBuilder()
    sizes: list[int] = []
    with pq.ParquetWriter(
        sink,
        SCHEMA,
        compression="zstd",
        compression_level=3,
        use_dictionary=["topic", "tags"],
        write_statistics=["queue_offset", "store_timestamp", "born_timestamp", "tags"],
        write_page_index=True,
    ) as writer:
        for block in regrouped(blocks):
            before = sink.tell()
            writer.write_table(table_of_block(block.data, topic), row_group_size=block.messages)
            sizes.append(sink.tell() - before)
            index.add(block, len(sizes) - 1, sizes[-1])
    head = HEAD.pack(MAGIC, VERSION)
    return sink.getvalue(), head + index.encode(len(head))


def table_of_block(data: bytes, topic: str) -> Any:
    """The rows of a block of records; `records_of` gives exactly the block again."""
    positions = record_positions(data)
    table = parquet_rows.table_of(data, positions, topic, SCHEMA)
    if table is None:
        bounds = [*positions.tolist(), len(data)]
        table = pa.Table.from_pylist([row_of(data[a:b]) for a, b in itertools.pairwise(bounds)], schema=SCHEMA)
    return table


def records_of(table: Any) -> bytes:
    """The records of a table's rows, one after the other."""
    fast = parquet_rows.records_of(table)
    return b"".join(map(record_of, _rows(table))) if fast is None else fast


def regrouped(blocks: Iterator[RawBlock]) -> Iterator[RawBlock]:
    """Blocks joined into the size of row groups."""
    held: list[RawBlock] = []
    rows = size = 0
    for block in blocks:
        rows, size = rows + block.messages, size + len(block.data)
        if held and (size > GROUP_BYTES_MAX or (rows > ROWS_A_GROUP and size > GROUP_BYTES_MIN)):
            yield _joined(held)
            held, rows, size = [], block.messages, len(block.data)
        held.append(block)
    if held:
        yield _joined(held)


def _joined(blocks: Sequence[RawBlock]) -> RawBlock:
    first = blocks[0].first
    return RawBlock(
        b"".join(block.data for block in blocks),
        first,
        sum(block.messages for block in blocks),
        min(block.min_ms for block in blocks),
        max(block.max_ms for block in blocks),
        np.concatenate([block.hashes for block in blocks]),
        np.concatenate([block.rows + np.uint32(block.first - first) for block in blocks]),
    )


def join_to_parquet(
    backend: Backend, life: Lifetime, segments: Sequence[Segment], epoch: int, unique: str, made_ms: int
) -> Segment:
    """One Parquet segment of flat ones that follow each other; puts file and index. Blocks. Raises CorruptionError."""

    def blocks() -> Iterator[RawBlock]:
        for segment in segments:
            for _, block in flat_blocks(backend.read(segment.name), segment):
                yield block

    data, index = parquet_of(blocks(), life.topic)
    first, last = segments[0].first, segments[-1].last
    min_ms = min(segment.min_ms for segment in segments)
    name = names.parquet_name(life, first, last, epoch, unique, time_ms=min_ms)
    index_name = names.segment_name(life, first, last, epoch, unique, kind="idx")
    size = put_checked(backend, name, [data])
    index_size = put_checked(backend, index_name, [index])
    return Segment(
        name=name,
        format=PARQUET,
        first=first,
        last=last,
        bytes=size,
        raw_bytes=sum(segment.raw_bytes for segment in segments),
        min_ms=min_ms,
        max_ms=max(segment.max_ms for segment in segments),
        index_name=index_name,
        index_at=HEAD.size,
        index_bytes=index_size - HEAD.size,
        sealed_ms=made_ms,
    )


# --- reading ------------------------------------------------------------------------------------------------------


class _RangeFile(io.RawIOBase):
    """An object as a file that is read in ranges. The end, where the footer is, is fetched once."""

    def __init__(self, backend: Backend, name: str, size: int) -> None:
        self._backend = backend
        self._name = name
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._size - self._at)
        data = self._backend.read(self._name, self._at, wanted) if wanted > 0 else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def open_segment(backend: Backend, segment: Segment) -> pq.ParquetFile:
    """A Parquet segment to read columns of, in a ``with``. Fetches the footer unless it is known. Blocks.

    Raises CorruptionError. What reading from it raises over damaged files: `NOT_PARQUET`.
    """
    try:
        source = pa.PythonFile(_RangeFile(backend, segment.name, segment.bytes), mode="r")
        file = pq.ParquetFile(source, metadata=_footers.get(segment.name), pre_buffer=True)
        _footers[segment.name] = file.metadata
        while len(_footers) > FOOTERS_MAX:
            _footers.pop(next(iter(_footers)), None)
    except NOT_PARQUET as error:
        raise CorruptionError(segment.name, 0, "Parquet as it was written", str(error)[:200]) from error
    return file


def read_groups(backend: Backend, segment: Segment, index: SegmentIndex, numbers: Sequence[int]) -> Iterator[bytes]:
    """The records of some row groups, each group as one block. Blocks. Raises CorruptionError."""
    with open_segment(backend, segment) as file:
        for number in numbers:
            try:
                data = records_of(file.read_row_group(number, columns=list(_REBUILD), use_threads=False))
            except NOT_PARQUET as error:
                raise CorruptionError(segment.name, 0, "Parquet as it was written", str(error)[:200]) from error
            check_block(data, index, number, path=segment.name)
            yield data


def _rows(table: Any) -> Iterator[dict[str, Any]]:
    for name in ("born_timestamp", "store_timestamp"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table.column(at).cast(pa.int64()))
    columns = [table.column(name).to_pylist() for name in _REBUILD]
    for values in zip(*columns, strict=True):
        yield dict(zip(_REBUILD, values, strict=True))


def read_records(backend: Backend, segment: Segment) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of every record of a Parquet segment."""
    index = read_index(backend, segment)
    groups = read_groups(backend, segment, index, range(len(index.blocks)))
    for first, data in zip(index.blocks["first"].tolist(), groups, strict=True):
        positions = [*record_positions(data).tolist(), len(data)]
        for n in range(len(positions) - 1):
            yield first + n, data[positions[n] : positions[n + 1]]
