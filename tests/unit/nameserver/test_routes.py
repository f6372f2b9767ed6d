"""The route table: who owns what, and who is still there."""

from __future__ import annotations

import pytest

from stratamq.errors import InvalidArgument
from stratamq.nameserver.routes import DataVersion, QueueData, Registration, RouteTable

FOUR = QueueData(4, 4, 6)


def registration(name: str = "broker-a", *, address: str = "", counter: int = 1, **rest) -> Registration:
    topics = rest.pop("topics", {"T": FOUR, "U": FOUR})
    return Registration(
        cluster="C",
        name=name,
        address=address or f"10.0.0.1:{10911 + len(name)}",
        version=DataVersion(counter=counter),
        topics=topics,
        **rest,
    )


@pytest.fixture
def table() -> RouteTable:
    return RouteTable()


def test_a_registered_broker_has_its_routes(table):
    table.register(registration(), now_ms=0)
    route = table.route("T")
    assert route is not None
    assert [(data.name, data.cluster, data.addresses) for data in route.brokers] == [
        ("broker-a", "C", {0: "10.0.0.1:10919"})
    ]
    assert route.queues == {"broker-a": FOUR}
    assert table.route("X") is None
    assert table.topics() == ["T", "U"]
    assert table.clusters() == {"C": ["broker-a"]}
    assert table.topics_of_cluster("C") == ["T", "U"]
    assert table.topics_of_cluster("D") == []


def test_a_topic_on_two_brokers(table):
    table.register(registration("a", address="h:1"), now_ms=0)
    table.register(registration("b", address="h:2"), now_ms=0)
    route = table.route("T")
    assert route is not None
    assert list(route.queues) == ["a", "b"]
    table.unregister("C", "a", "h:1", 0)
    route = table.route("T")
    assert route is not None
    assert list(route.queues) == ["b"]


def test_a_silent_broker_loses_its_routes(table):
    table.register(registration(), now_ms=0)
    assert table.expire(119_999) == []
    table.touch("C", "10.0.0.1:10919", now_ms=100_000)
    assert table.expire(219_999) == []
    assert table.expire(220_000) == ["10.0.0.1:10919"]
    assert table.route("T") is None
    assert table.clusters() == {}
    assert table.topics() == []


def test_a_broker_asks_for_its_own_timeout(table):
    table.register(registration(timeout_ms=1000), now_ms=0)
    assert table.expire(1000) == ["10.0.0.1:10919"]


def test_the_broker_of_this_process_never_expires(table):
    table.register(registration(), now_ms=0, permanent=True)
    table.touch("C", "10.0.0.1:10919", now_ms=5)
    assert table.expire(10**12) == []


def test_a_closed_connection_takes_its_brokers_along(table):
    table.register(registration("a", address="h:1"), now_ms=0, connection="x")
    table.register(registration("b", address="h:2"), now_ms=0, connection="y")
    assert table.drop_connection("x") == ["h:1"]
    assert [data.name for data in table.brokers()] == ["b"]


def test_topics_change_only_with_the_data_version(table):
    table.register(registration(counter=1), now_ms=0)
    generation = table.generation
    table.register(registration(counter=1, topics={"T": QueueData(9, 9, 6), "U": FOUR}), now_ms=1)
    assert table.generation == generation
    table.register(registration(counter=2, topics={"T": QueueData(9, 9, 6), "U": FOUR}), now_ms=1)
    route = table.route("T")
    assert route is not None
    assert route.queues["broker-a"].read_queues == 9
    assert table.generation > generation
    assert table.data_version("C", "10.0.0.1:10919") == DataVersion(counter=2)


def test_an_unknown_broker_with_one_topic_is_refused(table):
    with pytest.raises(InvalidArgument, match="single topic"):
        table.register(registration(topics={"T": FOUR}), now_ms=0)
    assert table.brokers() == []


def test_a_slave_learns_its_master_and_tells_no_topics(table):
    table.register(registration("a", address="h:1", ha_address="h:9"), now_ms=0)
    answer = table.register(registration("a", address="h:2", broker_id=1, topics={"V": FOUR, "W": FOUR}), now_ms=0)
    assert answer == ("h:1", "h:9")
    assert table.route("V") is None
    route = table.route("T")
    assert route is not None
    assert route.brokers[0].addresses == {0: "h:1", 1: "h:2"}
    table.unregister("C", "a", "h:1", 0)
    assert table.route("T") is not None


def test_an_address_moves_to_another_id(table):
    table.register(registration("a", address="h:1", broker_id=1), now_ms=0)
    table.register(registration("a", address="h:1", broker_id=0, counter=2), now_ms=0)
    data = table.broker("a")
    assert data is not None
    assert data.addresses == {0: "h:1"}


def test_an_older_state_does_not_push_out_a_newer_one(table):
    new = Registration(cluster="C", name="a", address="h:1", version=DataVersion(state_version=5), topics={"T": FOUR})
    table.register(registration("a", address="h:1"), now_ms=0)
    table.register(new, now_ms=0)
    table.register(registration("a", address="h:2"), now_ms=0)
    data = table.broker("a")
    assert data is not None
    assert data.addresses == {0: "h:1"}


def test_an_operator_takes_and_gives_the_write_permission(table):
    table.register(registration(), now_ms=0)
    assert table.set_write_perm("broker-a", writable=False) == 2
    route = table.route("T")
    assert route is not None
    assert route.queues["broker-a"].perm == 4
    assert table.set_write_perm("broker-a", writable=True) == 2
    route = table.route("T")
    assert route is not None
    assert route.queues["broker-a"].perm == 6
    assert table.set_write_perm("nobody", writable=False) == 0


def test_an_operator_deletes_and_adds_topics(table):
    table.register(registration(), now_ms=0)
    table.delete_topic("T", "other")
    assert table.route("T") is not None
    table.delete_topic("T")
    assert table.route("T") is None
    table.delete_topic("T")
    table.add_topic("V", {"broker-a": FOUR, "nobody": FOUR})
    route = table.route("V")
    assert route is not None
    assert route.queues == {"broker-a": FOUR}
    table.add_topic("W", {"nobody": FOUR})
    assert table.route("W") is None
