"""Rates of the management API: how fast totals moved between the last two samples, as RabbitMQ's basic rates are.

`Rates` are those of the overview; `ObjectSampler` takes the samples of queues, channels and connections, which keep
them themselves (`broker.amqp.traffic`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stratamq.broker.amqp.traffic import Octets, Traffic

if TYPE_CHECKING:
    from stratamq.broker.amqp.broker import AmqpBroker
    from stratamq.broker.amqp.channel import Channel
    from stratamq.broker.amqp.connection import Session
    from stratamq.broker.amqp.queue import Queue

T = TypeVar("T")
SAMPLE_MS: Final = 5_000
"""Between two samples, as RabbitMQ's ``collect_statistics_interval``."""
OBJECTS_A_STEP: Final = 500
"""Objects of each kind sampled in one go, which takes a few milliseconds."""


class Rates:
    """The last two samples of some totals. Times are milliseconds of any one clock that does not go back."""

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}
        self._last: dict[str, int] = {}
        self._sampled_ms: int | None = None

    def is_due(self, now_ms: int) -> bool:
        """Whether it is time for the next sample."""
        return self._sampled_ms is None or now_ms - self._sampled_ms >= SAMPLE_MS

    def sample(self, now_ms: int, totals: Mapping[str, int]) -> None:
        """Take the totals as they are now; nothing happens when no time has passed."""
        if self._sampled_ms is not None:
            seconds = (now_ms - self._sampled_ms) / 1000
            if seconds <= 0:
                return
            self._rates = {
                name: (total - self._last[name]) / seconds for name, total in totals.items() if name in self._last
            }
        self._last, self._sampled_ms = dict(totals), now_ms

    def rated(self, totals: Mapping[str, int]) -> dict[str, Any]:
        """Totals with their rates a second beside them: ``publish`` and ``publish_details``."""
        return _with_rates(totals, self._rates)


class ObjectSampler:
    """Takes a sample of every queue, channel and connection, some at a time. What is gone takes its samples along."""

    def __init__(self, broker: AmqpBroker) -> None:
        self._broker = broker
        self._queues: list[Queue] = []
        self._channels: list[Channel] = []
        self._sessions: list[Session] = []

    def begin(self) -> None:
        """Note what there is now, for the next calls of `step`. Cost: a look at each object."""
        broker = self._broker
        self._queues = [queue for vhost in broker.vhosts.values() for queue in vhost.queues.values()]
        self._sessions = list(broker.sessions)
        self._channels = [channel for session in self._sessions for channel in session.channels.values()]

    def step(self, now_ms: int) -> bool:
        """Sample at most `OBJECTS_A_STEP` of each kind; False when all that `begin` noted have had their turn."""
        for queue in _take(self._queues):
            queue.traffic.sample(queue.traffic.values(queue.ready, queue.unacked), now_ms)
        for channel in _take(self._channels):
            channel.traffic.sample(channel.traffic.values(0, len(channel.unacked)), now_ms)
        for session in _take(self._sessions):
            session.octets.sample(session.octets.values(), now_ms)
        return bool(self._queues or self._channels or self._sessions)


def _take(objects: list[T]) -> list[T]:
    """The last `OBJECTS_A_STEP` of a list, which are then not in it any more."""
    taken = objects[-OBJECTS_A_STEP:]
    del objects[-OBJECTS_A_STEP:]
    return taken


def traffic_row(traffic: Traffic) -> dict[str, Any]:
    """The ``message_stats`` of a queue or a channel; empty as long as nothing has passed through it."""
    names = (*Traffic.COUNTERS, "deliver_get")
    counts = {name: int(getattr(traffic, name)) for name in names}
    return _with_rates(counts, traffic.rates()) if any(counts.values()) else {}


def depth_row(traffic: Traffic, ready: int, unacked: int) -> dict[str, Any]:
    """How many messages a queue holds, and how fast that changes."""
    counts = {"messages": ready + unacked, "messages_ready": ready, "messages_unacknowledged": unacked}
    return _with_rates(counts, traffic.rates())


def octets_row(octets: Octets) -> dict[str, Any]:
    """The bytes of a connection."""
    return _with_rates({name: int(getattr(octets, name)) for name in Octets.NAMES}, octets.rates())


def _with_rates(counts: Mapping[str, int], rates: Mapping[str, float]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, count in counts.items():
        found[name] = count
        found[f"{name}_details"] = {"rate": round(rates.get(name, 0.0), 3)}
    return found
