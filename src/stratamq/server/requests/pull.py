"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): messages go out, or the pull waits for them.

Records go out as they lie in the log. A pull that finds nothing new and may wait is parked; it is run again when a
matching message arrives or its time is up, then without the right to wait. What is kept of it then is its decoded
header, never the bytes it came in.

Source: apache/rocketmq broker/.../PullMessageProcessor.java, DefaultPullMessageResultHandler.java.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from stratamq.broker.broker import Broker
from stratamq.broker.long_polling import Waiter
from stratamq.broker.sql import SqlFilter
from stratamq.broker.subscriptions import EXPRESSION_TAG, Subscription, parse_subscription
from stratamq.broker.topics import PERM_READ
from stratamq.errors import (
    AccessDenied,
    FilterStale,
    FilterUnknown,
    FlowControlled,
    InvalidArgument,
    QueueNotFound,
    ReadPending,
    RemoteProtocolError,
    ServiceUnavailable,
    SubscriptionStale,
    SubscriptionUnknown,
)
from stratamq.formats.message import PHYSICAL_OFFSET_AT
from stratamq.logstore.types import Arrival, GetResult, GetStatus
from stratamq.protocols.remoting.codes import SERIALIZE_JSON, RequestCode, ResponseCode
from stratamq.protocols.remoting.command import BinaryHeader, CommandHeader
from stratamq.protocols.remoting.headers import (
    PULL_COMMITS,
    PULL_HAS_SUBSCRIPTION,
    PULL_MAY_WAIT,
    PullHeader,
    read_pull,
)
from stratamq.protocols.remoting.replies import encode_pull_head, encode_response, response_to_error
from stratamq.server.requests.base import Peer, serves
from stratamq.server.requests.static_reads import Offsets, StaticRead, forward

_NOT_FOUND: Final = ResponseCode.PULL_NOT_FOUND
_MOVED: Final = ResponseCode.PULL_OFFSET_MOVED
_AGAIN: Final = ResponseCode.PULL_RETRY_IMMEDIATELY
CODE_OF_GET: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: _AGAIN,
    GetStatus.MESSAGE_WAS_REMOVING: _AGAIN,
    GetStatus.OFFSET_FOUND_NULL: _NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: _NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: _MOVED,
    GetStatus.OFFSET_TOO_SMALL: _MOVED,
    GetStatus.NO_MATCHED_LOGIC_QUEUE: _MOVED,
    GetStatus.NO_MESSAGE_IN_QUEUE: _MOVED,
    GetStatus.OFFSET_RESET: _MOVED,
}
_REMARKS: Final = {status: status.value.encode() for status in GetStatus}
_EMPTY_QUEUE: Final = (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)

_STOPPING: Final = "the broker is stopping"
PULL_MESSAGES_MAX: Final = 10_000
SUSPEND_MS_MAX: Final = 600_000


class _Pull(NamedTuple):
    """What is kept of a pull that waits."""

    peer: Peer
    opaque: int
    serialization: int
    fields: PullHeader
    tags_codes: frozenset[int] | None
    matching: SqlFilter | None
    static: StaticRead | None = None
    """For a static topic; ``fields`` are physical then."""


