"""Groups of three real brokers: killed, stopped, cut off and emptied while an unmodified C++ client sends and receives.

What was acknowledged must be there, once the group is whole again on every member in the same bytes.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratamq.files.durable import ConfigFile
from tests.interop.cpp_world import Client, without_client
from tests.interop.replica_group import ReplicaGroup, wait_for
from tests.interop.tcp_proxy import Proxy

pytestmark = [pytest.mark.interop, without_client, pytest.mark.timeout(600)]
FOLLOWS_S = 150.0
"""The client looks for a new leader every 30 s, and may find an old route the first time."""
TOPIC = "replicated"
CLIENTS: list[Client] = []


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ReplicaGroup]:
    """Members with an address each: the client finds the next leader when it asks the name server again."""
    yield from _running(ReplicaGroup(tmp_path))


@pytest.fixture
def one_address(tmp_path: Path) -> Iterator[ReplicaGroup]:
    """As `serve --replicas` makes them: the client finds the next leader where the last one was."""
    yield from _running(ReplicaGroup(tmp_path, shares_port=True))


def _running(group: ReplicaGroup) -> Iterator[ReplicaGroup]:
    with group:
        yield group
        for client in CLIENTS:
            client.kill()
        CLIENTS.clear()


def acked(client: Client) -> list[str]:
    return [line["acked"] for line in client.lines if line.get("status") == 0]


def warm_up(client: Client, count: int) -> None:
    """Wait until so many more messages are acknowledged."""
    before = len(acked(client))
    wanted = before + count
    client.wait_until(lambda: len(acked(client)) >= wanted, f"{count} more acknowledged messages", seconds=FOLLOWS_S)


def finish(group: ReplicaGroup, producer: Client, consumer: Client) -> set[bytes]:
    """End the producer, and wait until everything acknowledged has reached the consumer.

    Returns the different logs that the members hold then: one, when all hold the same bytes.
    """
    producer.finish()
    sent = set(acked(producer))
    assert len(sent) >= 40  # two warm-ups
    everything = lambda: sent <= {line.get("body") for line in consumer.lines}  # noqa: E731
    consumer.wait_until(everything, "all acknowledged messages", seconds=FOLLOWS_S)
    consumer.finish()
    end = group.wait_equal()
    return {group.log_bytes(name, end) for name in group.names}


def client(replicas: ReplicaGroup, home: Path, role: str, /, **options: object) -> Client:
    """A client that is ended with the test."""
    made = Client(home, role, namesrv=replicas.namesrv, topic=TOPIC, **options)
    CLIENTS.append(made)
    return made


def votes(group: ReplicaGroup, name: str, leader: str) -> bool:
    """Whether a member votes as it is now, not as it was before it lost its disk, and a majority knows that."""
    status, own = group.status(leader), group.status(name).get("incarnation")
    known = bool(own) and status.get("incarnations", {}).get(name) == own
    return known and status["members_decided"] and name in status["voters"]


def saved_offsets(group: ReplicaGroup, name: str) -> int:
    """How many messages of the topic a group of consumers is through with, in a member's own table."""
    table: Any = ConfigFile(str(group.directory / name / "config" / "consumerOffset.json")).load() or {}
    return sum(table.get("offsetTable", {}).get(f"{TOPIC}@readers", {}).values())


def start_clients(group: ReplicaGroup, home: Path) -> tuple[str, Client, Client]:
    leader = group.leader()
    producer = client(group, home, "stream", pause=0.005)
    warm_up(producer, 20)
    consumer = client(group, home, "consume", group="readers")
    consumer.wait_until(lambda: any("body" in line for line in consumer.lines), "a first message")
    return leader, producer, consumer


def test_a_killed_leader_is_replaced_and_nothing_acknowledged_is_lost(
    one_address: ReplicaGroup, tmp_path: Path
) -> None:
    group = one_address
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
    assert len(finish(group, producer, consumer)) == 1


def test_a_stopped_leader_serves_no_more_when_it_goes_on(group: ReplicaGroup, tmp_path: Path) -> None:
    leader, producer, consumer = start_clients(group, tmp_path)
    group.signal(leader, signal.SIGSTOP)
    following = group.leader([name for name in group.names if name != leader])
    warm_up(producer, 20)
    group.signal(leader, signal.SIGCONT)
    wait_for(lambda: group.status(leader).get("leader") == following, "the old leader follows")
    assert len(finish(group, producer, consumer)) == 1


