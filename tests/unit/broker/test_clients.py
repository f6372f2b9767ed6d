"""Who is connected, and who waits."""

from __future__ import annotations

from stratamq.broker.clients import CLIENT_TIMEOUT_MS, Client, ConsumerTable, ProducerTable
from stratamq.broker.long_polling import Waiter, WaitingPulls
from stratamq.broker.subscriptions import parse_subscription


def client(connection: str, *, seen_ms: int = 0) -> Client:
    return Client(connection, f"id-{connection}", "JAVA", 475, "127.0.0.1:1", seen_ms)


def join(table: ConsumerTable, connection: str, group: str = "g", *, seen_ms: int = 0, subscriptions=None):
    return table.register(
        group,
        client(connection, seen_ms=seen_ms),
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from="CONSUME_FROM_LAST_OFFSET",
        subscriptions=subscriptions,
    )


def test_members_join_and_leave():
    table = ConsumerTable()
    assert join(table, "a").is_new_member
    assert not join(table, "a").is_new_member
    assert join(table, "b").is_new_member
    group = table.find("g")
    assert group is not None
    assert group.client_ids() == ["id-a", "id-b"]
    assert not table.unregister("g", "a", "another id")
    assert table.unregister("g", "a", "id-a")
    assert not table.unregister("g", "a", "id-a")
    assert group.client_ids() == ["id-b"]
    assert table.unregister("g", "b", "")
    assert table.find("g") is None


def test_a_closed_connection_leaves_all_its_groups():
    table = ConsumerTable()
    join(table, "a", "g")
    join(table, "a", "h")
    join(table, "b", "h")
    assert table.drop_connection("a") == ["g", "h"]
    assert table.drop_connection("a") == []
    assert [group.name for group in table.groups()] == ["h"]


def test_silent_members_are_dropped():
    table = ConsumerTable()
    join(table, "a", seen_ms=0)
    join(table, "b", seen_ms=60_000)
    assert table.expire(CLIENT_TIMEOUT_MS) == []
    assert [(name, gone.client_id) for name, gone in table.expire(CLIENT_TIMEOUT_MS + 1)] == [("g", "id-a")]
    join(table, "b", seen_ms=200_000)
    assert table.expire(200_001) == []


def test_the_newest_subscription_counts():
    table = ConsumerTable()
    old, new = parse_subscription("T", "TagA", "TAG", 5), parse_subscription("T", "TagB", "TAG", 6)
    assert join(table, "a", subscriptions=[old]).is_new_subscription
    assert not join(table, "a", subscriptions=[new]).is_new_subscription
    assert not join(table, "b", subscriptions=[old]).is_new_subscription
    group = table.find("g")
    assert group is not None
    assert group.subscriptions["T"] == new
    assert join(table, "a", subscriptions=[parse_subscription("U", "*")]).is_new_subscription
    assert set(group.subscriptions) == {"U"}
    assert not join(table, "a", subscriptions=None).is_new_subscription
    assert set(group.subscriptions) == {"U"}
    assert table.groups_of_topic("U") == ["g"]


def test_producers():
    table = ProducerTable()
    table.register("p", client("a"))
    table.register("p", client("b", seen_ms=50_000))
    table.register("q", client("a"))
    assert len(table.members("p")) == 2
    table.expire(CLIENT_TIMEOUT_MS + 1)
    assert [one.client_id for one in table.members("p")] == ["id-b"]
    assert table.groups().keys() == {"p"}
    table.drop_connection("b")
    assert table.groups() == {}


# --- waiting pulls ---


def waiter(connection: str = "c", *, queue_id: int = 0, tags=None, deadline_ms: int = 1000, offset: int = 5) -> Waiter:
    codes = None if tags is None else frozenset(tags)
    return Waiter(connection, "T", queue_id, offset, codes, deadline_ms, object())


def test_a_message_wakes_who_waits_for_its_tags():
    waiting = WaitingPulls(waiters_max=10)
    every, tagged, elsewhere = waiter(), waiter(tags={97}), waiter(queue_id=1)
    for one in (every, tagged, elsewhere):
        waiting.park(one)
    assert waiting.wake("T", 0, [98]) == [every]
    assert waiting.wake("T", 0, [98]) == []
    assert waiting.wake("T", 0, [98, 97]) == [tagged]
    assert waiting.wake("X", 0, [1]) == []
    assert len(waiting) == 1
    assert waiting.wake("T", 1, []) == [elsewhere]


def test_time_ends_the_waiting_in_order():
    waiting = WaitingPulls(waiters_max=10)
    late, early = waiter(deadline_ms=2000), waiter(deadline_ms=1000)
    waiting.park(late)
    waiting.park(early)
    assert waiting.next_deadline_ms() == 1000
    assert waiting.expire(999) == []
    assert waiting.expire(1500) == [early]
    assert waiting.expire(5000) == [late]
    assert waiting.next_deadline_ms() is None
    assert len(waiting) == 0


def test_a_gone_connection_is_forgotten():
    waiting = WaitingPulls(waiters_max=10)
    waiting.park(waiter("a"))
    waiting.park(waiter("b"))
    waiting.drop_connection("a")
    waiting.drop_connection("nobody")
    assert [one.connection for one in waiting.wake("T", 0, [])] == ["b"]
    assert waiting.expire(10_000) == []


def test_who_was_not_woken_is_found():
    waiting = WaitingPulls(waiters_max=10)
    behind, current, tagged = waiter(offset=5), waiter(offset=6), waiter(offset=5, tags={1})
    for one in (behind, current, tagged):
        waiting.park(one)
    assert waiting.behind({("T", 0): 6}) == [behind]
    assert waiting.queues() == [("T", 0)]


def test_the_number_is_bounded_and_the_heap_does_not_grow():
    waiting = WaitingPulls(waiters_max=2)
    for _ in range(5000):
        waiting.park(waiter(deadline_ms=10**9))
        waiting.park(waiter(queue_id=1, deadline_ms=10**9))
        assert waiting.is_full
        waiting.wake("T", 0, [])
        waiting.wake("T", 1, [])
        assert not waiting.is_full
    assert len(waiting._heap) < 3000