class PullRequests:
    """Gives messages to consumers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._get = broker.store.get
        self._counters = broker.counters
        self._gets = broker.statistics.gets
        self._resets = broker.offsets.resets
        self._place = broker.static_topics.place

    @serves(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
    def pull(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Read a queue from an offset; waits for messages when asked to."""
        fields = read_pull(header)
        if not self._broker.is_accepting:
            raise ServiceUnavailable(_STOPPING)
        if self._broker.replica.refuses_reads:
            raise FlowControlled("[REJECTREQUEST] this broker is a slave, and slaveReadEnable is false")
        place = self._place(fields.topic, fields.queue_id, lo=fields.lo)
        static = None if place is None else StaticRead.at(place, fields.queue_offset)
        tags_codes, matching = self._check(fields if static is None else static.leading(fields))
        if static is not None:
            fields = static.physical(fields)
            if not static.is_here:
                forward(self._broker.neighbours, peer, header, static, self._with_subscription(fields))
                return None
        pull = _Pull(peer, header.opaque, header.serialization, fields, tags_codes, matching, static)
        if self._resets and self._tell_reset(pull):
            return None
        if fields.sys_flag & PULL_COMMITS and fields.commit_offset >= 0:
            self._broker.offsets.commit(fields.consumer_group, fields.topic, fields.queue_id, fields.commit_offset)
        self._run(pull, may_wait=bool(fields.sys_flag & PULL_MAY_WAIT) and not header.is_one_way)
        return None

    # --- checks, in RocketMQ's order ---

    def _check(self, fields: PullHeader) -> tuple[frozenset[int] | None, SqlFilter | None]:
        """Check a pull and return the tags codes and the SQL92 filter to read by; None for all."""
        broker = self._broker
        if not broker.config.permission & PERM_READ:
            raise AccessDenied("this broker gives no messages (brokerPermission)")
        group = broker.groups.get(fields.consumer_group)
        if not group.consume_enable:
            raise AccessDenied(f"consumer group {fields.consumer_group} may not consume (consumeEnable)")
        topic = broker.topics.get(fields.topic)
        if not broker.groups.is_readable(fields.consumer_group, fields.topic):
            raise AccessDenied(f"the consumer group {fields.consumer_group} is forbidden for topic {fields.topic}")
        if not topic.is_readable:
            raise AccessDenied(f"topic {fields.topic} is not readable")
        if not 0 <= fields.queue_id < topic.queues:
            raise QueueNotFound(f"topic {fields.topic} has {topic.queues} queues, there is no queue {fields.queue_id}")
        if fields.max_msg_nums < 1:
            raise InvalidArgument(f"maxMsgNums is {fields.max_msg_nums}, it must be at least 1")
        subscription = self._subscription(fields, group.consume_broadcast_enable)
        if subscription.expression_type == EXPRESSION_TAG:
            return subscription.tags_codes, None
        matching = subscription.sql if fields.sys_flag & PULL_HAS_SUBSCRIPTION else self._filter(fields)
        if not broker.config.property_filters:
            raise filters_off(subscription.expression_type)
        return None, matching

    def _filter(self, fields: PullHeader) -> SqlFilter:
        """The filter that the group's heartbeats brought."""
        kept = self._broker.filters.find(fields.consumer_group, fields.topic)
        where = f"the SQL92 filter of group {fields.consumer_group} for topic {fields.topic}"
        if kept is None:
            raise FilterUnknown(f"{where} is not known here, or cannot be parsed; the broker's log says why")
        if kept.version < fields.sub_version:
            raise FilterStale(f"{where} known here is older")
        return kept.sql

    def _subscription(self, fields: PullHeader, broadcast_enabled: bool) -> Subscription:
        if fields.sys_flag & PULL_HAS_SUBSCRIPTION:
            return parse_subscription(fields.topic, fields.subscription or "", fields.expression_type or "")
        group = self._broker.consumers.find(fields.consumer_group)
        if group is None:
            raise SubscriptionUnknown(f"no member of group {fields.consumer_group} is known here; heartbeat first")
        if group.is_broadcasting and not broadcast_enabled:
            raise AccessDenied(f"consumer group {fields.consumer_group} may not consume by broadcast")
        subscription = group.subscriptions.get(fields.topic)
        if subscription is None:
            raise SubscriptionUnknown(f"group {fields.consumer_group} does not subscribe to topic {fields.topic}")
        if subscription.version < fields.sub_version:
            raise SubscriptionStale(f"the subscription of group {fields.consumer_group} known here is older")
        return subscription

    def _with_subscription(self, fields: PullHeader) -> PullHeader:
        """The pull with its subscription, for a broker that may know nothing of the group's members."""
        subscription = self._subscription(fields, broadcast_enabled=True)
        return msgspec.structs.replace(
            fields,
            sys_flag=fields.sys_flag | PULL_HAS_SUBSCRIPTION,
            subscription=subscription.expression,
            expression_type=subscription.expression_type,
        )

    # --- reading ---

    def _read(self, pull: _Pull) -> GetResult:
        fields = pull.fields
        return self._get(
            fields.topic,
            fields.queue_id,
            fields.queue_offset,
            min(fields.max_msg_nums, PULL_MESSAGES_MAX),
            max_bytes=fields.max_msg_bytes if fields.max_msg_bytes is not None and fields.max_msg_bytes > 0 else None,
            tags_codes=pull.tags_codes,
            matching=pull.matching,
        )

    def _run(self, pull: _Pull, *, may_wait: bool) -> None:
        fields, result = pull.fields, self._read(pull)
        code = CODE_OF_GET[result.status]
        if result.status in _EMPTY_QUEUE and fields.queue_offset == 0:
            code = _NOT_FOUND
        may_wait = may_wait and (pull.static is None or pull.static.may_wait)
        if code is _NOT_FOUND and may_wait and result.status is not GetStatus.OFFSET_FOUND_NULL and self._park(pull):
            return
        self._answer(pull, code, result)

    def _tell_reset(self, pull: _Pull) -> bool:
        """Answer a pull with the offset that an operator has set for its group; False when nobody has."""
        fields = pull.fields
        offset = self._broker.offsets.take_reset(fields.consumer_group, fields.topic, fields.queue_id)
        if offset is None:
            return False
        store = self._broker.store
        low, high = (end(fields.topic, fields.queue_id) for end in (store.min_offset, store.max_offset))
        self._answer(pull, _MOVED, GetResult(GetStatus.OFFSET_RESET, offset, low, high))
        return True

    def _answer(self, pull: _Pull, code: ResponseCode, result: GetResult) -> None:
        counters = self._counters
        if result.message_count:
            counters.messages_got += result.message_count
            counters.bytes_got += result.total_bytes
            counters.gets_found += 1
            tally = self._gets[pull.fields.topic, pull.fields.consumer_group]
            tally.count += result.message_count
            tally.size += result.total_bytes
            tally.times += 1
        else:
            counters.gets_missed += 1
        told, delta = Offsets(code, result.next_offset, result.min_offset, result.max_offset), None
        if pull.static is not None:
            told, delta = pull.static.logical(pull.fields.queue_offset, told)
        head = encode_pull_head(
            pull.serialization,
            pull.opaque,
            code=told.code,
            remark=_REMARKS[result.status],
            next_offset=told.next_offset,
            min_offset=told.min_offset,
            max_offset=told.max_offset,
            suggested_broker=self._suggested(pull, result) if self._broker.replica.far_behind_bytes else 0,
            body_bytes=result.total_bytes,
            offset_delta=delta,
        )
        pull.peer.write_parts(head, result.records, result.total_bytes)

    def _suggested(self, pull: _Pull, result: GetResult) -> int:
        """The id of the broker that the group should ask next: a slave for who reads what is no longer in memory."""
        group = self._broker.groups.find(pull.fields.consumer_group)
        if group is None:
            return 0
        if not result.records:
            return group.broker_id
        last = result.records[-1]
        at = PHYSICAL_OFFSET_AT
        end = int.from_bytes(last[at : at + 8], "big", signed=True) + len(last)
        is_far = self._broker.store.status().max_physical_offset - end > self._broker.replica.far_behind_bytes
        return group.which_broker_when_consume_slowly if is_far else group.broker_id

    # --- waiting ---

    def _park(self, pull: _Pull) -> bool:
        """Let a pull wait; False when it should be answered at once. Raises FlowControlled when too many wait."""
        broker, fields = self._broker, pull.fields
        wait_ms = fields.suspend_timeout_millis if broker.config.long_polling else broker.config.short_polling_ms
        if wait_ms <= 0 or pull.peer.is_closed:
            return False
        if broker.waiting.is_full:
            raise FlowControlled("[REJECTREQUEST] too many pulls are waiting at this broker")
        self._park_until(pull, broker.clock.monotonic_ms() + min(wait_ms, SUSPEND_MS_MAX))
        return True

    def _park_until(self, pull: _Pull, deadline_ms: int) -> None:
        self._broker.waiting.park(
            Waiter(
                connection=pull.peer,
                topic=pull.fields.topic,
                queue_id=pull.fields.queue_id,
                offset=pull.fields.queue_offset,
                tags_codes=pull.tags_codes,
                deadline_ms=deadline_ms,
                request=pull,
            )
        )

    def resume(self, waiters: Sequence[Waiter], *, in_time: bool = False) -> None:
        """Run pulls again that waited. One whose peer takes nothing now is run when it does.

        With ``in_time`` they are woken by messages; who filters by properties and wants none of them waits on.
        """
        for waiter in waiters:
            pull: _Pull = waiter.request
            if pull.peer.is_closed:
                continue
            if pull.peer.is_clogged:
                pull.peer.defer(partial(self._run_again, pull))
            elif in_time and pull.matching is not None and self._waits_on(pull, waiter.deadline_ms):
                continue
            else:
                self._run_again(pull)

    def _waits_on(self, pull: _Pull, deadline_ms: int) -> bool:
        """Look at what came; when nothing of it is wanted, wait on behind it."""
        try:
            result = self._read(pull)
        except Exception:
            return False  # running the pull again says what is wrong
        if result.status is not GetStatus.NO_MATCHED_MESSAGE or result.next_offset != result.max_offset:
            return False
        fields = msgspec.structs.replace(pull.fields, queue_offset=result.next_offset)
        self._park_until(pull._replace(fields=fields), deadline_ms)
        return True

    def _run_again(self, pull: _Pull) -> None:
        try:
            if pull.static is not None:  # the queue may have moved while the pull waited: that raises
                self._place(pull.fields.topic, pull.static.place.queue_id)
            if self._resets and self._tell_reset(pull):
                return
            self._run(pull, may_wait=False)
        except ReadPending as pending:
            pending.when_ready(partial(self._run_fetched, pull))
        except Exception as error:
            _refuse(pull, *response_to_error(error))

    def _run_fetched(self, pull: _Pull) -> None:
        """What a pull reads has been fetched from the cold tier."""
        if pull.peer.is_clogged:
            pull.peer.defer(partial(self._run_again, pull))
        elif not pull.peer.is_closed:
            self._run_again(pull)

    def arrived(self, arrivals: Sequence[Arrival]) -> None:
        """Messages have come in: wake who waits for them."""
        waiting, watchers, listeners = self._broker.waiting, self._broker.watchers, self._broker.arrival_listeners
        for arrival in arrivals:
            topic, queue_id = arrival.queue
            if topic in watchers:
                watchers[topic](queue_id)
            for listener in listeners:
                listener(topic)
            if len(waiting):
                self.resume(waiting.wake(topic, queue_id, arrival.tags_codes), in_time=True)

    def expire(self) -> None:
        """Answer the pulls whose time is up."""
        self.resume(self._broker.waiting.expire(self._broker.clock.monotonic_ms()))

    def check_behind(self) -> None:
        """Run pulls that should have been woken and were not; nothing is lost should a wake-up ever be."""
        broker = self._broker
        offsets = {key: broker.store.max_offset(*key) for key in broker.waiting.queues()}
        self.resume(broker.waiting.behind(offsets))

    def release_all(self) -> None:
        """Refuse all waiting pulls: the broker stops.

        Told that nothing was found, clients would ask again at once. Some do even so, and then wait half a minute for
        the answer to what they sent into a closing connection: whoever stops closes it in the same turn.
        """
        waiting = self._broker.waiting
        code, remark = response_to_error(ServiceUnavailable(_STOPPING))
        for topic, queue_id in waiting.queues():
            for waiter in waiting.wake(topic, queue_id, ()):
                _refuse(waiter.request, code, remark)


def _refuse(pull: _Pull, code: int, remark: str) -> None:
    """Answer a pull that waited with an error, in the form of its request."""
    kind = CommandHeader if pull.serialization == SERIALIZE_JSON else BinaryHeader
    asked = kind(code=RequestCode.PULL_MESSAGE, opaque=pull.opaque)
    pull.peer.write(encode_response(asked, code, remark=remark))


def filters_off(expression_type: str) -> RemoteProtocolError:
    """The error for a subscription by properties where `enablePropertyFilter` is off; RocketMQ's words."""
    return RemoteProtocolError(
        f"The broker does not support consumer to filter message by {expression_type}",
        reply_hint=ResponseCode.SYSTEM_ERROR,
    )