def test_a_member_whose_disk_was_emptied_comes_back_as_a_voter(one_address: ReplicaGroup, tmp_path: Path) -> None:
    group = one_address
    leader, producer, consumer = start_clients(group, tmp_path)
    follower = next(name for name in group.names if name != leader)
    group.signal(follower, signal.SIGKILL)
    group.wipe(follower)
    warm_up(producer, 20)
    group.start(follower)
    end = wait_for(lambda: group.status(leader).get("log_end"), "the leader's end")
    wait_for(lambda: group.status(follower).get("decided", 0) >= end, "the emptied member has the log")
    wait_for(lambda: votes(group, follower, leader), "it votes")
    group.signal(leader, signal.SIGKILL)
    warm_up(producer, 20)
    group.start(leader)
    assert len(finish(group, producer, consumer)) == 1


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
                wait_for(lambda: group.status(leader).get("serves") is False, "the old leader gives up")  # noqa: B023
                warm_up(producer, 20)
                for proxy in around:
                    proxy.heal()
                wait_for(lambda: group.status(leader).get("leader") == following, "the old leader follows")  # noqa: B023
                leader = following
            assert len(finish(group, producer, consumer)) == 1
    finally:
        for made in CLIENTS:
            made.kill()
        CLIENTS.clear()
        for proxy in links.values():
            proxy.close()


def test_leadership_is_handed_over_and_back(group: ReplicaGroup, tmp_path: Path) -> None:
    leader, producer, consumer = start_clients(group, tmp_path)
    target = next(name for name in group.names if name != leader)

    def has_led() -> bool:
        status = group.status(target)
        if status and not status["serves"]:
            group.ask(group.leader(), do="transfer", node=target)
        return bool(status.get("serves"))

    wait_for(has_led, "the new leader")
    warm_up(producer, 20)
    group.signal(target, signal.SIGTERM)
    warm_up(producer, 20)
    group.start(target)
    assert len(finish(group, producer, consumer)) == 1


def test_a_consumer_goes_on_where_it_was(group: ReplicaGroup, tmp_path: Path) -> None:
    leader, producer, consumer = start_clients(group, tmp_path)
    producer.finish()
    sent = set(acked(producer))
    consumer.wait_until(
        lambda: sent <= {line.get("body") for line in consumer.lines}, "all messages", seconds=FOLLOWS_S
    )
    consumer.finish()  # it has told the broker how far it is; soon that is in the log, and then in the leader's file
    wait_for(lambda: saved_offsets(group, leader) >= len(sent), "the offsets in the log")
    end = wait_for(lambda: group.status(leader).get("log_end"), "the leader's end")
    wait_for(lambda: group.status(leader).get("decided", 0) >= end, "the offsets decided")
    group.signal(leader, signal.SIGKILL)
    group.leader([name for name in group.names if name != leader])
    again = client(group, tmp_path, "consume", group="readers", instance="again")
    more = client(group, tmp_path, "stream", pause=0.02, prefix="later")
    warm_up(more, 10)
    more.finish()
    wanted = set(acked(more))
    again.wait_until(
        lambda: wanted <= {line.get("body") for line in again.lines}, "the later messages", seconds=FOLLOWS_S
    )
    repeated = sent & {line.get("body") for line in again.lines}
    again.finish()
    assert not repeated, f"{len(repeated)} of {len(sent)} messages came again"


def test_a_node_is_added_and_another_removed(group: ReplicaGroup, tmp_path: Path) -> None:
    leader, producer, consumer = start_clients(group, tmp_path)
    group.join("n4")
    assert group.ask(leader, do="add", node="n4", address=group.peers["n4"]) == {"done": True}
    wait_for(lambda: votes(group, "n4", leader), "the new node votes")
    gone = next(name for name in group.names if name not in (leader, "n4"))
    wait_for(lambda: group.ask(leader, do="remove", node=gone) == {"done": True}, "a node is removed")
    wait_for(lambda: group.status(leader).get("members_decided"), "the others know of it")
    group.signal(gone, signal.SIGTERM)
    group.names.remove(gone)
    group.signal(leader, signal.SIGKILL)
    warm_up(producer, 20)
    group.start(leader)
    assert len(finish(group, producer, consumer)) == 1
    wait_for(lambda: group.status(group.leader()).get("voters") == sorted(group.names), "the voters")
