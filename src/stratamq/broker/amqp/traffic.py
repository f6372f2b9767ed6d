"""What has passed through one queue, one channel or one connection since it came to be, and how fast it moves.

Counting costs an addition. A rate is the difference of the last two samples: an object keeps one sample, made anew only
when something has changed, and its rates only while it moves: at most 1 KiB an object, its counters included. Who takes
the samples, and when, is not decided here.
"""

from __future__ import annotations

from typing import ClassVar


class Meter:
    """Values that are sampled now and then. Counters and gauges alike: a gauge's rate may be negative."""

    __slots__ = ("_rates", "_sample", "_sampled_ms")

    NAMES: ClassVar[tuple[str, ...]] = ()
    """The values' names in the order of `sample`, as RabbitMQ's management API has them."""

    def __init__(self) -> None:
        self._sample: tuple[int, ...] | None = None
        self._sampled_ms = 0
        self._rates: tuple[float, ...] = ()

    def sample(self, values: tuple[int, ...], now_ms: int) -> None:
        """Take the values as they are at ``now_ms``, of a clock that does not go back. The first sample gives no rates;
        one at the time of the last is passed over."""
        last, seconds = self._sample, (now_ms - self._sampled_ms) / 1000
        if last == values:
            self._rates = ()
        elif last is not None:
            if seconds <= 0:
                return
            self._rates = tuple([(new - old) / seconds for new, old in zip(values, last, strict=True)])
            self._sample = values
        else:
            self._sample = values
        self._sampled_ms = now_ms

    def rates(self) -> dict[str, float]:
        """How much each value changed a second between the last two samples; those that are left out did not."""
        return dict(zip(self.NAMES, self._rates, strict=False))


class Traffic(Meter):
    """Messages of a channel or of a queue. Which counters mean something depends on which of them it is."""

    COUNTERS: ClassVar[tuple[str, ...]] = (
        "publish",
        "confirm",
        "return_unroutable",
        "drop_unroutable",
        "deliver",
        "deliver_no_ack",
        "get",
        "get_no_ack",
        "get_empty",
        "redeliver",
        "ack",
    )
    NAMES = (*COUNTERS, "deliver_get", "messages", "messages_ready", "messages_unacknowledged")

    __slots__ = COUNTERS

    def __init__(self) -> None:
        super().__init__()
        self.publish = 0
        self.confirm = 0
        self.return_unroutable = 0
        self.drop_unroutable = 0
        self.deliver = 0
        """To consumers that acknowledge."""
        self.deliver_no_ack = 0
        self.get = 0
        self.get_no_ack = 0
        self.get_empty = 0
        self.redeliver = 0
        self.ack = 0

    @property
    def deliver_get(self) -> int:
        """Everything that was handed out."""
        return self.deliver + self.deliver_no_ack + self.get + self.get_no_ack

    def values(self, ready: int, unacked: int) -> tuple[int, ...]:
        """All values, in the order of `NAMES`; ``ready`` and ``unacked`` are gauges."""
        return (
            self.publish,
            self.confirm,
            self.return_unroutable,
            self.drop_unroutable,
            self.deliver,
            self.deliver_no_ack,
            self.get,
            self.get_no_ack,
            self.get_empty,
            self.redeliver,
            self.ack,
            self.deliver_get,
            ready + unacked,
            ready,
            unacked,
        )


class Octets(Meter):
    """Bytes of a connection, and how often its socket was read and written."""

    NAMES = ("recv_oct", "recv_cnt", "send_oct", "send_cnt")

    __slots__ = NAMES

    def __init__(self) -> None:
        super().__init__()
        self.recv_oct = 0
        self.recv_cnt = 0
        self.send_oct = 0
        self.send_cnt = 0

    def values(self) -> tuple[int, ...]:
        """All values, in the order of `NAMES`."""
        return (self.recv_oct, self.recv_cnt, self.send_oct, self.send_cnt)
