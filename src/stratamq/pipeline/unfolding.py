"""Inner batches taken apart: each message inside becomes a record of its own, which the decoders of columns know.

A message has topic, queue, hosts, times and place of the record it lay in, its own flag, properties and body, and the
queue offset that follows from its position. Compression is of the whole body, and undone; so neither its bits nor those
of a batch are left in the message's sys flag.

Cost: about 5 us a message, and two copies of its body. Source: docs/formats/batch-consume-queue.md; apache/rocketmq
MessageDecoder.decodeMessage, which clients do the same with.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from stratamq.errors import CorruptionError
from stratamq.formats import vector
from stratamq.formats.arrow import LogView, Rows, record_batch
from stratamq.formats.batch_consume_queue import inner_messages, inner_span
from stratamq.formats.message import (
    SYS_COMPRESSED,
    SYS_COMPRESSION_MASK,
    SYS_INNER_BATCH,
    SYS_NEED_UNWRAP,
    decode_record,
    encode_record,
)
from stratamq.formats.vector import Ints
from stratamq.units import Buffer

_OF_BATCHES = SYS_COMPRESSED | SYS_COMPRESSION_MASK | SYS_INNER_BATCH | SYS_NEED_UNWRAP


class Unfolded(NamedTuple):
    """Records one behind the other, where each begins, and the queue offset of each."""

    data: bytes
    positions: Ints
    queue_offsets: Ints


def unfold(log: LogView, rows: Rows) -> Unfolded:
    """Records as they are, but each message of an inner batch as a record of its own, in order.

    Raises what `record_batch` raises of the records, and CorruptionError for a batch that is not what it says.
    """
    flags = np.asarray(record_batch(log, rows, ["topic", "sys_flag"]).column(1))
    is_batch = (flags & SYS_INNER_BATCH) != 0
    bodies = iter(record_batch(log, Rows(rows.positions[is_batch]), ["body"]).column(0).to_pylist())
    heads = vector.gather_heads(log.data, rows.positions)
    ends = rows.positions + heads["size"]
    pieces: list[bytes] = []
    offsets: list[int] = []
    for row, (start, end) in enumerate(zip(rows.positions.tolist(), ends.tolist(), strict=True)):
        record, offset = log.data[start:end].tobytes(), int(heads["queue_offset"][row])
        found = list(_messages(log.path, start, record, next(bodies))) if is_batch[row] else [record]
        pieces += found
        offsets += range(offset, offset + len(found))
    starts = np.cumsum([0, *map(len, pieces)], dtype=np.int64)[:-1]
    return Unfolded(b"".join(pieces), starts, np.array(offsets, dtype=np.int64))


def _messages(path: str, position: int, data: bytes, body: Buffer) -> Iterator[bytes]:
    """The messages of one inner batch, whose body is given as its producer wrote it."""
    record = decode_record(data)
    inside = list(inner_messages(body))
    stated, found = inner_span(record.properties, record.queue_offset), (record.queue_offset, len(inside))
    if stated != found:
        expected, seen = (f"{count} messages from offset {base} on" for base, count in (stated, found))
        raise CorruptionError(path, position, f"an inner batch of {expected}", seen, hint="run: stratamq store check")
    topic = record.topic.encode()
    for number, message in enumerate(inside):
        try:
            yield encode_record(
                body=message.body,
                topic=topic,
                properties=bytes(message.properties),
                queue_id=record.queue_id,
                flag=message.flag,
                queue_offset=record.queue_offset + number,
                physical_offset=record.physical_offset,
                sys_flag=record.sys_flag & ~_OF_BATCHES,
                born_timestamp=record.born_timestamp,
                born_host=record.born_host,
                store_timestamp=record.store_timestamp,
                store_host=record.store_host,
                reconsume_times=record.reconsume_times,
                prepared_transaction_offset=record.prepared_transaction_offset,
            )
        except struct.error as error:
            raise CorruptionError(path, position, "messages that fit into records", str(error)) from error
