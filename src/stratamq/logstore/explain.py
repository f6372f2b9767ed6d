"""One record, unit, entry or checkpoint byte by byte: where, which bytes, what field, which value, what it means.

Works on damaged bytes too: fields are read as far as they go, and a note says what is wrong with them.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, NamedTuple

from stratamq.errors import NotAStore, OffsetOutOfRange
from stratamq.files.filesystem import LocalFileSystem
from stratamq.formats.batch_consume_queue import BATCH_UNIT_BYTES, decode_batch_unit
from stratamq.formats.checkpoint import CHECKPOINT_BYTES
from stratamq.formats.consume_queue import PREFILL_SIZE, UNIT_BYTES, decode_unit
from stratamq.formats.index import HEADER_BYTES, SLOT_BYTES, decode_entry
from stratamq.formats.message import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    body_crc,
    check_record,
    decode_host,
)
from stratamq.formats.properties import NAME_VALUE_SEPARATOR
from stratamq.formats.vector import byte_view
from stratamq.logstore import layout, mappings
from stratamq.logstore.check_index import IndexFile
from stratamq.logstore.listing import PlainFile
from stratamq.logstore.retention_reading import first_record_ms
from stratamq.logstore.words import describe_sys_flag, format_ms
from stratamq.units import Buffer

HEX_BYTES_MAX: Final = 24
"""So many bytes of a long field are shown."""
_MAGICS: Final = {
    MAGIC_V1: "message, 1 byte of topic length",
    MAGIC_V2: "message, 2 bytes of topic length",
    MAGIC_BLANK: "blank: the rest of the file is unused",
}


class Field(NamedTuple):
    """One field: byte offset in the file, length, its bytes in hex (the first ones when it is long), value, note."""

    offset: int
    length: int
    hex: str
    name: str
    value: str
    note: str


class Explained(NamedTuple):
    """What stands at a place: its kind, file, first byte, and fields."""

    kind: str
    path: str
    offset: int
    fields: list[Field]


class _Reader:
    """Reads fields one after the other and notes them."""

    def __init__(self, data: Buffer, at: int) -> None:
        self.data = memoryview(data)
        self.at = at
        self.fields: list[Field] = []

    def number(self, form: str, name: str, note: str = "") -> int:
        """A big-endian number; 0 behind the end of the file."""
        layout_of = struct.Struct(form)
        raw = bytes(self.data[self.at : self.at + layout_of.size])
        if len(raw) < layout_of.size:
            self.raw(len(raw), name, "", "the file ends here")
            return 0
        value: int = layout_of.unpack(raw)[0]
        self.raw(layout_of.size, name, str(value), note)
        return value

    def raw(self, length: int, name: str, value: str, note: str = "") -> bytes:
        """Any bytes."""
        data = bytes(self.data[self.at : self.at + max(0, length)])
        shown = data[:HEX_BYTES_MAX].hex(" ") + (" ..." if len(data) > HEX_BYTES_MAX else "")
        self.fields.append(Field(self.at, len(data), shown, name, value, note))
        self.at += len(data)
        return data

    def note(self, text: str) -> None:
        """Set the note of the last field."""
        self.fields[-1] = self.fields[-1]._replace(note=text)

    def value(self, text: str) -> None:
        """Set the value of the last field."""
        self.fields[-1] = self.fields[-1]._replace(value=text)


def explain_record(path: str, data: Buffer, position: int, physical_offset: int) -> Explained:
    """The commit-log record at ``position`` of a file, which should be at ``physical_offset``."""
    reader = _Reader(data, position)
    size = reader.number(">i", "total size", "this field included")
    magic = reader.number(">i", "magic")
    reader.value(f"{magic & 0xFFFFFFFF:08X}")
    reader.note(_MAGICS.get(magic, "no magic number of a record: what follows is read as a record all the same"))
    if magic == MAGIC_BLANK:
        reader.raw(min(HEX_BYTES_MAX, max(0, size - 8)), "unused", "", f"{size - 8} bytes; anything may stand here")
        return Explained("blank record", path, position, reader.fields)
    crc = reader.number(">i", "body CRC")
    crc_field = len(reader.fields) - 1
    reader.number(">i", "queue id")
    reader.number(">i", "flag", "the application's own")
    reader.number(">q", "queue offset", "number of the message in its queue")
    stated = reader.number(">q", "physical offset")
    reader.note("the record's own place" if stated == physical_offset else f"should be {physical_offset}")
    sys_flag = reader.number(">i", "sys flag")
    reader.note(describe_sys_flag(sys_flag))
    reader.number(">q", "born timestamp")
    reader.note(_time_note(reader))
    _host(reader, "born host", wide=bool(sys_flag & SYS_BORN_HOST_V6))
    reader.number(">q", "store timestamp")
    reader.note(_time_note(reader))
    _host(reader, "store host", wide=bool(sys_flag & SYS_STORE_HOST_V6))
    reader.number(">i", "reconsume times")
    prepared = reader.number(">q", "prepared transaction offset")
    reader.note("place of the prepared record" if prepared else "none")
    body = _body(reader, size, position)
    computed = body_crc(body)
    note = "matches the body" if computed == crc else f"the body's is {computed}: the body is damaged, or this is"
    reader.fields[crc_field] = reader.fields[crc_field]._replace(note=note)
    _topic_and_properties(reader, magic, position + size)
    flaw = check_record(data, position, len(data), physical_offset=physical_offset).flaw
    kind = "record" if flaw is None else f"damaged record ({flaw.kind} at byte {flaw.position})"
    return Explained(kind, path, position, reader.fields)


def _time_note(reader: _Reader) -> str:
    return format_ms(int(reader.fields[-1].value or 0))


def _host(reader: _Reader, name: str, *, wide: bool) -> None:
    raw = reader.raw(20 if wide else 8, name, "")
    if len(raw) in (8, 20):
        reader.value(str(decode_host(raw)))
    reader.note("address and 4 bytes of port")


def _body(reader: _Reader, size: int, position: int) -> bytes:
    length = reader.number(">i", "body length")
    room = position + size - reader.at
    if not 0 <= length <= room:
        reader.note(f"cannot be: the record has {room} bytes left")
        length = 0
    body = reader.raw(length, "body", "")
    reader.value(_preview(body))
    return body


def _preview(data: bytes) -> str:
    text = data[:80].decode("utf-8", "replace")
    return text + (" ..." if len(data) > 80 else "")


def _topic_and_properties(reader: _Reader, magic: int, end: int) -> None:
    length = reader.number(">h" if magic == MAGIC_V2 else ">B", "topic length")
    topic = reader.raw(min(length, max(0, end - reader.at)), "topic", "")
    reader.value(topic.decode("utf-8", "replace"))
    length = reader.number(">h", "properties length")
    if reader.at + length != end:
        reader.note(f"should be {end - reader.at}, so that the record ends at byte {end}")
    stop = min(reader.at + max(0, length), end, len(reader.data))
    while reader.at < stop:
        rest = bytes(reader.data[reader.at : stop])
        cut = rest.find(b"\x02")
        segment = rest if cut < 0 else rest[: cut + 1]
        name, found, value = segment.rstrip(b"\x02").decode("utf-8", "replace").partition(NAME_VALUE_SEPARATOR)
        reader.raw(len(segment), f"property {name}", value, "" if found and name and value else "no property: skipped")


def explain_unit(path: str, data: Buffer, position: int, queue_offset: int) -> Explained:
    """The consume-queue unit at ``position`` of a file."""
    reader = _Reader(data, position)
    unit = decode_unit(bytes(reader.data[position : position + UNIT_BYTES]).ljust(UNIT_BYTES, b"\0"))
    reader.number(">q", "physical offset", "where the record lies in the commit log")
    reader.number(">i", "size", "of the record")
    reader.number(">q", "tags code", "hash of the tags; time of delivery in SCHEDULE_TOPIC_XXXX; 0 for none")
    if unit.is_prefill:
        reader.fields[1] = reader.fields[1]._replace(note=f"{PREFILL_SIZE}: fills up the queue below its first message")
    state = "" if unit.is_valid else ", not written"
    return Explained(f"unit of queue offset {queue_offset}{state}", path, position, reader.fields)


def explain_batch_unit(path: str, data: Buffer, position: int) -> Explained:
    """The unit of a queue of batches at ``position`` of a file."""
    reader = _Reader(data, position)
    raw = bytes(reader.data[position : position + BATCH_UNIT_BYTES]).ljust(BATCH_UNIT_BYTES, b"\0")
    unit = decode_batch_unit(raw)
    reader.number(">q", "physical offset", "where the record lies in the commit log")
    reader.number(">i", "size", "of the record")
    reader.number(">q", "tags code", "hash of the record's tags; 0 for none, as batches have none of their own")
    reader.number(">q", "store timestamp")
    reader.note(_time_note(reader))
    reader.number(">q", "base queue offset", "of the first message in the record")
    reader.number(">h", "messages", "in the record")
    reader.number(">i", "compacted offset", "-1: not used")
    reader.number(">i", "reserved")
    what = (
        f"unit of queue offsets {unit.base_offset} to {unit.end_offset - 1}" if unit.is_valid else "unit, not written"
    )
    return Explained(what, path, position, reader.fields)


def explain_index(path: str, file: IndexFile, position: int) -> Explained:
    """The header, slot or entry of an index file in which ``position`` lies."""
    data = file.data.data
    if position < HEADER_BYTES:
        reader = _Reader(data, 0)
        for name in ("begin timestamp", "end timestamp"):
            reader.number(">q", name)
            reader.note(_time_note(reader))
        reader.number(">q", "begin physical offset")
        reader.number(">q", "end physical offset")
        reader.number(">i", "used slots", f"of {file.slot_count}")
        reader.number(">i", "index count", f"number of the next free entry, of {file.entry_max}")
        return Explained("header of an index file", path, 0, reader.fields)
    if position < HEADER_BYTES + SLOT_BYTES * file.slot_count:
        number = (position - HEADER_BYTES) // SLOT_BYTES
        reader = _Reader(data, HEADER_BYTES + SLOT_BYTES * number)
        reader.number(">i", "newest entry", "0 for none")
        return Explained(f"slot {number} of an index file", path, reader.fields[0].offset, reader.fields)
    number = (position - file.position(0)) // 20
    at = file.position(number)
    if at + 20 > len(file.data):
        raise OffsetOutOfRange(position, 0, at, where=path)
    entry = decode_entry(data, at)
    reader = _Reader(data, at)
    slot = entry.key_hash % file.slot_count
    reader.number(">i", "key hash", f"of topic#key; slot {slot}")
    reader.number(">q", "physical offset", "where the record lies in the commit log")
    reader.number(">i", "seconds")
    reader.note(f"behind the file's begin: {format_ms(file.header.begin_timestamp + 1000 * entry.time_delta_seconds)}")
    reader.number(">i", "previous entry", "of the same slot, 0 for none")
    state = "" if 0 < number < file.count else ", never used" if number == 0 else ", not written"
    return Explained(f"entry {number} of an index file{state}", path, at, reader.fields)


def explain_checkpoint(path: str, data: bytes) -> Explained:
    """The fields of a checkpoint."""
    reader = _Reader(data, 0)
    for name in ("physic msg timestamp", "logics msg timestamp", "index msg timestamp"):
        reader.number(">q", name)
        reader.note(_time_note(reader))
    reader.number(">q", "master flushed offset", "on a slave")
    reader.number(">q", "confirm physical offset")
    reader.raw(len(data) - 40, "unused", "", "zeros" if not data[40:].strip(b"\0") else "not all zeros")
    kind = "checkpoint" if len(data) == CHECKPOINT_BYTES else f"checkpoint of {len(data)} bytes, not {CHECKPOINT_BYTES}"
    return Explained(kind, path, 0, reader.fields)


def _is_log_file(path: Path) -> bool:
    """A log may lie in directories of any name: there, what a file begins with says what it is."""
    if not layout.is_base_name(path.name):
        return False
    return path.parent.name == layout.COMMIT_LOG or first_record_ms(LocalFileSystem(), str(path), int(path.name)) > 0


def explain_file(path: Path, position: int) -> Explained:
    """What stands at byte ``position`` of a store file; what kind of file it is shows in where it lies.

    Raises:
        NotAStore: The file is none that can be explained.
        OffsetOutOfRange: The file is shorter.
    """
    path = path.resolve()
    if path.name == layout.CHECKPOINT:
        return explain_checkpoint(str(path), path.read_bytes())
    size = path.stat().st_size
    if not 0 <= position < size:
        raise OffsetOutOfRange(position, 0, size, where=str(path))
    if _is_log_file(path):
        return explain_record(str(path), mappings.map_read_only(str(path)), position, int(path.name) + position)
    if path.parent.name == layout.INDEX and path.name.isdigit():
        file = IndexFile(PlainFile(str(path), size, 0), byte_view(mappings.map_read_only(str(path))))
        if file.slot_count:
            return explain_index(str(path), file, position)
    if path.parent.parent.parent.name == layout.CONSUME_QUEUE and path.name.isdigit():
        start = position - position % UNIT_BYTES
        offset = (int(path.name) + start) // UNIT_BYTES
        return explain_unit(str(path), mappings.map_read_only(str(path)), start, offset)
    if path.parent.parent.parent.name == layout.BATCH_CONSUME_QUEUE and path.name.isdigit():
        start = position - position % BATCH_UNIT_BYTES
        return explain_batch_unit(str(path), mappings.map_read_only(str(path)), start)
    reason = (
        "only commit-log, consume-queue and index files and the checkpoint can be explained, where a store has them"
    )
    raise NotAStore(str(path), reason)
