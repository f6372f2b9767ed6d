"""One fault after the other, for half an hour: a group of three real brokers under an unmodified client.

    ./dev test -m soak          STRATAMQ_SOAK_MINUTES=30 STRATAMQ_SOAK_SEED=1

Members are killed, stopped, emptied and cut off, one way and both ways, with connections that end and with connections
that just fall silent. After each fault the client has to get through again; at the end the history is checked. Which
faults come, and whom they hit, is the seed's; when they hit is the machine's.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.cpp_world import Client, without_client
from tests.interop.replica_group import ReplicaGroup, wait_for
from tests.interop.tcp_proxy import Proxy

MINUTES = float(os.environ.get("STRATAMQ_SOAK_MINUTES", "30"))
SEED = int(os.environ.get("STRATAMQ_SOAK_SEED", "1"))
THROUGH_S = 300.0
"""The client asks for routes every 30 s; some rounds of that are no hang."""
AFTER_FAULT = 20
TOPIC = "soak"

pytestmark = [pytest.mark.soak, without_client, pytest.mark.timeout(MINUTES * 60 + 1800)]


def number_of(body: str) -> int:
    """The number of a streamed message."""
    return int(body.rpartition("-")[2])


class Soak:
    """The group, its links, and the clients."""

    def __init__(self, home: Path) -> None:
        self.group = ReplicaGroup(home)
        names = self.group.names
        self.links = {(a, b): Proxy(self.group.peers[b]) for a, b in itertools.permutations(names, 2)}
        self.group.dial = {link: proxy.address for link, proxy in self.links.items()}
        self.home = home
        self.producer: Client | None = None
        self.consumer: Client | None = None

    def start_clients(self) -> None:
        self.group.leader()
        self.producer = Client(self.home, "stream", namesrv=self.group.namesrv, topic=TOPIC, pause=0.01)
        self.get_through()
        self.consumer = Client(
            self.home, "consume", namesrv=self.group.namesrv, topic=TOPIC, group="readers", orderly=True
        )

    def close(self) -> None:
        for made in (self.producer, self.consumer):
            if made is not None:
                made.kill()
        for proxy in self.links.values():
            proxy.close()

    def acked(self) -> list[str]:
        return [line["acked"] for line in self.producer.lines if line.get("status") == 0]

    def get_through(self) -> None:
        """Wait until more messages are acknowledged."""
        wanted = len(self.acked()) + AFTER_FAULT
        self.producer.wait_until(lambda: len(self.acked()) >= wanted, "acknowledged messages", seconds=THROUGH_S)

    def whole(self) -> None:
        """Wait until all members follow one leader and know the same voters."""

        def is_whole() -> bool:
            found = [self.group.status(name) for name in self.group.names]
            leaders = {status.get("leader") for status in found}
            return len(leaders) == 1 and "" not in leaders and None not in leaders

        wait_for(is_whole, "one leader for all", THROUGH_S)

    # --- faults: each begins, lets the client get through, and is mended ---

    def kill(self, name: str) -> None:
        self.group.signal(name, signal.SIGKILL)
        self.get_through()
        self.group.start(name)

    def stop(self, name: str) -> None:
        self.group.signal(name, signal.SIGSTOP)
        try:
            self.get_through()
        finally:
            self.group.signal(name, signal.SIGCONT)

    def empty(self, name: str) -> None:
        """Take a member's disk away; it votes again when a majority has taken it in anew."""
        self.group.signal(name, signal.SIGKILL)
        self.group.wipe(name)
        self.get_through()
        self.group.start(name)

        def is_in() -> bool:
            own, status = self.group.status(name).get("incarnation"), self.group.status(self.group.leader())
            known = status.get("incarnations", {}).get(name)
            return bool(own) and known == own and status["members_decided"] and name in status["voters"]

        wait_for(is_in, "the emptied member votes", THROUGH_S)

    def kill_all(self, name: str) -> None:
        for one in self.group.names:
            self.group.signal(one, signal.SIGKILL)
        for one in self.group.names:
            self.group.start(one)
        self.get_through()

    def cut(self, name: str) -> None:
        self._through([proxy for link, proxy in self.links.items() if name in link], Proxy.cut)

    def silence(self, name: str) -> None:
        self._through([proxy for link, proxy in self.links.items() if name in link], Proxy.hold)

    def mute(self, name: str) -> None:
        """Nobody hears it, it hears everybody."""
        self._through([proxy for link, proxy in self.links.items() if link[0] == name], Proxy.hold)

    def deafen(self, name: str) -> None:
        """It hears nobody, everybody hears it."""
        self._through([proxy for link, proxy in self.links.items() if link[1] == name], Proxy.hold)

    def _through(self, proxies: list[Proxy], fault: Callable[[Proxy], None]) -> None:
        for proxy in proxies:
            fault(proxy)
        try:
            self.get_through()
        finally:
            for proxy in proxies:
                proxy.heal()

    @property
    def faults(self) -> list[Callable[[str], None]]:
        return [
            self.kill,
            self.stop,
            self.empty,
            self.kill_all,
            self.cut,
            self.silence,
            self.mute,
            self.deafen,
        ]


@pytest.fixture
def soak(tmp_path: Path) -> Iterator[Soak]:
    made = Soak(tmp_path)
    try:
        with made.group:
            yield made
            made.close()
    finally:
        made.close()


def test_no_fault_loses_or_reorders_what_was_acknowledged(soak: Soak, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(SEED)
    soak.start_clients()
    began, done = time.monotonic(), Counter[str]()
    while time.monotonic() - began < MINUTES * 60:
        leader = soak.group.leader()
        others = sorted(set(soak.group.names) - {leader})
        fault, victim = rng.choice(soak.faults), rng.choice([leader, leader, *others])
        with capsys.disabled():
            sys.stdout.write(f"{time.monotonic() - began:6.0f} s  {fault.__name__} {victim} (leader {leader})\n")
        fault(victim)
        soak.whole()
        soak.get_through()
        done[fault.__name__] += 1
    soak.producer.finish()
    acked = set(soak.acked())
    soak.consumer.wait_until(
        lambda: acked <= {line["body"] for line in soak.consumer.messages}, "all of them", seconds=THROUGH_S
    )
    soak.consumer.finish()
    again = check_history(soak.producer.lines, soak.consumer.messages)
    end = soak.group.wait_equal()
    assert len({soak.group.log_bytes(name, end) for name in soak.group.names}) == 1
    with capsys.disabled():
        sys.stdout.write(f"{sum(done.values())} faults {dict(done)}; {len(acked)} acknowledged, {again} repeated\n")


def check_history(sent: list[dict[str, Any]], history: list[dict[str, Any]]) -> int:
    """Assert what must hold of deliveries; returns how many came more than once."""
    tried = {line.get("acked") or line.get("failed") for line in sent} - {None}
    bodies: dict[tuple[int, int], str] = {}
    queues: dict[int, list[int]] = defaultdict(list)
    for line in history:
        place = line["queue"], line["offset"]
        assert line["body"] in tried, f"{line['body']} was never sent"
        assert bodies.setdefault(place, line["body"]) == line["body"], f"two messages at {place}"
        queues[line["queue"]].append(line["offset"])
    for queue, offsets in queues.items():
        first = list(dict.fromkeys(offsets))
        assert first == sorted(first), f"queue {queue} was not delivered in order"
        numbers = [number_of(bodies[queue, offset]) for offset in first]
        assert numbers == sorted(numbers), f"queue {queue} does not hold messages in the order of sending"
    return len(history) - len(bodies)
