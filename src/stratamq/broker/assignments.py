"""Who of a group reads which queue of a topic, when clients leave that to the broker.

The queues are those of all brokers that have the topic: a client takes the answer of one broker for all of them.

Source: apache/rocketmq broker/.../QueryAssignmentProcessor.java, client/.../AllocateMessageQueueAveragely.java,
AllocateMessageQueueAveragelyByCircle.java.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from stratamq.broker.request_modes import POP
from stratamq.broker.topics import TopicConfig

Queue = tuple[str, int]
"""Broker name and queue id; -1 stands for all queues of the broker."""
Told = Callable[[Sequence[Queue] | None], None]
FindQueues = Callable[[str, Told], None]
"""Finds the readable queues of a topic on all brokers, and calls once, now or later, with them; None: no such topic."""
ALL_QUEUES: Final = -1


def evenly(queues: Sequence[Queue], count: int, place: int) -> Sequence[Queue]:
    """The queues of the member at ``place`` among ``count``, as neighbours; the first members have one more."""
    share, more = divmod(len(queues), count)
    begin = place * share + min(place, more)
    return queues[begin : begin + share + (place < more)]


def in_turn(queues: Sequence[Queue], count: int, place: int) -> Sequence[Queue]:
    """The queues of the member at ``place`` among ``count``, dealt out one by one."""
    return queues[place::count]


STRATEGIES: Final[Mapping[str, Callable[[Sequence[Queue], int, int], Sequence[Queue]]]] = {
    "AVG": evenly,
    "AVG_BY_CIRCLE": in_turn,
}
"""By the names that clients give them."""


def assign(
    queues: Sequence[Queue], members: Sequence[str], member: str, *, strategy: str, mode: str, share: int
) -> list[Queue] | None:
    """The queues of one member of a group, none for who is no member; None for a strategy that is not known.

    A group that pops gets whole brokers, unless ``share`` says with how many of the members that follow it a member
    shares its queues, and there are more of them than that. Where there are more members than queues each gets one.
    """
    deal = STRATEGIES.get(strategy)
    if deal is None:
        return None
    ordered, names = sorted(queues), sorted(members)
    if mode == POP and not 0 < share < len(names) - 1:
        return [(broker, ALL_QUEUES) for broker in sorted({broker for broker, _ in ordered})]
    if member not in names:
        return []
    place, count = names.index(member), len(names)
    if mode != POP:
        return list(deal(ordered, count, place))
    if count > len(ordered):
        return [ordered[place % len(ordered)]] if ordered else []
    return sorted(queue for step in range(share + 1) for queue in deal(ordered, count, (place + step) % count))


def queues_here(broker_name: str, find: Callable[[str], TopicConfig | None]) -> FindQueues:
    """For a broker that knows no other: its own queues of a topic."""

    def find_queues(topic: str, told: Told) -> None:
        config = find(topic)
        if config is None or not config.is_readable:
            told(None)
        else:
            told([(broker_name, number) for number in range(config.read_queue_nums)])

    return find_queues
