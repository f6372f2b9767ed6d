"""Records and rows of Parquet segments, a row group at a time: NumPy and Arrow do the work, no Python per field.

Two ways there and two ways back. The fast ones take records as almost all are: IPv4 hosts, one topic. The plain ones,
in `parquet`, take anything. Whoever writes compares: what the fast way would not give back byte for byte goes the plain
way.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stratamq.errors import CorruptionError
from stratamq.formats import arrow, vector
from stratamq.formats.message import MAGIC_V1, SYS_BORN_HOST_V6, SYS_STORE_HOST_V6, encode_topic
from stratamq.formats.vector import HEAD_DTYPE, Ints, byte_view, window

HOST_BYTES: Final = 8
NUMBERS: Final = (
    ("queue_id", "queue_id", "i4"),
    ("physical_offset", "physical_offset", "i8"),
    ("flag", "flag", "i4"),
    ("sys_flag", "sys_flag", "i4"),
    ("reconsume_times", "reconsume_times", "i4"),
    ("prepared_transaction_offset", "prepared_transaction_offset", "i8"),
    ("magic", "magic", "i4"),
    ("body_crc", "crc", "i4"),
    ("queue_offset", "queue_offset", "i8"),
)
"""Columns that are fields of a record's head: column, field, type."""
_V6: Final = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6


def table_of(data: bytes, positions: Ints, topic: str, schema: Any) -> Any | None:
    """The rows of a block as a table of ``schema``; None when some record wants the plain way. About 1 us a record."""
    log = byte_view(data)
    checked = vector.check_records(log, positions, end=len(data), physical_base=None)
    heads, parts = checked.heads, checked.parts
    name = topic.encode()
    if (
        checked.flaws.any()
        or (heads["sys_flag"] & _V6).any()
        or (heads["magic"] != MAGIC_V1).any()
        or (parts.topic_bytes != len(name)).any()
        or vector.gather_bytes(log, parts.topic_at, parts.topic_bytes).tobytes() != name * len(positions)
    ):
        return None
    try:
        found = _decoded(data, positions, topic)
    except CorruptionError:
        return None
    buffer = pa.py_buffer(data)
    columns: dict[str, Any] = {column: pa.array(heads[field].astype(kind)) for column, field, kind in NUMBERS}
    for column in ("store_timestamp", "born_timestamp"):
        columns[column] = pa.array(heads[column].astype("i8")).cast(schema.field(column).type)
    for column in ("born_host", "store_host"):
        columns[column] = _fixed(np.ascontiguousarray(heads[column]))
    columns["topic"] = pa.repeat(pa.scalar(topic, pa.string()), len(positions))
    columns["body"] = arrow.gather(buffer, parts.body_at, parts.body_bytes, pa.binary())
    columns["raw_properties"] = arrow.gather(buffer, parts.properties_at, parts.properties_bytes, pa.binary())
    columns["record"] = pa.nulls(len(positions), pa.binary())
    for column in ("tags", "keys", "message_id", "properties"):
        columns[column] = found.column(column)
    table = pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)
    return table if records_of(table) == data else None


def _decoded(data: bytes, positions: Ints, topic: str) -> Any:
    """Tags, keys, ids and properties, as the reader of logs gives them."""
    log = arrow.LogView.over("block", None, data)
    columns = ["tags", "keys", "message_id", "properties"]
    return arrow.record_batch(log, arrow.Rows(positions, topic=topic), columns, decompress=False)


def _fixed(values: Any) -> Any:
    """Values of one size in bytes, one row each, as a binary array."""
    size = values.dtype.itemsize
    offsets = np.arange(0, size * (len(values) + 1), size, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(values.tobytes())]
    )


def records_of(table: Any) -> bytes | None:
    """The records of a table's rows, one after the other; None when some row wants the plain way. About 1 us a row."""
    count = table.num_rows
    topics = pc.unique(table.column("topic"))
    if not count or len(topics) != 1 or table.column("record").null_count != count:
        return None
    heads = np.zeros(count, dtype=HEAD_DTYPE)
    for column, field, _ in NUMBERS:
        heads[field] = _numbers(table, column)
    if (heads["sys_flag"] & _V6).any() or (heads["magic"] != MAGIC_V1).any():
        return None
    for column in ("store_timestamp", "born_timestamp"):
        heads[column] = _numbers(table, column)
    for column in ("born_host", "store_host"):
        hosts = _binary(table, column)
        offsets, data = _offsets(hosts), hosts.buffers()[2]
        if (np.diff(offsets) != HOST_BYTES).any():
            return None
        heads[column] = window(byte_view(data), f"V{HOST_BYTES}")[offsets[:-1]]
    bodies, properties = _binary(table, "body"), _binary(table, "raw_properties")
    topic = encode_topic(topics[0].as_py().encode())
    lengths = np.diff(_offsets(properties))
    heads["body_bytes"] = np.diff(_offsets(bodies))
    heads["size"] = HEAD_DTYPE.itemsize + heads["body_bytes"].astype(np.int64) + len(topic) + 2 + lengths
    if len(topic) > 128 or (lengths > 0x7FFF).any():
        return None
    pieces = (_fixed(heads), bodies, pa.scalar(topic, pa.binary()), _fixed(lengths.astype(">i2")), properties)
    records = pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary()))
    return bytes(memoryview(records.buffers()[2])[: int(_offsets(records)[-1])])


def _numbers(table: Any, column: str) -> Any:
    values = table.column(column).combine_chunks()
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    if values.null_count:
        raise ValueError(f"column {column} has nulls")
    return values.to_numpy(zero_copy_only=False)


def _binary(table: Any, column: str) -> Any:
    """A binary column in one piece."""
    values = table.column(column).combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = values.chunk(0)
    if values.null_count:
        raise ValueError(f"column {column} has nulls")
    return values


def _offsets(values: Any) -> Ints:
    """Where the elements of a binary array begin in its data, and where the last one ends."""
    found = np.frombuffer(values.buffers()[1], dtype=np.int32)[values.offset : values.offset + len(values) + 1]
    return found.astype(np.int64)
