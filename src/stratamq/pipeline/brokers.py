"""The places of one read: a store, a tier, one broker, or all brokers that topics lie on.

Queue numbers are a broker's own, so a broker is planned and read by itself, with options that name it (`parts_of`).
A stream keeps the brokers' names beside its offsets (`Places`); what goes into its checkpoint says `progression`.

Calls block, as those of `cluster` do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

from stratamq.errors import PeerUnreachable, PipelineError
from stratamq.pipeline.cluster import Cluster
from stratamq.pipeline.filters import Bounds
from stratamq.pipeline.options import ReadOptions
from stratamq.pipeline.origins import Origin, open_origin
from stratamq.pipeline.plan import chosen_queues, plan_read
from stratamq.pipeline.progression import BrokerQueue
from stratamq.pipeline.reader import Split

NUMBERED: Mapping[str, str] = {
    "queues": "queues",
    "assigned": "assign",
    "starting_offsets": "startingOffsets with queues",
    "ending_offsets": "endingOffsets with queues",
    "starting_times": "startingOffsetsByTimestamp",
    "ending_times": "endingOffsetsByTimestamp",
}
"""Options that name queues by number, which means nothing where there are several of a number."""

Expected = Collection[tuple[str, str]]
"""Topics and the brokers that they are known to lie on."""


class Part(NamedTuple):
    """One place: the broker's name, empty where there is nothing to tell apart, and the options that read it alone."""

    broker: str
    options: ReadOptions


def parts_of(
    options: ReadOptions, expected: Expected = (), *, trusts_topics: bool = False, cluster: Cluster | None = None
) -> list[Part]:
    """The places that options cover: each broker that has a topic of the read, by name; else the one place there is.

    ``expected`` are waited for, as long as patience lasts. A topic that was named and that no broker has stays with the
    first one, so that planning there says that it is missing. One question to a name server for each topic.

    Raises:
        PeerUnreachable, PeerRefused: No name server answers, or an expected broker did not come.
        PipelineError: There are several brokers, and an option names queues by number.
    """
    if not options.namesrv or options.broker is not None:
        return [Part("", options)]
    made = cluster or Cluster(options, trusts_topics=trusts_topics and options.topics is not None)
    with made:
        wanted = sorted(options.topics) if options.topics is not None else made.topics()
        places = {topic: _brokers_of(made, topic, expected) for topic in wanted if options.wants_topic(topic)}
    names = sorted(set().union(*places.values()))
    if len(names) < 2:
        return [Part(name, dataclasses.replace(options, broker=name)) for name in names] or [Part("", options)]
    for field, option in NUMBERED.items():
        if getattr(options, field) is not None:
            raise PipelineError(
                f"the topics lie on the brokers {', '.join(names)}, each with queues from 0 on, so {option} says "
                "nothing about them together: name one broker with the option broker, and read the others in turn"
            )
    nowhere = {topic for topic, brokers in places.items() if not brokers and options.topics is not None}
    parts = []
    for name in names:
        topics = {topic for topic, brokers in places.items() if name in brokers}
        asked = frozenset(topics | nowhere if name == names[0] else topics)
        parts.append(Part(name, dataclasses.replace(options, broker=name, topics=asked, topic_pattern=None)))
    return parts


def _brokers_of(cluster: Cluster, topic: str, expected: Expected) -> list[str]:
    """The brokers of a topic; waits for those that are expected."""
    lacking = {broker for name, broker in expected if name == topic}

    def ask() -> list[str]:
        found = cluster.brokers(topic)
        absent = sorted(lacking - set(found))
        if absent:
            cluster.forget(topic)
            raise PeerUnreachable(f"broker {absent[0]} of topic {topic}", "the name server knows none at the moment")
        return found

    return cluster.patiently(topic, ask)


def plan_parts(options: ReadOptions, bounds: Bounds) -> list[tuple[str, list[Split]]]:
    """What is read of each place, by broker. What `parts_of` and `plan.plan_read` raise."""
    return [(part.broker, plan_read(part.options, bounds)) for part in parts_of(options)]


class Places:
    """All places of a stream, to plan its batches. To be closed; keys are `BrokerQueue` throughout."""

    def __init__(self, options: ReadOptions, expected: Expected = (), *, trusts_topics: bool = False) -> None:
        """What `parts_of` and `open_origin` raise."""
        self.parts = {part.broker: part.options for part in parts_of(options, expected, trusts_topics=trusts_topics)}
        self._origins: dict[str, Origin] = {}
        try:
            for broker, narrowed in self.parts.items():
                self._origins[broker] = open_origin(narrowed, trusts_topics=trusts_topics)
        except BaseException:
            self.close()
            raise

    @property
    def brokers(self) -> list[str]:
        """Names of the brokers; one empty name where there is nothing to tell apart."""
        return list(self.parts)

    def close(self) -> None:
        """Let go of files and connections."""
        for origin in self._origins.values():
            origin.close()

    def chosen(self, *, lenient: bool) -> Iterator[tuple[BrokerQueue, Origin, ReadOptions]]:
        """Every queue that the options ask for. ``lenient``: what they name may be absent. Raises PipelineError."""
        for broker, options in self.parts.items():
            origin, asked = self._origins[broker], options
            if lenient:
                asked = dataclasses.replace(
                    options, fail_on_data_loss=False, starting_offsets=None, ending_offsets=None
                )
            for key in chosen_queues(origin.keys(), asked):
                yield BrokerQueue(*key, broker), origin, options

    def ends(self) -> tuple[dict[BrokerQueue, int], dict[BrokerQueue, int]]:
        """Earliest and next offset of each chosen queue. Topics may be absent by now: the check of losses says so."""
        ranges = {key: origin.queue(key.topic, key.queue_id) for key, origin, _ in self.chosen(lenient=True)}
        return (
            {key: one.min_offset for key, one in ranges.items()},
            {key: one.max_offset for key, one in ranges.items()},
        )

    def origin(self, broker: str) -> Origin:
        """The place of one broker."""
        return self._origins[broker]


def open_places(options: ReadOptions, expected: Expected = (), *, trusts_topics: bool = False) -> closing[Places]:
    """`Places` for a ``with``."""
    return closing(Places(options, expected, trusts_topics=trusts_topics))
