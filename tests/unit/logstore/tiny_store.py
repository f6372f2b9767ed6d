"""A store written with nothing but the codecs: small files, full control, no broker. For tests of what reads stores."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from stratamq.formats.checkpoint import Checkpoint, encode_checkpoint
from stratamq.formats.consume_queue import PREFILL_UNIT, UNIT_BYTES, encode_unit
from stratamq.formats.index import (
    ENTRY,
    SLOT,
    IndexHeader,
    encode_header,
    entry_position,
    index_file_bytes,
    slot_position,
    time_delta_seconds,
)
from stratamq.formats.java import index_key_hash, tags_code
from stratamq.formats.message import (
    BLANK_BYTES,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
    Record,
    decode_record,
    encode_blank,
    encode_host,
    encode_record,
)
from stratamq.formats.properties import decode_properties, split_keys

HOST = encode_host("10.0.0.2", 10911)
T0 = 1_700_000_000_000


@dataclass
class TinyStore:
    """Collects records in memory; `write` makes the directory. ``first_base`` is where the log begins."""

    root: Path
    file_bytes: int = 4096
    queue_file_units: int = 16
    index_slots: int = 7
    index_entries: int = 64
    first_base: int = 0
    records: list[Record] = field(default_factory=list)
    queue_starts: dict[tuple[str, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.log = bytearray()
        self.queues: dict[tuple[str, int], dict[int, tuple[int, int, int]]] = {}
        self.index: list[tuple[int, int, int]] = []

    @property
    def end(self) -> int:
        """Physical offset behind the last record."""
        return self.first_base + len(self.log)

    def put(
        self,
        topic: str = "orders",
        queue_id: int = 0,
        body: bytes = b"hello",
        properties: str | bytes = "",
        *,
        sys_flag: int = 0,
        stored: int | None = None,
        born: int = T0,
        born_host: bytes = HOST,
        store_host: bytes = HOST,
        flag: int = 0,
        reconsume_times: int = 0,
        code: int | None = None,
    ) -> Record:
        """Append one record, its unit and its index entries; returns it as decoded."""
        raw = properties.encode() if isinstance(properties, str) else properties
        kind = sys_flag & 0xC
        queued = kind not in (SYS_TRANSACTION_PREPARED, SYS_TRANSACTION_ROLLBACK)
        units = self.queues.setdefault((topic, queue_id), {}) if queued else {}
        first = self.queue_starts.get((topic, queue_id), 0)
        stored = T0 + len(self.records) if stored is None else stored

        def encode(at: int) -> bytes:
            return encode_record(
                body=body,
                topic=topic.encode(),
                properties=raw,
                queue_id=queue_id,
                flag=flag,
                queue_offset=first + len(units) if queued else 0,
                physical_offset=at,
                sys_flag=sys_flag,
                born_timestamp=born,
                born_host=born_host,
                store_timestamp=stored,
                store_host=store_host,
                reconsume_times=reconsume_times,
            )

        left = self.file_bytes - len(self.log) % self.file_bytes
        size = len(encode(0))
        assert size + BLANK_BYTES <= self.file_bytes, "the record fits no file"
        if size + BLANK_BYTES > left:
            self.log += encode_blank(left).ljust(left, b"\0")
        data = encode(self.end)
        record = decode_record(data)
        found = decode_properties(record.properties)
        if queued:
            tags = tags_code(found.get("TAGS", "")) if code is None else code
            units[record.queue_offset] = (self.end, size, tags)
        if kind != SYS_TRANSACTION_ROLLBACK:
            keys = ([found["UNIQ_KEY"]] if "UNIQ_KEY" in found else []) + split_keys(found.get("KEYS", ""))
            self.index += [(index_key_hash(topic, key), self.end, stored) for key in keys]
        self.log += data
        self.records.append(record)
        return record

    def put_raw(self, data: bytes) -> None:
        """Append bytes as they are."""
        self.log += data

    def write(self, *, checkpoint: bool = True, abort: str | None = None, spare_files: int = 0) -> TinyStore:
        """Make the directory."""
        logs = self.root / "commitlog"
        logs.mkdir(parents=True)
        count = max(1, -(-len(self.log) // self.file_bytes)) + spare_files
        for number in range(count):
            part = bytes(self.log[number * self.file_bytes : (number + 1) * self.file_bytes])
            name = f"{self.first_base + number * self.file_bytes:020d}"
            (logs / name).write_bytes(part.ljust(self.file_bytes, b"\0"))
        for (topic, queue_id), units in self.queues.items():
            self._write_queue(self.root / "consumequeue" / topic / str(queue_id), units)
        if self.index:
            self._write_index()
        newest = self.records[-1].store_timestamp if self.records else 0
        if checkpoint:
            values = Checkpoint(physic_msg_timestamp=newest, logics_msg_timestamp=newest, index_msg_timestamp=newest)
            (self.root / "checkpoint").write_bytes(encode_checkpoint(values))
        if abort is not None:
            (self.root / "abort").write_text(abort)
        (self.root / "lock").write_bytes(b"lock")
        return self

    def _write_queue(self, directory: Path, units: dict[int, tuple[int, int, int]]) -> None:
        directory.mkdir(parents=True)
        file_bytes = self.queue_file_units * UNIT_BYTES
        if not units:
            return
        base = min(units) // self.queue_file_units * self.queue_file_units
        stream = bytearray(PREFILL_UNIT * (min(units) - base))
        for unit in units.values():
            stream += encode_unit(*unit)
        for at in range(0, len(stream), file_bytes):
            part = bytes(stream[at : at + file_bytes]).ljust(file_bytes, b"\0")
            (directory / f"{base * UNIT_BYTES + at:020d}").write_bytes(part)

    def _write_index(self) -> None:
        (self.root / "index").mkdir()
        slots, capacity = self.index_slots, self.index_entries
        assert len(self.index) < capacity
        data = bytearray(index_file_bytes(slots, capacity))
        begin = self.index[0][2]
        used = set()
        for number, (key_hash, physical, stored) in enumerate(self.index, start=1):
            at = slot_position(slots, key_hash)
            (previous,) = SLOT.unpack_from(data, at)
            # The file's begin is only set by the first insertion, after that one's own delta was taken.
            delta = time_delta_seconds(stored, begin if number > 1 else 0)
            ENTRY.pack_into(data, entry_position(slots, number), key_hash, physical, delta, previous)
            SLOT.pack_into(data, at, number)
            used.add(at)
        _, last_physical, last_stored = self.index[-1]
        header = IndexHeader(begin, last_stored, self.index[0][1], last_physical, len(used), len(self.index) + 1)
        data[:40] = encode_header(header)
        (self.root / "index" / "20231114221320000").write_bytes(data)


def flip(path: Path, at: int, bits: int = 1) -> None:
    """Change one byte of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        value = file.read(1)[0]
        file.seek(at)
        file.write(bytes([value ^ bits]))


def make_sparse(path: Path) -> None:
    """Turn a file into one with holes where it holds zeros at the end, as brokers make them."""
    data = path.read_bytes()
    kept = data.rstrip(b"\0")
    path.unlink()
    with path.open("wb") as file:
        file.write(kept)
        os.ftruncate(file.fileno(), len(data))
