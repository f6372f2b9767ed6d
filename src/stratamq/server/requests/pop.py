"""Pop consumption: POP_MESSAGE (200050), PEEK_MESSAGE, NOTIFICATION, POLLING_INFO. Acks are in `pop_acks`.

A pop looks at the group's retry topic first now and then, else at the queues asked for, then at the retry topic; it
leaves with the records of all of them once their check-points are stored. One that finds nothing waits until something
comes into the topic or its retry topic.

Source: apache/rocketmq broker/.../PopMessageProcessor.java, PeekMessageProcessor.java,
NotificationProcessor.java.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from stratamq.broker.broker import Broker
from stratamq.broker.pop import Popped
from stratamq.broker.pop_records import (
    MESSAGES_MAX,
    ORDERED_REVIVE_QUEUE,
    RETRY_PREFIX,
    Given,
    message_offset_info,
    pop_retry_topics,
    retry_flag,
    start_offset_info,
)
from stratamq.broker.subscriptions import EXPRESSION_TAG, parse_subscription
from stratamq.broker.topics import PERM_READ, TopicConfig
from stratamq.errors import (
    AccessDenied,
    InvalidArgument,
    NotSupported,
    QueueNotFound,
    ServiceUnavailable,
    StrataError,
)
from stratamq.formats.message import decode_record
from stratamq.logstore.types import GetResult, GetStatus
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.headers import HeaderReader
from stratamq.protocols.remoting.pop_headers import (
    NotificationHeader,
    PeekHeader,
    PollingInfoHeader,
    PopHeader,
)
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves
from stratamq.server.requests.pop_acks import INVISIBLE_MS_MAX
from stratamq.server.requests.pop_waiting import PopWaiting, Waiting
from stratamq.server.requests.pull import filters_off

_read_pop: Final = HeaderReader(PopHeader)
_read_peek: Final = HeaderReader(PeekHeader)
_read_notification: Final = HeaderReader(NotificationHeader)
_read_polling: Final = HeaderReader(PollingInfoHeader)

BYTES_MAX: Final = 4 * 1024 * 1024
POLL_MS_MAX: Final = 600_000
_MOVED: Final = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.MESSAGE_WAS_REMOVING)


@dataclass(slots=True)
class _Harvest:
    """What one pop has found."""

    wanted: int
    given: list[Given] = field(default_factory=list)
    popped: list[Popped] = field(default_factory=list)
    records: list[memoryview] = field(default_factory=list)
    bytes: int = 0
    count: int = 0
    rest: int = 0
    order_counts: list[str] = field(default_factory=list)
    failure: Exception | None = None
    """Why a queue could not be read, the first of them."""


class PopRequests:
    """Gives messages to consumers that do not know queues."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._pop = broker.pop
        self._turn = 0
        self.waiting = PopWaiting(broker)

    # --- popping ---

    @serves(RequestCode.POP_MESSAGE)
    def pop(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Take messages of a topic for a while; waits for some when asked to."""
        fields = _read_pop(header)
        config = self._check(fields)
        filters = self._filters(fields)
        deadline = self._broker.clock.monotonic_ms() + min(max(0, fields.poll_time), POLL_MS_MAX)
        run = partial(self._run, peer, header, fields, config, filters)
        if not run():
            self.waiting.wait(Waiting(peer, header, fields.topic, fields.consumer_group, deadline, run))
        return None

    def _check(self, fields: PopHeader) -> TopicConfig:
        """RocketMQ's checks in their order."""
        broker = self._broker
        if not broker.is_accepting:
            raise ServiceUnavailable("the broker is stopping")
        if not broker.config.permission & PERM_READ:
            raise AccessDenied("this broker gives no messages (brokerPermission)")
        if not 1 <= fields.max_msg_nums <= MESSAGES_MAX:
            raise InvalidArgument(f"maxMsgNums is {fields.max_msg_nums}; allowed: 1 to {MESSAGES_MAX}")
        if not 0 < fields.invisible_time <= INVISIBLE_MS_MAX:
            raise InvalidArgument(f"invisibleTime is {fields.invisible_time} ms; allowed: 1 to {INVISIBLE_MS_MAX}")
        config = broker.topics.get(fields.topic)
        if config.is_batch:
            raise InvalidArgument(f"topic {fields.topic} has queue.type=BatchCQ, whose messages are pulled, not popped")
        if fields.topic in broker.static_topics:
            raise NotSupported(f"topic {fields.topic} is static: its messages are pulled, not popped")
        if not config.is_readable:
            raise AccessDenied(f"topic {fields.topic} is not readable")
        if fields.queue_id >= config.queues:
            raise QueueNotFound(f"topic {fields.topic} has {config.queues} queues, there is no {fields.queue_id}")
        group = broker.groups.get(fields.consumer_group)
        if not group.consume_enable:
            raise AccessDenied(f"consumer group {fields.consumer_group} may not consume (consumeEnable)")
        if not broker.groups.is_readable(fields.consumer_group, fields.topic):
            raise AccessDenied(f"the consumer group {fields.consumer_group} is forbidden for topic {fields.topic}")
        return config

    def _filters(self, fields: PopHeader) -> dict[str, Any]:
        """The arguments of a read that selects what is subscribed to."""
        if fields.exp:
            subscription = parse_subscription(fields.topic, fields.exp, fields.exp_type or "")
        else:
            group = self._broker.consumers.find(fields.consumer_group)
            found = group.subscriptions.get(fields.topic) if group is not None else None
            subscription = found or parse_subscription(fields.topic, "*")
        if subscription.expression_type == EXPRESSION_TAG:
            return {"tags_codes": subscription.tags_codes}
        if not self._broker.config.property_filters:
            raise filters_off(subscription.expression_type)
        return {"matching": subscription.sql}

    def _run(
        self, peer: Peer, header: CommandHeader, fields: PopHeader, config: TopicConfig, filters: dict[str, Any]
    ) -> bool:
        """Look for messages and give them out; False when there are none."""
        self._pop.check_ready()
        now = self._broker.clock.wall_ms()
        harvest = _Harvest(fields.max_msg_nums)
        self._turn += 1
        retries = self._retry_topics(fields.topic, fields.consumer_group)
        is_retry_first = (
            self._turn * self._broker.config.pop_retry_percent % 100 < self._broker.config.pop_retry_percent
        ) and not fields.order
        if is_retry_first:
            for retry in retries:
                self._take(fields, retry, 0, {}, harvest, now)
        queues = [fields.queue_id] if fields.queue_id >= 0 else list(range(config.read_queue_nums))
        begin = self._turn % max(1, len(queues))
        for queue_id in queues[begin:] + queues[:begin]:
            self._take(fields, fields.topic, queue_id, filters, harvest, now)
        if not is_retry_first:
            for retry in retries:
                self._take(fields, retry, 0, {}, harvest, now)
        if not harvest.count:
            if harvest.failure is not None:
                raise harvest.failure
            return False
        peer.begin_request()
        done = partial(self._popped, peer, header, fields, harvest, now)
        if fields.order:
            done("")
        else:
            self._pop.store_checkpoints(
                fields.consumer_group, harvest.popped, pop_ms=now, invisible_ms=fields.invisible_time, done=done
            )
        return True

    def _retry_topics(self, topic: str, group: str) -> list[str]:
        """The retry topics that are there, of a topic that is none itself."""
        if topic.startswith(RETRY_PREFIX):
            return []
        return [retry for retry in pop_retry_topics(topic, group) if self._broker.topics.find(retry) is not None]

    def _take(
        self, fields: PopHeader, topic: str, queue_id: int, filters: dict[str, Any], harvest: _Harvest, now: int
    ) -> None:
        """Take what is wanted out of one queue."""
        group = fields.consumer_group
        wanted = harvest.wanted - harvest.count
        if wanted <= 0 or harvest.bytes >= BYTES_MAX:
            harvest.rest += max(
                0, self._broker.store.max_offset(topic, queue_id) - self._where(fields, topic, queue_id)
            )
            return
        if fields.order and not self._broker.pop_order.may_pop((group, topic, queue_id), fields.attempt_id or "", now):
            return
        try:
            found = self._read(fields, topic, queue_id, wanted, filters)
        except (StrataError, OSError) as error:
            # In the cold tier (fetched now, or out of reach), or damaged: other queues are served all the same, and
            # who gets nothing hears of it.
            harvest.failure = harvest.failure or error
            return
        if found is None:
            return
        offsets = tuple(_offsets_of(found))
        if fields.order:
            self._give_in_order(fields, topic, queue_id, offsets, found, harvest, now)
        else:
            self._pop.move(group, topic, queue_id, found.next_offset)
            harvest.popped.append(Popped(topic, queue_id, offsets, found))
        harvest.given.append(Given(retry_flag(topic), queue_id, offsets[0], offsets))
        harvest.records += found.records
        harvest.bytes += found.total_bytes
        harvest.count += len(offsets)
        harvest.rest += max(0, found.max_offset - found.next_offset)

    def _where(self, fields: PopHeader, topic: str, queue_id: int) -> int:
        group = fields.consumer_group
        if fields.order:
            committed = self._broker.offsets.find(group, topic, queue_id)
            if committed is not None:
                return committed
        return self._pop.position(group, topic, queue_id, from_end=fields.init_mode == 1)

    def _read(
        self, fields: PopHeader, topic: str, queue_id: int, wanted: int, filters: dict[str, Any]
    ) -> GetResult | None:
        """Read on where the group is; passes over what is not wanted, or is gone. None when there is nothing."""
        store, group = self._broker.store, fields.consumer_group
        at = self._where(fields, topic, queue_id)
        for _ in range(4):
            found: GetResult = store.get(topic, queue_id, at, wanted, max_bytes=BYTES_MAX, **filters)
            if found.status is GetStatus.FOUND:
                return found
            moves = found.status is GetStatus.NO_MATCHED_MESSAGE or found.status in _MOVED
            if not moves or found.next_offset == at:
                return None
            at = found.next_offset
            self._pop.move(group, topic, queue_id, at)
            if fields.order or not self._pop.holds(group, topic, queue_id):
                self._broker.offsets.commit(group, topic, queue_id, at)
        return None

    def _give_in_order(
        self,
        fields: PopHeader,
        topic: str,
        queue_id: int,
        offsets: Sequence[int],
        found: GetResult,
        harvest: _Harvest,
        now: int,
    ) -> None:
        broker, group = self._broker, fields.consumer_group
        if broker.offsets.find(group, topic, queue_id) is None:
            broker.offsets.commit(group, topic, queue_id, offsets[0])
        times = broker.pop_order.given(
            (group, topic, queue_id),
            offsets,
            next_offset=found.next_offset,
            pop_ms=now,
            invisible_ms=fields.invisible_time,
            attempt=fields.attempt_id or "",
        )
        harvest.order_counts.append(f"0 {queue_id} {min(times.values(), default=0)}")

    def _popped(
        self, peer: Peer, header: CommandHeader, fields: PopHeader, harvest: _Harvest, now: int, failure: str
    ) -> None:
        """The check-points are stored: the messages leave."""
        peer.end_request()
        if failure:
            peer.write(encode_response(header, ResponseCode.SYSTEM_ERROR, remark=failure))
            return
        counters = self._broker.counters
        counters.messages_got += harvest.count
        counters.bytes_got += harvest.bytes
        counters.gets_found += 1
        tally = self._broker.statistics.gets[fields.topic, fields.consumer_group]
        tally.count += harvest.count
        tally.size += harvest.bytes
        tally.times += 1
        ext = {
            "popTime": str(now),
            "invisibleTime": str(fields.invisible_time),
            "reviveQid": str(ORDERED_REVIVE_QUEUE if fields.order else 0),
            "restNum": str(harvest.rest),
            "startOffsetInfo": start_offset_info(harvest.given),
            "msgOffsetInfo": message_offset_info(harvest.given),
        }
        if fields.order:
            ext["orderCountInfo"] = ";".join(harvest.order_counts)
        peer.write(encode_response(header, ResponseCode.SUCCESS, ext=ext, body=b"".join(harvest.records)))

    # --- looking ---

    @serves(RequestCode.PEEK_MESSAGE)
    def peek(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """What the next pop of a queue would give, without taking it."""
        fields = _read_peek(header)
        config = self._broker.topics.get(fields.topic)
        if not 1 <= fields.max_msg_nums <= MESSAGES_MAX:
            raise InvalidArgument(f"maxMsgNums is {fields.max_msg_nums}; allowed: 1 to {MESSAGES_MAX}")
        records: list[memoryview] = []
        queues = [fields.queue_id] if fields.queue_id >= 0 else range(config.read_queue_nums)
        for queue_id in queues:
            at = self._pop.position(fields.consumer_group, fields.topic, queue_id, from_end=False)
            found = self._broker.store.get(fields.topic, queue_id, at, fields.max_msg_nums, max_bytes=BYTES_MAX)
            if found.status is GetStatus.FOUND:
                records += found.records
                break
        if not records:
            return encode_response(header, ResponseCode.PULL_NOT_FOUND, remark="nothing to give")
        ext = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}
        return encode_response(header, ResponseCode.SUCCESS, ext=ext, body=b"".join(records))

    @serves(RequestCode.NOTIFICATION)
    def notification(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Say whether there is something to pop; waits for it when asked to."""
        fields = _read_notification(header)
        self._broker.topics.get(fields.topic)
        deadline = self._broker.clock.monotonic_ms() + min(max(0, fields.poll_time), POLL_MS_MAX)
        run = partial(self._notify, peer, header, fields)
        if not run():
            self.waiting.wait(Waiting(peer, header, fields.topic, fields.consumer_group, deadline, run))
        return None

    def _notify(self, peer: Peer, header: CommandHeader, fields: NotificationHeader) -> bool:
        broker = self._broker
        config = broker.topics.get(fields.topic)
        places = [(fields.topic, queue_id) for queue_id in range(config.read_queue_nums)]
        if fields.queue_id >= 0:
            places = [(fields.topic, fields.queue_id)]
        places += [(retry, 0) for retry in self._retry_topics(fields.topic, fields.consumer_group)]
        now = broker.clock.wall_ms()
        for topic, queue_id in places:
            if fields.order and not broker.pop_order.may_pop(
                (fields.consumer_group, topic, queue_id), fields.attempt_id or "", now
            ):
                continue
            at = self._pop.position(fields.consumer_group, topic, queue_id, from_end=False)
            if broker.store.max_offset(topic, queue_id) > at:
                ext = {"hasMsg": "true", "pollingFull": "false"}
                peer.write(encode_response(header, ResponseCode.SUCCESS, ext=ext))
                return True
        return False

    @serves(RequestCode.POLLING_INFO)
    def polling_info(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """How many pops of a group wait for a topic."""
        fields = _read_polling(header)
        count = self.waiting.count(fields.topic, fields.consumer_group)
        return encode_response(header, ResponseCode.SUCCESS, ext={"pollingNum": str(count)})

    @serves(RequestCode.POP_ROLLBACK)
    def rollback(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Nothing to do: check-points are always in the revive topic."""
        return encode_response(header, ResponseCode.SUCCESS)


def _offsets_of(found: GetResult) -> list[int]:
    offsets = []
    for view in found.records:
        at = 0
        while at < len(view):
            record = decode_record(view, at)
            offsets.append(record.queue_offset)
            at += record.size
    return offsets
