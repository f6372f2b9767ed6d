"""Appending messages that are more than one record with one unit: into light queues, into queues of batches.

`Batch.append` hands over every call that holds a property ``INNER_...`` or a message for a queue of batches. Offsets
that stand in the records are given out before anything is encoded: for light queues the property
INNER_MULTI_QUEUE_OFFSET. Either all of a call is taken or none; queues are made only when all of it is.

Source: apache/rocketmq store/.../LmqDispatch.java, HookUtils.checkInnerBatch, BatchConsumeQueue.assignQueueOffset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from stratamq.errors import MessageRefused
from stratamq.formats.message import (
    SYS_INNER_BATCH,
    SYS_NEED_UNWRAP,
    SYS_TRANSACTION_PREPARED,
    encode_record,
)
from stratamq.formats.properties import (
    INNER_BASE,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    INNER_NUM,
    decode_properties,
    encode_properties,
)
from stratamq.logstore.batch import Batch, Prepared
from stratamq.logstore.consume_queue import ConsumeQueue
from stratamq.logstore.dispatch import unit_tags_code
from stratamq.logstore.light_queues import INNER_MARK, LIGHT_QUEUE_ID, gives_out, is_light_name, split_names
from stratamq.logstore.types import Appended, Message

LIGHT_QUEUES: Final = "light queues"
"""The field that a refusal names when there would be too many of them."""


class _Planned(NamedTuple):
    """A message with all offsets in its properties; its queue, offset and count of messages there; its light queues."""

    message: Message
    queue: ConsumeQueue
    offset: int
    messages: int
    lights: list[str]


class _Offsets:
    """The next offset of each queue while a call is planned; nothing is changed in the queues themselves."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._next: dict[tuple[str, int], int] = {}
        self._new_lights: set[str] = set()

    def take(self, key: tuple[str, int], count: int) -> int:
        """Give out ``count`` offsets of a queue; returns the first."""
        first = self._next.get(key)
        if first is None:
            queue = self._batch.queues.get(key)
            first = 0 if queue is None else queue.next_offset
        self._next[key] = first + count
        return first

    def take_light(self, name: str) -> int:
        """The next offset of a light queue. Raises MessageRefused when there are too many."""
        queues, allowed = self._batch.queues, self._batch.light_queues_max
        if (name, LIGHT_QUEUE_ID) not in queues:
            self._new_lights.add(name)
            if queues.light_count + len(self._new_lights) > allowed:
                raise MessageRefused(LIGHT_QUEUES, f"a new one, {name}", f"at most {allowed} (maxLmqConsumeQueueNum)")
        return self.take((name, LIGHT_QUEUE_ID), 1)


def append_with_care(batch: Batch, messages: Sequence[Message]) -> list[Appended]:
    """What `Batch.append` does, for any messages. Raises MessageRefused, FlowControlled.

    Cost: about 15 us a message.
    """
    offsets = _Offsets(batch)
    planned = [_plan(batch, message, offsets) for message in messages]
    prepared = [batch.prepare(plan.message, plan.queue) for plan in planned]
    now = batch.begin_together(sum([entry[4] for entry in prepared]))
    return [_add(batch, plan, entry, now) for plan, entry in zip(planned, prepared, strict=True)]


def _plan(batch: Batch, message: Message, offsets: _Offsets) -> _Planned:
    queue = batch.queue_of(message)
    known = decode_properties(message.properties) if INNER_MARK in message.properties else {}
    is_batch = bool(message.sys_flag & SYS_INNER_BATCH)
    count = _batch_count(message, queue, known) if is_batch else 1
    if not is_batch and (INNER_NUM in known or message.sys_flag & SYS_NEED_UNWRAP):
        raise MessageRefused("properties", f"{INNER_NUM}, or sys flag 0x40", "an inner batch, which has sys flag 0x80")
    before = dict(known)
    known.pop(INNER_MULTI_QUEUE_OFFSET, None)
    offset = 0
    lights: list[str] = []
    if not message.sys_flag & SYS_TRANSACTION_PREPARED:  # neither prepared nor rolled back
        offset = offsets.take(queue.key, count)
        if is_batch:
            known[INNER_BASE] = str(offset)
        if batch.dispatches_to_light_queues and INNER_MULTI_DISPATCH in known and gives_out(message.topic):
            lights, text = _lights(known[INNER_MULTI_DISPATCH], offsets)
            known[INNER_MULTI_QUEUE_OFFSET] = text
    if known != before:
        message = _with_properties(message, encode_properties(known))
    return _Planned(message, queue, offset, count, lights)


def _batch_count(message: Message, queue: ConsumeQueue, known: dict[str, str]) -> int:
    if not queue.is_batch or message.sys_flag & SYS_TRANSACTION_PREPARED:
        raise MessageRefused(
            "sys flag", hex(message.sys_flag), "an inner batch only in a topic with queue.type=BatchCQ"
        )
    text = known.get(INNER_NUM, "")
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 6 and 0 < int(text) <= 32767):
        raise MessageRefused("properties", f"{INNER_NUM} {text[:20]!r}", "the number of messages, 1 to 32767")
    return int(text)


def _lights(text: str, offsets: _Offsets) -> tuple[list[str], str]:
    """The light queues that a message names, each once, and the offsets in the order of the names as text."""
    given: dict[str, int] = {}
    names = split_names(text)
    for name in names:
        if not is_light_name(name):
            allowed = "names of light queues, %LMQ% and up to 250 bytes without / and \\"
            raise MessageRefused(INNER_MULTI_DISPATCH, repr(name[:100]), allowed)
        if name not in given:
            given[name] = offsets.take_light(name)
    return list(given), ",".join(str(given[name]) for name in names)


def _with_properties(message: Message, properties: str) -> Message:
    return Message(
        topic=message.topic,
        queue_id=message.queue_id,
        body=message.body,
        properties=properties,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        wait_for_sync=message.wait_for_sync,
    )


def _add(batch: Batch, plan: _Planned, entry: Prepared, now: int) -> Appended:
    message, queue, body, _, size = entry
    position = batch.position
    properties = message.properties
    record = encode_record(
        body=body,
        topic=message.topic.encode(),
        properties=properties.encode(),
        queue_id=message.queue_id,
        flag=message.flag,
        queue_offset=plan.offset,
        physical_offset=position,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        store_timestamp=now,
        store_host=batch.store_host,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    )
    assert len(record) == size
    if not message.sys_flag & SYS_TRANSACTION_PREPARED:
        code = unit_tags_code(message.topic, properties, now, batch.delay_levels)
        units = [(queue, plan.offset, plan.messages)]
        units += [(batch.queues.open(name, LIGHT_QUEUE_ID), -1, 1) for name in plan.lights]
        for its_queue, offset, count in units:
            batch.touch(its_queue)
            at = its_queue.next_offset if offset < 0 else offset
            its_queue.add_unit(position, size, code, now, at, count)
            its_queue.codes.append(code)
    if batch.index_enabled:
        batch.index_rows.append((message.topic, properties, position, now, message.sys_flag))
    batch.add_parts((record,), size)
    return Appended(position, size, plan.offset, now)
