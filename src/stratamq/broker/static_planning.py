"""Who gets which queues of a static topic when an operator makes it or gives it more. Pure.

Source: apache/rocketmq remoting/.../TopicQueueMappingUtils.java, createTopicConfigMapping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from stratamq.broker.static_topics import MappingItem, TopicMapping
from stratamq.errors import InvalidArgument

EPOCH_STEP: Final = 1_000
"""How much higher an epoch is at the least than the one before; RocketMQ's."""


class Share(NamedTuple):
    """What one broker has of a static topic: its physical queues, and its mapping."""

    queues: int
    mapping: TopicMapping


def plan_queues(
    topic: str, total: int, targets: Sequence[str], others: Sequence[str], known: Mapping[str, Share], *, now_ms: int
) -> dict[str, Share]:
    """What every broker has to be told so that a topic gets ``total`` logical queues; known ones stay where they are.

    Args:
        topic: The topic.
        total: How many queues there shall be; more than there are.
        targets: Names of the brokers that new queues may lie with. Each goes to one that leads the fewest.
        others: Brokers of the same clusters, which are told that the topic is none of theirs to make.
        known: By broker name what there is.
        now_ms: The wall clock.

    Raises InvalidArgument when brokers contradict each other, or there would be no more queues than now.
    """
    mappings = [share.mapping for share in known.values()]
    if len({(one.epoch, one.total_queues, one.scope) for one in mappings}) > 1:
        raise InvalidArgument(
            f"the brokers of topic {topic} hold mappings of different epochs; an update was cut short"
        )
    before = mappings[0].total_queues if mappings else 0
    led = [number for one in mappings for number in one.led()]
    if sorted(led) != list(range(before)):
        raise InvalidArgument(f"topic {topic} has {before} queues, its brokers lead {sorted(led)}")
    if total <= before:
        raise InvalidArgument(f"topic {topic} has {before} queues; a static topic can only get more, not {total}")
    shares = {name: known.get(name) or _nothing(topic, name) for name in (*known, *targets, *others)}
    for number in range(before, total):
        name = min(targets, key=lambda target: (len(shares[target].mapping.led()), target))
        shares[name] = _with_queue(shares[name], number)
    epoch = max([now_ms, *(one.epoch + EPOCH_STEP for one in mappings)])
    return {
        name: share._replace(mapping=msgspec.structs.replace(share.mapping, total_queues=total, epoch=epoch))
        for name, share in shares.items()
    }


def _nothing(topic: str, broker_name: str) -> Share:
    return Share(0, TopicMapping(topic=topic, bname=broker_name))


def _with_queue(share: Share, number: int) -> Share:
    """The share with one more logical queue, in a physical queue of its own."""
    item = MappingItem(gen=0, queue_id=share.queues, bname=share.mapping.bname)
    hosted = {**share.mapping.hosted_queues, number: (item,)}
    return Share(share.queues + 1, msgspec.structs.replace(share.mapping, hosted_queues=hosted))
