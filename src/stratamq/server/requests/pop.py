"""Pop consumption: POP_MESSAGE (200050), acks, invisible times, and pops that wait.

A pop looks at the group's retry topic first now and then, else at the queues asked for, then at the retry topic; it
leaves with the records of all of them once their check-points are stored. One that finds nothing waits until something
comes into the topic or its retry topic.

Source: apache/rocketmq broker/.../PopMessageProcessor.java, AckMessageProcessor.java,
ChangeInvisibleTimeProcessor.java, NotificationProcessor.java.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from collections.abc import Callable, Sequence
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
    Handle,
    Key,
    message_offset_info,
    parse_handle,
    pop_retry_topic,
    start_offset_info,
)
from stratamq.broker.subscriptions import EXPRESSION_TAG, parse_subscription
from stratamq.broker.topics import PERM_READ, TopicConfig
from stratamq.errors import (
    AccessDenied,
    GroupNotFound,
    InvalidArgument,
    MessageIllegal,
    QueueNotFound,
    ReadPending,
    ServiceUnavailable,
    StrataError,
)
from stratamq.formats.message import decode_record
from stratamq.logstore.types import GetResult, GetStatus
from stratamq.protocols.remoting.bodies import body_error, load_object
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.headers import HeaderReader
from stratamq.protocols.remoting.pop_headers import (
    AckHeader,
    ChangeInvisibleHeader,
    NotificationHeader,
    PeekHeader,
    PollingInfoHeader,
    PopHeader,
)
from stratamq.protocols.remoting.replies import encode_response, response_to_error
from stratamq.server.requests.base import Peer, serves
from stratamq.server.requests.pull import filters_off

_read_pop: Final = HeaderReader(PopHeader)
_read_ack: Final = HeaderReader(AckHeader)
_read_change: Final = HeaderReader(ChangeInvisibleHeader)
_read_peek: Final = HeaderReader(PeekHeader)
_read_notification: Final = HeaderReader(NotificationHeader)
_read_polling: Final = HeaderReader(PollingInfoHeader)

BYTES_MAX: Final = 4 * 1024 * 1024
POLL_MS_MAX: Final = 600_000
INVISIBLE_MS_MAX: Final = 7 * 24 * 3_600_000
BATCH_ACKS_MAX: Final = 10_000
RECHECK_MS: Final = 1_000
"""How often pops that wait are run again for what no arrival tells: queues that ordered consumers give free."""
_MOVED: Final = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.MESSAGE_WAS_REMOVING)


@dataclass(slots=True, eq=False)
class _Waiting:
    """A pop or a notification that waits."""

    peer: Peer
    header: CommandHeader
    topic: str
    group: str
    deadline_ms: int
    run: Callable[[], bool]
    """Tries again; True when it answered."""


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
        self._waiting: OrderedDict[_Waiting, None] = OrderedDict()
        self._topics_waited_for: dict[str, int] = {}
        self._next_recheck_ms = 0
        broker.arrival_listeners.append(self.arrived)

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
            self._wait(_Waiting(peer, header, fields.topic, fields.consumer_group, deadline, run))
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
        retry = pop_retry_topic(fields.topic, fields.consumer_group)
        is_retry_first = (
            self._turn * self._broker.config.pop_retry_percent % 100 < self._broker.config.pop_retry_percent
        )
        has_retry = not fields.topic.startswith(RETRY_PREFIX) and self._broker.topics.find(retry) is not None
        if has_retry and is_retry_first and not fields.order:
            self._take(fields, retry, 0, {}, harvest, now)
        queues = [fields.queue_id] if fields.queue_id >= 0 else list(range(config.read_queue_nums))
        begin = self._turn % max(1, len(queues))
        for queue_id in queues[begin:] + queues[:begin]:
            self._take(fields, fields.topic, queue_id, filters, harvest, now)
        if has_retry and not is_retry_first:
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
        flag = "1" if topic.startswith(RETRY_PREFIX) else "0"
        harvest.given.append(Given(flag, queue_id, offsets[0], offsets))
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

    # --- waiting ---

    def _wait(self, waiting: _Waiting) -> None:
        """Let a request wait, or answer that it may not."""
        if waiting.deadline_ms <= self._broker.clock.monotonic_ms() or waiting.header.is_one_way:
            self._time_is_up(waiting)
            return
        if len(self._waiting) >= self._broker.config.pop_waiting_max:
            waiting.peer.write(encode_response(waiting.header, ResponseCode.POLLING_FULL, remark="too many pops wait"))
            return
        self._waiting[waiting] = None
        for topic in self._topics_of(waiting):
            self._topics_waited_for[topic] = self._topics_waited_for.get(topic, 0) + 1

    @staticmethod
    def _topics_of(waiting: _Waiting) -> tuple[str, str]:
        return waiting.topic, pop_retry_topic(waiting.topic, waiting.group)

    def _leave(self, waiting: _Waiting) -> None:
        if self._waiting.pop(waiting, 0) is None:
            for topic in self._topics_of(waiting):
                left = self._topics_waited_for[topic] - 1
                if left:
                    self._topics_waited_for[topic] = left
                else:
                    del self._topics_waited_for[topic]

    def _time_is_up(self, waiting: _Waiting) -> None:
        code, ext = ResponseCode.POLLING_TIMEOUT, None
        if waiting.header.code == RequestCode.NOTIFICATION:
            code, ext = ResponseCode.SUCCESS, {"hasMsg": "false", "pollingFull": "false"}
        waiting.peer.write(
            encode_response(waiting.header, code, ext=ext, remark=None if ext else "nothing came in time")
        )

    def arrived(self, topic: str) -> None:
        """Something came into a topic: who waits for it tries again, the oldest first."""
        if topic in self._topics_waited_for:
            self._try_again([one for one in self._waiting if topic in self._topics_of(one)])

    def _try_again(self, waiting: Sequence[_Waiting]) -> None:
        for one in waiting:
            if one.peer.is_closed:
                self._leave(one)
            elif not one.peer.is_clogged:
                try:
                    is_done = one.run()
                except ReadPending:
                    is_done = False  # it is being fetched from the cold tier: the next look finds it
                except Exception as error:
                    code, remark = response_to_error(error)
                    one.peer.write(encode_response(one.header, code, remark=remark))
                    is_done = True
                if is_done:
                    self._leave(one)

    def expire(self) -> None:
        """Answer those whose time is up; let the others look again now and then. Called every tenth of a second."""
        now = self._broker.clock.monotonic_ms()
        for one in [one for one in self._waiting if one.deadline_ms <= now or one.peer.is_closed]:
            self._leave(one)
            if not one.peer.is_closed:
                self._time_is_up(one)
        if self._waiting and now >= self._next_recheck_ms:
            self._next_recheck_ms = now + RECHECK_MS
            self._try_again(list(self._waiting))

    def release_all(self) -> None:
        """Refuse all that wait: the broker stops."""
        code, remark = response_to_error(ServiceUnavailable("the broker is stopping"))
        for one in list(self._waiting):
            self._leave(one)
            if not one.peer.is_closed:
                one.peer.write(encode_response(one.header, code, remark=remark))

    # --- acks ---

    def _own_topic(self, topic: str, group: str, handle: Handle) -> str:
        """The topic that the message was popped from: clients name the real one, or the one it is called by."""
        if handle.retry_flag == "1" and not topic.startswith(RETRY_PREFIX):
            return pop_retry_topic(topic, group)
        return topic

    def _checked(self, topic: str, group: str, queue_id: int) -> None:
        config = self._broker.topics.get(topic)
        if not 0 <= queue_id < config.queues:
            raise MessageIllegal(f"topic {topic} has {config.queues} queues, there is no queue {queue_id}")
        if self._broker.groups.find(group) is None:
            raise GroupNotFound(f"consumer group {group} does not exist")

    @serves(RequestCode.ACK_MESSAGE)
    def ack(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """A popped message was consumed; answered when that is stored."""
        fields = _read_ack(header)
        handle = parse_handle(fields.extra_info)
        group, topic = fields.consumer_group, self._own_topic(fields.topic, fields.consumer_group, handle)
        self._checked(topic, group, fields.queue_id)
        store = self._broker.store
        if not store.min_offset(topic, fields.queue_id) <= fields.offset <= store.max_offset(topic, fields.queue_id):
            return encode_response(
                header, ResponseCode.NO_MESSAGE, remark=f"offset {fields.offset} is not in the queue"
            )
        if handle.revive_queue == ORDERED_REVIVE_QUEUE:
            self._ack_in_order(group, topic, fields.queue_id, fields.offset, handle.pop_ms)
            return encode_response(header, ResponseCode.SUCCESS)
        self._pop.check_loaded()
        peer.begin_request()
        self._pop.ack(
            Key(group, topic, fields.queue_id, handle.start, handle.pop_ms),
            (fields.offset,),
            now_ms=self._broker.clock.wall_ms(),
            done=partial(self._done, peer, header, {}),
        )
        return None

    def _ack_in_order(self, group: str, topic: str, queue_id: int, offset: int, pop_ms: int) -> None:
        progress = self._broker.pop_order.ack((group, topic, queue_id), offset, pop_ms)
        if progress is not None:
            self._broker.offsets.commit(group, topic, queue_id, progress)
            self.arrived(topic)

    def _done(self, peer: Peer, header: CommandHeader, ext: dict[str, str], failure: str) -> None:
        peer.end_request()
        if header.is_one_way:
            return
        if failure:
            peer.write(encode_response(header, ResponseCode.SYSTEM_ERROR, remark=failure))
        else:
            peer.write(encode_response(header, ResponseCode.SUCCESS, ext=ext))

    @serves(RequestCode.BATCH_ACK_MESSAGE)
    def batch_ack(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Many popped messages were consumed; answered when all of that is stored."""
        acks = load_object(body).get("acks")
        if not isinstance(acks, list) or not all(isinstance(one, dict) for one in acks):
            raise body_error("acks must be a list of objects")
        if len(acks) > BATCH_ACKS_MAX:
            raise InvalidArgument(f"{len(acks)} acks at once; at most {BATCH_ACKS_MAX}")
        self._pop.check_loaded()
        now = self._broker.clock.wall_ms()
        read = [_read_batch_ack(one) for one in acks]
        peer.begin_request()
        left = 1
        failures: list[str] = []

        def done(failure: str) -> None:
            nonlocal left
            left -= 1
            if failure:
                failures.append(failure)
            if not left:
                self._done(peer, header, {}, failures[0] if failures else "")

        for key, revive_queue, offsets in read:
            if revive_queue == ORDERED_REVIVE_QUEUE:
                for offset in offsets:
                    self._ack_in_order(key.group, key.topic, key.queue_id, offset, key.pop_ms)
            elif offsets:
                left += 1
                self._pop.ack(key, offsets, now_ms=now, done=done)
        done("")
        return None

    @serves(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    def change(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Hold a popped message longer, or give it back sooner; the client makes a new POP_CK of the answer."""
        fields = _read_change(header)
        handle = parse_handle(fields.extra_info)
        if not 0 <= fields.invisible_time <= INVISIBLE_MS_MAX:
            raise InvalidArgument(f"invisibleTime is {fields.invisible_time} ms; allowed: 0 to {INVISIBLE_MS_MAX}")
        group, topic = fields.consumer_group, self._own_topic(fields.topic, fields.consumer_group, handle)
        self._checked(topic, group, fields.queue_id)
        now = self._broker.clock.wall_ms()
        if handle.revive_queue == ORDERED_REVIVE_QUEUE:
            place = (group, topic, fields.queue_id)
            self._broker.pop_order.change(place, fields.offset, handle.pop_ms, now + fields.invisible_time)
            ext = _times(handle.pop_ms, fields.invisible_time, ORDERED_REVIVE_QUEUE)
            return encode_response(header, ResponseCode.SUCCESS, ext=ext)
        self._pop.check_loaded()
        peer.begin_request()
        key = Key(group, topic, fields.queue_id, handle.start, handle.pop_ms)
        pop_ms = self._pop.free_pop_ms(key, fields.offset, now)
        self._pop.change(
            key,
            fields.offset,
            pop_ms=pop_ms,
            invisible_ms=fields.invisible_time,
            done=partial(self._done, peer, header, _times(pop_ms, fields.invisible_time, 0)),
        )
        return None

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
            self._wait(_Waiting(peer, header, fields.topic, fields.consumer_group, deadline, run))
        return None

    def _notify(self, peer: Peer, header: CommandHeader, fields: NotificationHeader) -> bool:
        broker = self._broker
        retry = pop_retry_topic(fields.topic, fields.consumer_group)
        config = broker.topics.get(fields.topic)
        places = [(fields.topic, queue_id) for queue_id in range(config.read_queue_nums)]
        if fields.queue_id >= 0:
            places = [(fields.topic, fields.queue_id)]
        if broker.topics.find(retry) is not None:
            places.append((retry, 0))
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
        count = sum((one.topic, one.group) == (fields.topic, fields.consumer_group) for one in self._waiting)
        return encode_response(header, ResponseCode.SUCCESS, ext={"pollingNum": str(count)})


def _times(pop_ms: int, invisible_ms: int, revive_queue: int) -> dict[str, str]:
    return {"popTime": str(pop_ms), "invisibleTime": str(invisible_ms), "reviveQid": str(revive_queue)}


def _offsets_of(found: GetResult) -> list[int]:
    offsets = []
    for view in found.records:
        at = 0
        while at < len(view):
            record = decode_record(view, at)
            offsets.append(record.queue_offset)
            at += record.size
    return offsets


def _read_batch_ack(one: dict[str, Any]) -> tuple[Key, int, list[int]]:
    """Key, revive queue and offsets of one entry; short and long names. Raises RemoteProtocolError."""

    def member(short: str, long: str) -> Any:
        return one[short] if short in one else one[long]

    try:
        retry_flag = str(one.get("r", one.get("retry", "0")))
        group, topic = str(member("c", "consumerGroup")), str(member("t", "topic"))
        if retry_flag == "1" and not topic.startswith(RETRY_PREFIX):
            topic = pop_retry_topic(topic, group)
        start, pop_ms = int(member("so", "startOffset")), int(member("pt", "popTime"))
        queue_id, revive_queue = int(member("q", "queueId")), int(member("rq", "reviveQueueId"))
        bits = base64.b64decode(str(member("b", "bitSet")), validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise body_error(f"an ack cannot be read: {error!r}") from None
    if len(bits) > MESSAGES_MAX:
        raise body_error(f"an ack of {8 * len(bits)} offsets")
    offsets = [start + 8 * place + bit for place, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1]
    return Key(group, topic, queue_id, start, pop_ms), revive_queue, offsets
