"""Commit-log records as Arrow columns, laid over the mapped file.

A frame is head, body, topic, properties; a column wants one of those of every record in one piece. For that an Arrow
binary array is laid over the mapping without a copy, with one element for each wanted piece and one for each gap,
and one ``take`` of every second element gathers the pieces in C++. Where the caller can use Arrow's view types, bodies
are not copied at all (`BinaryView` elements that point into the mapping: a file is below 2 GiB, so offsets fit).

Only the columns that are asked for are built, and only what they need is read. Property strings are taken apart for the
whole batch at once (`formats.vector_properties`), with the tolerance of `formats.properties.decode_properties`.

The one module of ``formats`` that needs pyarrow. Why it is built like this, and figures: docs/design/bulk-reader.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stratamq.errors import BadLength, BadMagic, CorruptionError, MisplacedRecord, PipelineError, TruncatedRecord
from stratamq.formats import vector
from stratamq.formats.message import (
    SYS_BORN_HOST_V6,
    SYS_COMPRESSED,
    SYS_COMPRESSION_MASK,
    SYS_STORE_HOST_V6,
    decode_host,
)
from stratamq.formats.vector import Bytes, Ints
from stratamq.formats.vector_properties import Properties, clean_utf8, split_properties
from stratamq.units import Buffer, GiB, MiB

Array: TypeAlias = Any
"""A pyarrow.Array; pyarrow has no types of its own."""

_TIME: Final = pa.timestamp("us", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("physical_offset", pa.int64()),
        ("store_timestamp", _TIME),
        ("born_timestamp", _TIME),
        ("born_host", pa.string()),
        ("store_host", pa.string()),
        ("tags", pa.string()),
        ("keys", pa.string()),
        ("message_id", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("body", pa.binary()),
        ("flag", pa.int32()),
        ("sys_flag", pa.int32()),
        ("reconsume_times", pa.int32()),
    ]
)
"""All columns. ``tags`` and ``keys`` are null where a record has none; nothing else is ever null."""

UNIT_COLUMNS: Final = frozenset({"topic", "queue_id", "queue_offset", "physical_offset"})
"""Columns that the consume queue knows by itself: asked for alone, the commit log is not touched."""

DECOMPRESSED_BODY_BYTES_MAX: Final = 256 * MiB
DECOMPRESSED_BATCH_BYTES_MAX: Final = GiB
_HEX: Final = np.array([f"{value:02X}".encode() for value in range(256)], dtype="S2").view("<u2")
_COMPRESSION_LZ4: Final = 0x100
_COMPRESSION_ZSTD: Final = 0x200


class DecompressionFailed(CorruptionError):
    """A body that is marked as compressed cannot be decompressed."""

    what = "body that does not decompress"


class LogView(NamedTuple):
    """One mapped commit-log file: its bytes for NumPy and for Arrow, its name and its first physical offset.

    The offset is None for records that were copied out of their log: what each says of its own place is taken as it is.
    """

    path: str
    physical_base: int | None
    data: Bytes
    buffer: Any

    @classmethod
    def over(cls, path: str, physical_base: int | None, mapping: Buffer) -> LogView:
        """Lay a view over a mapping, which stays alive as long as anything made from it."""
        return cls(path, physical_base, vector.byte_view(mapping), pa.py_buffer(mapping))


class Rows(NamedTuple):
    """Which records become one batch: positions in the file, ascending, and what the consume queue says of them.

    ``sizes`` and ``queue_offsets``, where given, are compared with the records. ``topic``, where given, is the topic
    of all of them and is not read from the log.
    """

    positions: Ints
    topic: str | None = None
    queue_id: int | None = None
    queue_offsets: Ints | None = None
    sizes: Ints | None = None


def schema_of(columns: Sequence[str] | None, *, views: bool = False) -> Any:
    """The schema of batches with these columns, in this order. Raises PipelineError for an unknown column."""
    names = list(SCHEMA.names if columns is None else columns)
    unknown = sorted(set(names) - set(SCHEMA.names))
    if unknown:
        raise PipelineError(f"unknown column {', '.join(unknown)}; there are {', '.join(SCHEMA.names)}")
    fields = [SCHEMA.field(name) for name in names]
    if views:
        fields = [pa.field("body", pa.binary_view()) if field.name == "body" else field for field in fields]
    return pa.schema(fields)


def record_batch(
    log: LogView, rows: Rows, columns: Sequence[str] | None = None, *, decompress: bool = True, views: bool = False
) -> Any:
    """The records at ``rows.positions`` as a pyarrow.RecordBatch with the columns asked for (None: all).

    Args:
        log: The mapped file.
        rows: The records; together below 2 GiB of bodies.
        columns: Names from `SCHEMA`, in the order wanted.
        decompress: Give bodies as the producer wrote them; otherwise as stored. LZ4 frames, Zstandard and zlib.
        views: Give bodies as Arrow binary views into the mapping, without a copy.

    Raises:
        BadMagic, BadLength, TruncatedRecord, MisplacedRecord: A record is not what the positions promise; the first
            one is named. Bodies' checksums are not compared: that is what ``store check`` is for.
        DecompressionFailed: A compressed body is damaged, or decompresses to more than 256 MiB.
        PipelineError: Unknown column.
    """
    schema = schema_of(columns, views=views)
    batch = _Batch(log, rows, decompress=decompress, views=views)
    arrays = [_BUILDERS[name](batch) for name in schema.names]
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows.positions), pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def gather(buffer: Any, starts: Ints, lengths: Ints, kind: Any) -> Array:
    """Copy byte ranges of ``buffer`` into one contiguous binary or string array; ranges must ascend, ends below 2 GiB.

    Cost: about 30 ns a range and the copying itself.
    """
    count = len(starts)
    if not count:
        return pa.array([], kind)
    return _pieces(buffer, starts, lengths, kind).take(_even_numbers(count))


def _pieces(buffer: Any, starts: Ints, lengths: Ints, kind: Any) -> Array:
    """An array over ``buffer``, no copy: element 2i is range i, the odd ones are the gaps between."""
    bounds = np.empty(2 * len(starts), dtype=np.int32)
    bounds[0::2] = starts
    bounds[1::2] = starts + lengths
    return pa.Array.from_buffers(kind, len(bounds) - 1, [None, pa.py_buffer(bounds), buffer])


@lru_cache(maxsize=8)
def _even_numbers(count: int) -> Array:
    return pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))


class _Batch:
    """What several columns of one batch need, each made at most once."""

    def __init__(self, log: LogView, rows: Rows, *, decompress: bool, views: bool) -> None:
        self.log = log
        self.rows = rows
        self.count = len(rows.positions)
        self.decompress = decompress
        self.views = views

    @cached_property
    def heads(self) -> vector.Heads:
        """Fixed heads, compared with what the consume queue says."""
        positions = self.rows.positions
        heads, flaws = vector.check_heads(
            self.log.data, positions, end=len(self.log.data), physical_base=self.log.physical_base
        )
        if flaws.any():
            raise _flaw_error(self.log, int(positions[np.flatnonzero(flaws)[0]]), heads, flaws)
        for name, hint in (("sizes", "size"), ("queue_offsets", "queue_offset")):
            stated = getattr(self.rows, name)
            if stated is not None and (wrong := stated != heads[hint]).any():
                row = int(np.flatnonzero(wrong)[0])
                raise MisplacedRecord(
                    self.log.path,
                    int(positions[row]),
                    f"{hint.replace('_', ' ')} {int(stated[row])} as in the consume queue",
                    int(heads[hint][row]),
                    hint="run: stratamq store check",
                )
        return heads

    @property
    def physical_offsets(self) -> Ints:
        """Where the records lie, or lay, in their log."""
        if self.log.physical_base is not None:
            return self.rows.positions + self.log.physical_base
        offsets: Ints = self.heads["physical_offset"].astype(np.int64)
        return offsets

    @cached_property
    def parts(self) -> vector.Parts:
        """Where the variable parts lie."""
        flaws = np.zeros(self.count, dtype=np.uint8)
        parts = vector.check_parts(self.log.data, self.rows.positions, self.heads, flaws)
        if flaws.any():
            raise _flaw_error(self.log, int(self.rows.positions[np.flatnonzero(flaws)[0]]), self.heads, flaws)
        return parts

    @cached_property
    def properties(self) -> Properties:
        """All properties of all records."""
        parts = self.parts
        gathered = gather(self.log.buffer, parts.properties_at, parts.properties_bytes, pa.binary())
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(parts.properties_bytes)))
        raw = gathered.buffers()[2] if self.count else None
        data = np.frombuffer(raw, dtype=np.uint8)[: offsets[-1]] if raw else np.zeros(0, dtype=np.uint8)
        return split_properties(*clean_utf8(data, offsets))

    @cached_property
    def property_pieces(self) -> Array:
        """A string array over the properties: element 4i is name i, 4i+2 its value, the odd ones are separators."""
        found = self.properties
        starts = np.empty(2 * len(found.row), dtype=np.int64)
        ends = np.empty_like(starts)
        starts[0::2], starts[1::2] = found.name_at, found.value_at
        ends[0::2], ends[1::2] = found.value_at - 1, found.value_end
        return _pieces(pa.py_buffer(found.data), starts, ends - starts, pa.string()) if len(starts) else None

    def property_values(self, name: bytes) -> Array:
        """The values of one property, null where a record lacks it."""
        numbers = self.properties.find(name)
        if self.property_pieces is None:
            return pa.nulls(self.count, pa.string())
        return self.property_pieces.take(pa.array(4 * numbers + 2, mask=numbers < 0))


def _flaw_error(log: LogView, position: int, heads: vector.Heads, flaws: npt.NDArray[np.uint8]) -> CorruptionError:
    """The typed error for the first flawed record of a batch."""
    row = int(np.flatnonzero(flaws)[0])
    head, code = heads[row], int(flaws[row])
    hint = "run: stratamq store check"
    if code == vector.MAGIC:
        found = f"{int(head['magic']) & 0xFFFFFFFF:08X}"
        return BadMagic(log.path, position + 4, "DAA320A7 or DAA320AB", found, hint=hint)
    if code == vector.TRUNCATED:
        return TruncatedRecord(log.path, position, "a whole record", "the end of the file", hint=hint)
    if code == vector.OFFSET and log.physical_base is not None:
        expected = log.physical_base + position
        return MisplacedRecord(log.path, position + 28, expected, int(head["physical_offset"]), hint=hint)
    return BadLength(log.path, position, "parts that fill the record", f"size {int(head['size'])}", hint=hint)


# --- columns --------------------------------------------------------------------------------------------------


def _numbers(field: str, form: str) -> Callable[[_Batch], Array]:
    return lambda batch: pa.array(batch.heads[field].astype(form))


def _times(field: str) -> Callable[[_Batch], Array]:
    def build(batch: _Batch) -> Array:
        micros = batch.heads[field].astype(np.int64) * 1000
        return pa.Array.from_buffers(_TIME, batch.count, [None, pa.py_buffer(micros)])

    return build


def _topic(batch: _Batch) -> Array:
    if batch.rows.topic is not None:
        return pa.repeat(pa.scalar(batch.rows.topic, pa.string()), batch.count)
    parts = batch.parts
    topics = gather(batch.log.buffer, parts.topic_at, parts.topic_bytes, pa.binary())
    try:
        return topics.cast(pa.string())
    except pa.ArrowInvalid as error:
        at = int(parts.topic_at[0]) if batch.count else 0
        raise CorruptionError(batch.log.path, at, "topics in UTF-8 from here on", str(error)) from error


def _queue_id(batch: _Batch) -> Array:
    if batch.rows.queue_id is not None:
        return pa.repeat(pa.scalar(batch.rows.queue_id, pa.int32()), batch.count)
    return pa.array(batch.heads["queue_id"].astype(np.int32))


def _queue_offset(batch: _Batch) -> Array:
    if batch.rows.queue_offsets is not None:
        return pa.array(batch.rows.queue_offsets)
    return pa.array(batch.heads["queue_offset"].astype(np.int64))


def _physical_offset(batch: _Batch) -> Array:
    return pa.array(batch.physical_offsets)


@lru_cache(maxsize=65536)
def _host_text(host: bytes) -> str:
    return str(decode_host(host))


def _hosts(*, born: bool) -> Callable[[_Batch], Array]:
    def build(batch: _Batch) -> Array:
        if not batch.count:
            return pa.array([], pa.string())
        sys_flag = batch.heads["sys_flag"]
        if not (sys_flag & (SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6)).any():
            hosts = np.ascontiguousarray(batch.heads["born_host" if born else "store_host"])
            return _texts_of(hosts.view("<u8"), lambda number: number.to_bytes(8, "little"))
        rows = vector.gather_hosts(batch.log.data, batch.rows.positions, sys_flag, born=born)
        return _texts_of(rows.view("S21").ravel(), _unpadded)

    return build


def _texts_of(hosts: npt.NDArray[Any], host_of: Callable[[Any], bytes]) -> Array:
    """Hosts as text, each distinct one decoded once; mostly there is one, or few."""
    if not (hosts != hosts[0]).any():
        return pa.repeat(pa.scalar(_host_text(host_of(hosts[:1].tolist()[0])), pa.string()), len(hosts))
    distinct, which = np.unique(hosts, return_inverse=True)
    texts = [_host_text(host_of(host)) for host in distinct.tolist()]
    return pa.array(texts, pa.string()).take(pa.array(which.ravel()))


def _unpadded(row: bytes) -> bytes:
    """The host in a row of `vector.gather_hosts`, which NumPy has stripped of zeros at its end."""
    row = row.ljust(21, b"\0")
    return row[1:] if row[0] else row[1:5] + row[17:]


def _message_id(batch: _Batch) -> Array:
    given = batch.property_values(b"UNIQ_KEY")
    if not given.null_count:
        return given
    lacking = np.flatnonzero(np.asarray(given.is_null()))
    which = np.arange(batch.count)
    which[lacking] = batch.count + np.arange(len(lacking))
    return pa.concat_arrays([given, _offset_message_ids(batch, lacking)]).take(pa.array(which))


def _offset_message_ids(batch: _Batch, rows: npt.NDArray[np.intp]) -> Array:
    """Hex of store host and physical offset of some rows (`message.offset_message_id`)."""
    positions, sys_flag = batch.rows.positions[rows], batch.heads["sys_flag"][rows]
    hosts = vector.gather_hosts(batch.log.data, positions, sys_flag, born=False)
    offsets = batch.physical_offsets[rows].astype(">i8").view(np.uint8).reshape(-1, 8)
    v6 = (sys_flag & SYS_STORE_HOST_V6) != 0
    if not v6.any():
        raw = np.concatenate((hosts[:, 1:5], hosts[:, 17:], offsets), axis=1)
        text = _HEX[raw]
        ends = np.arange(len(rows) + 1, dtype=np.int32) * 32
        return pa.Array.from_buffers(pa.string(), len(rows), [None, pa.py_buffer(ends), pa.py_buffer(text)])
    hosts_at = [slice(1, 21) if wide else np.r_[1:5, 17:21] for wide in v6.tolist()]
    ids = [
        (host[at].tobytes() + offset.tobytes()).hex().upper()
        for host, at, offset in zip(hosts, hosts_at, offsets, strict=True)
    ]
    return pa.array(ids, pa.string())


def _properties(batch: _Batch) -> Array:
    found, pieces = batch.properties, batch.property_pieces
    count = len(found.row)
    if pieces is None:
        names = values = pa.array([], pa.string())
    else:
        every_fourth = np.arange(0, 4 * count, 4, dtype=np.int32)
        names = pieces.take(pa.array(every_fourth))
        values = pieces.take(pa.array(every_fourth + 2))
    return pa.MapArray.from_arrays(pa.array(found.row_starts.astype(np.int32)), names, values)


def _body(batch: _Batch) -> Array:
    parts, buffer = batch.parts, batch.log.buffer
    if batch.decompress:
        compressed = (batch.heads["sys_flag"] & SYS_COMPRESSED) != 0
        if compressed.any():
            plain = pa.array(_decompressed(batch, compressed), pa.binary())
            return plain.cast(pa.binary_view()) if batch.views else plain
    if not batch.views:
        return gather(buffer, parts.body_at, parts.body_bytes, pa.binary())
    return _views(batch.log, parts.body_at, parts.body_bytes)


def _views(log: LogView, starts: Ints, lengths: Ints) -> Array:
    """Binary views into the mapping: 16 bytes each, values up to 12 bytes inline as Arrow demands."""
    views = np.zeros((len(starts), 4), dtype="<i4")
    views[:, 0] = lengths
    long = lengths > 12
    at = np.minimum(starts, max(0, len(log.data) - 4))
    views[:, 1] = vector.window(log.data, "<i4")[at]
    views[:, 3] = starts
    for row in np.flatnonzero(~long).tolist():
        short = log.data[int(starts[row]) : int(starts[row] + lengths[row])].tobytes()
        views[row, 1:] = np.frombuffer(short.ljust(12, b"\0"), dtype="<i4")
    return pa.Array.from_buffers(pa.binary_view(), len(starts), [None, pa.py_buffer(views), log.buffer])


def _decompressed(batch: _Batch, compressed: npt.NDArray[np.bool_]) -> list[bytes]:
    """All bodies of a batch in which some are compressed: one Python object each."""
    parts = batch.parts
    bodies = vector.slices_of(batch.log.data, parts.body_at, parts.body_bytes)
    kinds = batch.heads["sys_flag"] & SYS_COMPRESSION_MASK
    total = sum(map(len, bodies))
    for row in np.flatnonzero(compressed).tolist():
        try:
            bodies[row] = decompress_body(bodies[row], int(kinds[row]))
        except (ValueError, OSError, zlib.error, pa.ArrowException) as error:
            hint = "read with decompress=False to get the bytes as they are"
            found = f"{len(bodies[row])} bytes ({error})"
            raise DecompressionFailed(
                batch.log.path, int(parts.body_at[row]), "a compressed body", found, hint=hint
            ) from error
        total += len(bodies[row])
        if total > DECOMPRESSED_BATCH_BYTES_MAX:
            limit = f"at most {DECOMPRESSED_BATCH_BYTES_MAX} bytes a batch"
            hint = "ask for fewer rows a batch"
            raise DecompressionFailed(batch.log.path, int(parts.body_at[row]), limit, "more", hint=hint)
    return bodies


def decompress_body(body: bytes, kind: int) -> bytes:
    """The body as the producer wrote it; ``kind`` is the sys flag's compression bits.

    Source: apache/rocketmq common/.../compression; 0 with the compressed bit set means zlib (old clients).

    Raises:
        ValueError, OSError, zlib.error, pyarrow.ArrowException: Damaged, or larger than 256 MiB.
    """
    if kind in (_COMPRESSION_LZ4, _COMPRESSION_ZSTD):
        codec = "lz4" if kind == _COMPRESSION_LZ4 else "zstd"
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            plain: bytes = stream.read(DECOMPRESSED_BODY_BYTES_MAX + 1)
    else:
        decoder = zlib.decompressobj()
        plain = decoder.decompress(body, DECOMPRESSED_BODY_BYTES_MAX + 1)
        if not decoder.eof and len(plain) <= DECOMPRESSED_BODY_BYTES_MAX:
            raise ValueError("the compressed data ends too early")
    if len(plain) > DECOMPRESSED_BODY_BYTES_MAX:
        raise ValueError(f"decompresses to more than {DECOMPRESSED_BODY_BYTES_MAX} bytes")
    return plain


_BUILDERS: Final[dict[str, Callable[[_Batch], Array]]] = {
    "topic": _topic,
    "queue_id": _queue_id,
    "queue_offset": _queue_offset,
    "physical_offset": _physical_offset,
    "store_timestamp": _times("store_timestamp"),
    "born_timestamp": _times("born_timestamp"),
    "born_host": _hosts(born=True),
    "store_host": _hosts(born=False),
    "tags": lambda batch: batch.property_values(b"TAGS"),
    "keys": lambda batch: batch.property_values(b"KEYS"),
    "message_id": _message_id,
    "properties": _properties,
    "body": _body,
    "flag": _numbers("flag", "<i4"),
    "sys_flag": _numbers("sys_flag", "<i4"),
    "reconsume_times": _numbers("reconsume_times", "<i4"),
}
assert set(_BUILDERS) == set(SCHEMA.names)
