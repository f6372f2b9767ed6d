"""Messages that are stored once more: half messages, messages for a time, delayed ones on their way to their topic."""

from __future__ import annotations

from stratamq.formats.message import SYS_HOSTS_V6, SYS_TRANSACTION_MASK, Record
from stratamq.logstore.types import Message


def copy_of(record: Record, *, topic: str, queue_id: int, properties: str, wait_for_sync: bool = True) -> Message:
    """A message with the content and the origin of ``record``, and no trace of a transaction, for another queue."""
    return Message(
        topic=topic,
        queue_id=queue_id,
        body=record.body,
        properties=properties,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        flag=record.flag,
        sys_flag=record.sys_flag & ~(SYS_HOSTS_V6 | SYS_TRANSACTION_MASK),
        reconsume_times=record.reconsume_times,
        wait_for_sync=wait_for_sync,
    )
