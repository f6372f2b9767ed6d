"""Groups of three real brokers: killed, stopped, cut off and emptied while an unmodified C++ client sends and receives.

What was acknowledged must be there, once the group is whole again on every member in the same bytes.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.cpp_world import Client, without_client
from tests.interop.replica_group import ReplicaGroup, wait_for
from tests.interop.tcp_proxy import Proxy

pytestmark = [pytest.mark.interop, without_client]
TOPIC = "replicated"
CLIENTS: list[Client] = []


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ReplicaGroup]:
    with ReplicaGroup(tmp_path) as made:
        yield made
        for client in CLIENTS:
            client.kill()
        CLIENTS.clear()


def acked(client: Client) -> list[str]:
    return [line["acked"] for line in client.lines if line.get("status") == 0]


def warm_up(client: Client, count: int) -> None:
    """Wait until so many more messages are acknowledged."""
    before = len(acked(client))
    client.wait_until(lambda: len(acked(client)) >= before + count, f"{count} more acknowledged messages")


def finish(group: ReplicaGroup, producer: Client, consumer: Client) -> None:
    """End the producer; everything acknowledged must reach the consumer, and all members hold the same bytes."""
    producer.finish()
    sent = set(acked(producer))
    assert len(sent) >= 40  # two warm-ups
    # The client looks for a new leader every 30 s, and may find an old route the first time.
    everything = lambda: sent <= {line.get("body") for line in consumer.lines}  # noqa: E731
    consumer.wait_until(everything, "all acknowledged messages", seconds=150)
    consumer.finish()
    end = group.wait_equal()
    logs = [group.log_bytes(name, end) for name in group.names]
    assert logs[0] == logs[1] == logs[2]


def client(replicas: ReplicaGroup, home: Path, role: str, /, **options: object) -> Client:
    """A client that is ended with the test."""
    made = Client(home, role, namesrv=replicas.namesrv, topic=TOPIC, **options)
    CLIENTS.append(made)
    return made


def start_clients(group: ReplicaGroup, home: Path) -> tuple[str, Client, Client]:
    leader = group.leader()
    producer = client(group, home, "stream", pause=0.005)
    warm_up(producer, 20)
    consumer = client(group, home, "consume", group="readers")
    consumer.wait_until(lambda: any("body" in line for line in consumer.lines), "a first message")
    return leader, producer, consumer


def test_a_killed_leader_is_replaced_and_nothing_acknowledged_is_lost(group: ReplicaGroup, tmp_path: Path) -> None:
    leader, producer, consumer = start_clients(group, tmp_path)
    for _ in range(2):
        group.signal(leader, signal.SIGKILL)
        others = [name for name in group.names if name != leader]
        following = group.leader(others)
        assert following != leader
        warm_up(producer, 20)
        group.start(leader)
        wait_for(lambda: group.status(leader).get("leader"), "the old leader follows")  # noqa: B023
        leader = following
    finish(group, producer, consumer)


def test_a_stopped_leader_serves_no_more_when_it_goes_on(group: ReplicaGroup, tmp_path: Path) -> None:
    leader, producer, consumer = start_clients(group, tmp_path)
    group.signal(leader, signal.SIGSTOP)
    following = group.leader([name for name in group.names if name != leader])
    warm_up(producer, 20)
    group.signal(leader, signal.SIGCONT)
    wait_for(lambda: group.status(leader).get("leader") == following, "the old leader follows")
    finish(group, producer, consumer)


def test_a_member_whose_disk_was_emptied_comes_back_as_a_voter(group: ReplicaGroup, tmp_path: Path) -> None:
    leader, producer, consumer = start_clients(group, tmp_path)
    follower = next(name for name in group.names if name != leader)
    group.signal(follower, signal.SIGKILL)
    group.wipe(follower)
    warm_up(producer, 20)
    group.start(follower)
    end = group.status(leader)["log_end"]
    wait_for(lambda: group.status(follower).get("decided", 0) >= end, "the emptied member has the log")
    wait_for(lambda: follower in group.status(leader)["voters"] and not group.status(leader)["learners"], "it votes")
    group.signal(leader, signal.SIGKILL)
    warm_up(producer, 20)
    group.start(leader)
    finish(group, producer, consumer)


def test_a_leader_that_is_cut_off_serves_no_more_and_loses_nothing(tmp_path: Path) -> None:
    group = ReplicaGroup(tmp_path)
    links = {(a, b): Proxy(group.peers[b]) for a in group.names for b in group.names if a != b}
    group.dial = {link: proxy.address for link, proxy in links.items()}
    try:
        with group:
            leader, producer, consumer = start_clients(group, tmp_path)
            for _ in range(2):
                around = [proxy for link, proxy in links.items() if leader in link]
                for proxy in around:
                    proxy.cut()
                following = group.leader([name for name in group.names if name != leader])
                wait_for(lambda: not group.status(leader)["serves"], "the old leader gives up")  # noqa: B023
                warm_up(producer, 20)
                for proxy in around:
                    proxy.heal()
                wait_for(lambda: group.status(leader).get("leader") == following, "the old leader follows")  # noqa: B023
                leader = following
            finish(group, producer, consumer)
    finally:
        for made in CLIENTS:
            made.kill()
        CLIENTS.clear()
        for proxy in links.values():
            proxy.close()


def test_leadership_is_handed_over_and_back(group: ReplicaGroup, tmp_path: Path) -> None:
    leader, producer, consumer = start_clients(group, tmp_path)
    target = next(name for name in group.names if name != leader)
    assert group.ask(leader, do="transfer", node=target) == {"done": True}
    wait_for(lambda: group.status(target).get("serves"), "the new leader")
    warm_up(producer, 20)
    group.signal(target, signal.SIGTERM)
    warm_up(producer, 20)
    group.start(target)
    finish(group, producer, consumer)


def test_a_consumer_goes_on_where_it_was(group: ReplicaGroup, tmp_path: Path) -> None:
    leader, producer, consumer = start_clients(group, tmp_path)
    producer.finish()
    sent = set(acked(producer))
    consumer.wait_until(lambda: sent <= {line.get("body") for line in consumer.lines}, "all messages")
    consumer.finish()  # it has told the broker how far it is; a second later that is in the log
    end = group.status(leader)["decided"]
    wait_for(lambda: group.status(leader)["decided"] > end, "the offsets in the log")
    group.signal(leader, signal.SIGKILL)
    group.leader([name for name in group.names if name != leader])
    again = client(group, tmp_path, "consume", group="readers", instance="again")
    more = client(group, tmp_path, "stream", pause=0.02, prefix="later")
    warm_up(more, 10)
    more.finish()
    wanted = set(acked(more))
    again.wait_until(lambda: wanted <= {line.get("body") for line in again.lines}, "the later messages")
    repeated = sent & {line.get("body") for line in again.lines}
    again.finish()
    assert not repeated, f"{len(repeated)} of {len(sent)} messages came again"


def test_a_node_is_added_and_another_removed(group: ReplicaGroup, tmp_path: Path) -> None:
    leader, producer, consumer = start_clients(group, tmp_path)
    group.join("n4")
    assert group.ask(leader, do="add", node="n4", address=group.peers["n4"]) == {"done": True}
    wait_for(lambda: "n4" in group.status(leader)["voters"], "the new node votes")
    gone = next(name for name in group.names if name not in (leader, "n4"))
    wait_for(lambda: group.ask(leader, do="remove", node=gone) == {"done": True}, "a node is removed")
    group.signal(gone, signal.SIGTERM)
    group.names.remove(gone)
    group.signal(leader, signal.SIGKILL)
    warm_up(producer, 20)
    group.start(leader)
    finish(group, producer, consumer)
    assert group.status(group.leader())["voters"] == sorted(group.names)
