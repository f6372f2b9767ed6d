"""A queue over the network: every record once and in order, whatever a broker gives at a time and however it fails."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratamq.errors import CorruptionError, DataLost, PeerRefused, PeerUnreachable, PipelineError
from stratamq.logstore.types import QueueKey
from stratamq.pipeline.cluster import Cluster
from stratamq.pipeline.filters import Bounds
from stratamq.pipeline.options import parse_options
from stratamq.pipeline.plan import plan_spans
from stratamq.pipeline.pulling import PULLS_MAX, BrokerOrigin, broker_batches
from stratamq.pipeline.reader import Lost, QueueSpan
from stratamq.testing.clock import ManualClock
from tests.unit.pipeline.fake_broker import T0, FakeBroker, record

KEY = QueueKey("orders", 0)


def cluster_of(fake: FakeBroker, /, *, trusts_topics: bool = False, **given_options: str) -> Cluster:
    clock = ManualClock()
    made = Cluster(
        parse_options({"namesrv": "n:1", **given_options}),
        trusts_topics=trusts_topics,
        clock=lambda: clock.monotonic_ms() / 1000,
        sleep=lambda seconds: clock.advance(int(seconds * 1000)),
    )
    made.calls = fake  # type: ignore[assignment]
    return made


def read(broker: FakeBroker, lo: int, hi: int, **given_options) -> tuple[list[int], list[Lost]]:
    lost: list[Lost] = []
    skip = lost.append if given_options.pop("lenient", False) else None
    found = []
    columns = ["queue_offset", "body", "physical_offset"]
    for batch in broker_batches(cluster_of(broker, **given_options), KEY, lo, hi, columns, skip_lost=skip):
        rows = batch.to_pylist()
        assert all(row["body"] == b"%d" % row["queue_offset"] for row in rows)
        assert all(row["physical_offset"] == 1000 * row["queue_offset"] for row in rows)
        found += [row["queue_offset"] for row in rows]
    return found, lost


@settings(max_examples=30, deadline=None)
@given(count=st.integers(0, 300), gives=st.integers(1, 70), data=st.data())
def test_any_range_comes_once_and_in_order(count, gives, data):
    lo = data.draw(st.integers(0, count))
    hi = data.draw(st.integers(lo, count))
    broker = FakeBroker(count, gives=gives)
    assert read(broker, lo, hi) == (list(range(lo, hi)), [])
    assert broker.most_flying <= PULLS_MAX


def test_several_pulls_are_under_way():
    broker = FakeBroker(1000)
    read(broker, 0, 1000)
    assert broker.most_flying == PULLS_MAX
    assert len(broker.pulls) < 45


@settings(max_examples=30, deadline=None)
@given(failing=st.sets(st.integers(0, 60), max_size=12), gives=st.integers(1, 40))
def test_connections_that_end_cost_nothing_but_time(failing, gives):
    broker, left = FakeBroker(200, gives=gives), set(failing)

    def fail(offset: int) -> None:
        if len(broker.pulls) in left:
            left.discard(len(broker.pulls))
            raise PeerUnreachable("b:1", "reset")

    broker.before_pull = fail
    assert read(broker, 3, 200)[0] == list(range(3, 200))


def test_a_broker_that_stays_away_is_an_error_after_a_while():
    broker = FakeBroker(50)

    def fail(offset: int) -> None:
        raise PeerUnreachable("b:1", "reset")

    broker.before_pull = fail
    with pytest.raises(PeerUnreachable):
        read(broker, 0, 50, retrySeconds="20")
    assert len(broker.pulls) == 41


def test_a_broker_that_moved_is_found_where_the_name_server_says():
    broker = FakeBroker(100)

    def move(offset: int) -> None:
        if offset >= 50 and broker.brokers["a"]["0"] == "b:1":
            broker.brokers["a"]["0"] = "elsewhere:1"
            raise PeerUnreachable("b:1", "gone")

    broker.before_pull = move
    assert read(broker, 0, 100)[0] == list(range(100))
    assert {address for address, *_ in broker.pulls} == {"b:1", "elsewhere:1"}


def test_a_name_server_that_was_started_again_is_given_time():
    broker = FakeBroker(100)

    def restart(offset: int) -> None:
        if len(broker.pulls) == 2:
            broker.unknown = 5
            raise PeerUnreachable("b:1", "gone")

    broker.before_pull = restart
    assert read(broker, 0, 100, trusts_topics=True)[0] == list(range(100))
    assert broker.unknown == 0
    broker.unknown = 1
    with pytest.raises(PeerRefused):
        read(broker, 0, 100)


def test_a_slave_gives_what_the_master_cannot():
    broker = FakeBroker(100)
    broker.brokers["a"] = {"0": "b:1", "1": "s:1"}

    def dead(offset: int) -> None:
        if broker.pulls[-1][0] == "b:1":
            raise PeerUnreachable("b:1", "gone")

    broker.before_pull = dead
    assert read(broker, 0, 100)[0] == list(range(100))


def test_what_retention_took_meanwhile_is_named_or_skipped():
    def broker() -> FakeBroker:
        made = FakeBroker(200)

        def expire(offset: int) -> None:
            if offset >= 64:
                made.lowest = 150
                made.records = {key: value for key, value in made.records.items() if key >= 150}

        made.before_pull = expire
        return made

    with pytest.raises(DataLost, match=r"wanted \[0, 200\), missing \[64, 150\), the broker has \[150, 200\)"):
        read(broker(), 0, 200)
    assert read(broker(), 0, 200, lenient=True) == ([*range(64), *range(150, 200)], [Lost(*KEY, 64, 150)])


def test_a_hole_in_an_answer_is_a_loss():
    broker = FakeBroker(100)
    for offset in (40, 41, 42):
        del broker.records[offset]
    with pytest.raises(DataLost, match=r"missing \[40, 43\)"):
        read(broker, 0, 100)
    whole = [*range(40), *range(43, 100)]
    assert read(broker, 0, 100, lenient=True) == (whole, [Lost(*KEY, 40, 43)])


def test_a_queue_that_ends_earlier_than_planned_is_a_loss():
    with pytest.raises(DataLost, match=r"missing \[100, 120\)"):
        read(FakeBroker(100), 0, 120)
    assert read(FakeBroker(100), 0, 120, lenient=True) == (list(range(100)), [Lost(*KEY, 100, 120)])


@pytest.mark.parametrize("data", [b"", b"\0" * 200, record("orders", 0, 5, b"x")[:-1], record("orders", 1, 5, b"x")])
def test_answers_that_are_no_such_records_are_refused(data):
    broker = FakeBroker(10)
    broker.records[5] = data
    with pytest.raises((CorruptionError, DataLost)):
        read(broker, 5, 6)


def test_planning_by_offsets_times_and_names():
    def spans(fake: FakeBroker, **texts: str) -> list[QueueSpan]:
        options = parse_options({"namesrv": "n:1", **texts})
        origin = BrokerOrigin(options)
        origin.cluster = cluster_of(fake, **texts)
        return plan_spans(origin.keys(), origin, options, Bounds())

    assert spans(FakeBroker(100, lowest=7)) == [(*KEY, 7, 100)], "of all topics; one is on no broker any more"
    times = {"startingTimestamp": str(T0 + 19_500), "endingTimestamp": str(T0 + 90_000)}
    assert spans(FakeBroker(100, lowest=7), **times) == [(*KEY, 20, 90)]
    assert spans(FakeBroker(100), topics="orders", startingOffsets="latest") == []
    with pytest.raises(DataLost, match="asks for offset 3 "):
        spans(FakeBroker(100, lowest=7), startingOffsets='{"orders": {"0": 3}}')
    with pytest.raises(PipelineError, match="has no topic nothing"):
        spans(FakeBroker(100), topics="nothing")
    two = FakeBroker(100)
    two.brokers["b"] = {"0": "c:1"}
    with pytest.raises(PipelineError, match="on the brokers a, b"):
        spans(two)
    assert spans(two, broker="b") == [(*KEY, 0, 100)]


def test_splits_are_about_as_large_as_wanted_and_tile():
    origin = BrokerOrigin(parse_options({"namesrv": "n:1"}))
    origin.cluster = cluster_of(FakeBroker(1000))
    size = len(record("orders", 0, 500, b"500"))
    splits = origin.splits([QueueSpan(*KEY, 10, 1000)], bytes_per_split=100 * size)
    assert len(splits) == 10
    assert [one.lo for one in splits][1:] == [one.hi for one in splits][:-1]
    assert (splits[0].lo, splits[-1].hi) == (10, 1000)


def test_refusals_come_as_they_are():
    broker = FakeBroker(10)
    broker.brokers["a"] = {}
    with pytest.raises(PeerUnreachable, match="master of topic orders"):
        read(broker, 0, 10, retrySeconds="1")
    with pytest.raises(PeerRefused):
        cluster_of(FakeBroker(1)).route("nothing")
