"""Pops and notifications that found nothing and wait until something comes into their topic or its retry topics.

They are tried again when something arrives, and every second for what no arrival tells. `BrokerConfig.pop_waiting_max`
bounds them.

Source: apache/rocketmq broker/.../longpolling/PopLongPollingService.java.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from stratamq.broker.broker import Broker
from stratamq.broker.pop_records import pop_retry_topics
from stratamq.errors import ReadPending, ServiceUnavailable
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.replies import encode_response, response_to_error
from stratamq.server.requests.base import Peer

RECHECK_MS: Final = 1_000
"""How often pops that wait are run again for what no arrival tells: queues that ordered consumers give free."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A pop or a notification that waits."""

    peer: Peer
    header: CommandHeader
    topic: str
    group: str
    deadline_ms: int
    run: Callable[[], bool]
    """Tries again; True when it answered."""


class PopWaiting:
    """Those that wait, of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: OrderedDict[Waiting, None] = OrderedDict()
        self._topics_waited_for: dict[str, int] = {}
        self._next_recheck_ms = 0
        broker.arrival_listeners.append(self.arrived)

    def wait(self, waiting: Waiting) -> None:
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

    def count(self, topic: str, group: str) -> int:
        """How many of a group wait for a topic."""
        return sum((one.topic, one.group) == (topic, group) for one in self._waiting)

    @staticmethod
    def _topics_of(waiting: Waiting) -> tuple[str, ...]:
        return waiting.topic, *pop_retry_topics(waiting.topic, waiting.group)

    def _leave(self, waiting: Waiting) -> None:
        if self._waiting.pop(waiting, 0) is None:
            for topic in self._topics_of(waiting):
                left = self._topics_waited_for[topic] - 1
                if left:
                    self._topics_waited_for[topic] = left
                else:
                    del self._topics_waited_for[topic]

    def _time_is_up(self, waiting: Waiting) -> None:
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

    def _try_again(self, waiting: Sequence[Waiting]) -> None:
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
