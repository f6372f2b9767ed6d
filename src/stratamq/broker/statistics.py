"""What went in and out lately: by topic and by group, over a minute, an hour and a day, and for the whole broker.

Whoever moves messages adds to a `Tally`, a few plain numbers: one dictionary lookup and two additions a message. Each
is sampled every ten seconds into three short rings, from which rates follow; a key that nothing happened to for a day
is not sampled any more. Time is wall time in milliseconds and comes from whoever calls.

Source: apache/rocketmq common/.../stats/StatsItem.java, store/.../stats/BrokerStatsManager.java, BrokerStats.java,
store/.../StoreStatsService.java.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from datetime import datetime, timedelta
from typing import Final, Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)

KEYS_MAX: Final = 5_000
"""Topics, or pairs of topic and group, that are counted apart; further ones are counted together and not shown."""
SECOND_MS: Final = 1_000
SAMPLE_MS: Final = 10_000
PARTS: Final = SAMPLE_MS // SECOND_MS
"""A tenth of the keys is sampled each second, so that many keys do not hold the loop up."""
HOUR_SAMPLE_MS: Final = 600_000
DAY_SAMPLE_MS: Final = 3_600_000
RATES_KEPT: Final = 601
RATE_SPANS: Final = (10, 60, 600)
"""Seconds over which the rates of the whole broker are given."""


class Tally:
    """What happened to one key since the start: messages, bytes, and in how many pieces when not one by one."""

    __slots__ = ("count", "size", "times")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self.times = 0

    def now(self) -> Sample:
        """The numbers as they are; without pieces each message is one."""
        return Sample(self.count, self.size, self.times or self.count)


class Sample(NamedTuple):
    """A tally at one moment."""

    messages: int
    size: int
    times: int


class Tallies(dict[K, Tally], Generic[K]):
    """Tallies by key, made on first use. At most `KEYS_MAX`; what comes after that goes into one that is not kept."""

    def __init__(self) -> None:
        super().__init__()
        self.beyond = Tally()

    def __missing__(self, key: K) -> Tally:
        if len(self) >= KEYS_MAX:
            return self.beyond
        found = self[key] = Tally()
        return found


class Window(NamedTuple):
    """What one key did in a window of time: sum, sum a second, sum a piece."""

    total: int
    per_second: float
    per_piece: float


class Windows(NamedTuple):
    """The three windows that operators see."""

    minute: Window
    hour: Window
    day: Window


_SPANS: Final = ((SAMPLE_MS, 7), (HOUR_SAMPLE_MS, 7), (DAY_SAMPLE_MS, 25))
_NOTHING: Final = Sample(0, 0, 0)


class _History:
    """Samples of one key: rings over a minute, an hour and a day, as (time, sample), the oldest first."""

    __slots__ = ("last", "rings")

    def __init__(self, begun_ms: int) -> None:
        self.last = _NOTHING
        self.rings = ([(begun_ms, _NOTHING)], [(begun_ms, _NOTHING)], [(begun_ms, _NOTHING)])

    def take(self, now_ms: int, sample: Sample) -> None:
        before, self.last = self.last, sample
        for ring, (pause_ms, kept) in zip(self.rings, _SPANS, strict=True):
            age_ms = now_ms - ring[-1][0]
            if age_ms < pause_ms - SECOND_MS // 2:
                continue
            if age_ms > pause_ms * kept:  # it slept: what is older than the window does not count
                ring[:] = [(now_ms - pause_ms, before)]
            ring.append((now_ms, sample))
            if len(ring) > kept:
                del ring[0]

    def is_flat(self) -> bool:
        minute, hour, day = self.rings
        return day[0][1] == self.last and hour[0][1] == self.last and minute[0][1] == self.last


class _Kind(Generic[K]):
    """All keys of one kind with their histories."""

    def __init__(self, now_ms: int) -> None:
        self.tallies: Tallies[K] = Tallies()
        self._histories: dict[K, _History] = {}
        self._begun_ms = now_ms

    def sample(self, now_ms: int, part: int) -> None:
        for key, tally in list(self.tallies.items())[part::PARTS]:
            history = self._histories.get(key)
            if history is None:
                history = self._histories[key] = self._new(now_ms)
            now = tally.now()
            if now != history.last or not history.is_flat():
                history.take(now_ms, now)

    def _new(self, now_ms: int) -> _History:
        """The history of a key that was not sampled yet: it is younger than a round of samples."""
        return _History(max(self._begun_ms, now_ms - SAMPLE_MS))

    def windows(self, key: K, field: int, now_ms: int) -> Windows | None:
        tally = self.tallies.get(key)
        if tally is None:
            return None
        history = self._histories.get(key) or self._new(now_ms)
        now = tally.now()
        return Windows(*(_window(ring, now, field, now_ms) for ring in history.rings))

    def forget(self, wanted: Callable[[K], bool]) -> None:
        for key in [key for key in self.tallies if wanted(key)]:
            del self.tallies[key]
            self._histories.pop(key, None)


def _window(ring: Sequence[tuple[int, Sample]], now: Sample, field: int, now_ms: int) -> Window:
    begun_ms, first = ring[0]
    total, pieces = now[field] - first[field], now.times - first.times
    seconds = max(SECOND_MS, now_ms - begun_ms) / 1000
    return Window(total, total / seconds, total / pieces if pieces else 0.0)


class Totals(NamedTuple):
    """Numbers of the whole broker since its start, as they are once a second."""

    puts: int = 0
    gets_found: int = 0
    gets_missed: int = 0
    messages_got: int = 0


class Statistics:
    """Counts of one broker; a `ports.Worker` that samples them. Cost of a sample: about 4 us a key in use."""

    NAMES: Final = {
        "TOPIC_PUT_NUMS": ("topics", 0),
        "TOPIC_PUT_SIZE": ("topics", 1),
        "GROUP_GET_NUMS": ("groups", 0),
        "GROUP_GET_SIZE": ("groups", 1),
        "SNDBCK_PUT_NUMS": ("returns", 0),
        "BROKER_PUT_NUMS": ("whole", 0),
        "BROKER_GET_NUMS": ("whole", 0),
    }
    """RocketMQ's names of what is counted: by what, and which number."""

    def __init__(self, *, now_ms: int, totals: Callable[[], Totals], cluster: str) -> None:
        self._topics: _Kind[str] = _Kind(now_ms)
        self._groups: _Kind[tuple[str, str]] = _Kind(now_ms)
        self._returns: _Kind[tuple[str, str]] = _Kind(now_ms)
        self._whole: _Kind[tuple[str, str]] = _Kind(now_ms)
        self.puts = self._topics.tallies
        """By topic: what was stored for producers; sizes are whole records."""
        self.gets = self._groups.tallies
        """By (topic, group): what pulls were given."""
        self.returns = self._returns.tallies
        """By (topic, group): what consumers sent back."""
        self._totals = totals
        self._cluster = cluster
        self._rates: deque[tuple[int, Totals]] = deque([(now_ms, totals())], maxlen=RATES_KEPT)
        self._part = 0
        self._midnight_ms = _next_midnight(now_ms)
        self.morning = self.morning_before = Totals()
        """The totals at the last two midnights (local time) since the start."""

    # --- sampling ---

    def next_due_ms(self) -> int | None:
        """A second after the last sample of rates."""
        return self._rates[-1][0] + SECOND_MS

    def run_due(self, now_ms: int) -> None:
        """Sample rates and a tenth of the tallies; note the totals at midnight."""
        totals = self._totals()
        self._rates.append((now_ms, totals))
        if now_ms >= self._midnight_ms:
            self._midnight_ms = _next_midnight(now_ms)
            self.morning_before, self.morning = self.morning, totals
        self._part = (self._part + 1) % PARTS
        self._take_whole()
        self._topics.sample(now_ms, self._part)
        for kind in (self._groups, self._returns, self._whole):
            kind.sample(now_ms, self._part)

    def _take_whole(self) -> None:
        """The whole broker's tallies are sums that are kept anyway."""
        totals = self._totals()
        self._whole.tallies["BROKER_PUT_NUMS", self._cluster].count = totals.puts
        self._whole.tallies["BROKER_GET_NUMS", self._cluster].count = totals.messages_got

    # --- reading ---

    def windows(self, name: str, key: str, now_ms: int) -> Windows | None:
        """What RocketMQ's statistic of that name says of a key (``topic``, ``topic@group``, the cluster's name).

        None for a name that is not counted or a key that nothing happened to.
        """
        kind, field = self.NAMES.get(name, ("", 0))
        topic, _, group = key.rpartition("@")
        if kind == "topics":
            return self._topics.windows(key, field, now_ms)
        if kind == "groups":
            return self._groups.windows((topic, group), field, now_ms)
        if kind == "returns":
            return self._returns.windows((topic, group), field, now_ms)
        if kind == "whole":
            self._take_whole()
            return self._whole.windows((name, key), field, now_ms)
        return None

    def puts_per_second(self, topic: str, now_ms: int) -> float:
        """Messages a second into a topic over the last minute."""
        found = self._topics.windows(topic, 0, now_ms)
        return found.minute.per_second if found is not None else 0.0

    def gets_per_second(self, topic: str, group: str, now_ms: int) -> float:
        """Messages a second that a group was given of a topic over the last minute."""
        found = self._groups.windows((topic, group), 0, now_ms)
        return found.minute.per_second if found is not None else 0.0

    def rates(self, number: Callable[[Totals], int], now_ms: int) -> tuple[float, ...]:
        """A number's growth a second over the last 10 seconds, minute and ten minutes, or since the start."""
        now = number(self._totals())
        found = []
        for seconds in RATE_SPANS:
            since = self._rates[max(0, len(self._rates) - seconds)]
            span = max(SECOND_MS, now_ms - since[0]) / 1000
            found.append((now - number(since[1])) / span)
        return tuple(found)

    def forget_topic(self, topic: str) -> None:
        """A topic is gone: so is what was counted for it."""
        self._topics.forget(lambda key: key == topic)
        for kind in (self._groups, self._returns):
            kind.forget(lambda key: key[0] == topic)


def _next_midnight(now_ms: int) -> int:
    """The next midnight of local time."""
    here = datetime.fromtimestamp(now_ms / 1000)  # noqa: DTZ006 - an operator's day, as in deleteWhen
    tomorrow = (here + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    return int(tomorrow.timestamp() * 1000)
