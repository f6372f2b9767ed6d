"""Small readers of what brokers answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stratamq.errors import RemoteProtocolError
from stratamq.formats.message import Record, decode_record
from stratamq.protocols.remoting.fastjson import Entry


def each_entry(table: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """The members of a map whose keys are message queues; an empty one is written as any empty map."""
    if not table:
        return
    if not isinstance(table, list) or not all(isinstance(entry, Entry) for entry in table):
        raise RemoteProtocolError("a broker's table of queues is not keyed by queues")
    for entry in table:
        yield entry.key, entry.value


def each_record(body: bytes) -> Iterator[Record]:
    """The records of a body that holds them back to back. Raises CorruptionError."""
    view = memoryview(body)
    at = 0
    while at < len(view):
        record = decode_record(view[at:])
        if record.size <= 0:
            raise RemoteProtocolError(f"a record of {record.size} bytes at byte {at} of an answer")
        yield record
        at += record.size
