"""Seeded lives of a store on a disk that dies, with ordinary messages, light queues and batches mixed.

As in `test_logstore_crashes`. A light queue has to hold exactly the messages of the log that name it, in the log's
order; a queue of batches every message of every batch.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace

import pytest

from stratamq.formats.properties import decode_properties
from stratamq.logstore.check import check_store
from tests.property.test_logstore_crashes import Lives, _both_ways  # noqa: F401 - a fixture for all tests here
from tests.unit.logstore.stores import FOREVER, message, open_store, read_all, records_of
from tests.unit.logstore.test_batch_queues import batch, unfold

LIGHT = ("%LMQ%x", "%LMQ%y", "%LMQ%z")


class MixedLives(Lives):
    """Topics A and B hold single messages, some of which go into light queues; topic C has queues of batches."""

    def __init__(self, directory, seed):
        super().__init__(directory, seed)
        changes = {
            "light_queues": True,
            "multi_dispatch": True,
            "index_slots": self.config.index_entries // 4,  # a check finds out such a number for sure
            "batch_consume_queue_file_bytes": self.rng.choice([46, 138, 4600]),
        }
        self.config = replace(self.config, **changes)
        (directory / "config").mkdir(parents=True)
        table = {"topicConfigTable": {"C": {"attributes": {"queue.type": "BatchCQ"}}}}
        (directory / "config/topics.json").write_text(json.dumps(table))

    def append(self):
        roll = self.rng.random()
        if roll < 0.4:
            super().append()
            return
        names = ",".join(self.rng.sample(LIGHT, self.rng.randint(1, 3))) if self.rng.random() < 0.6 else ""
        light = {"INNER_MULTI_DISPATCH": names} if names else {}
        queue_id, self.number = self.rng.randint(0, 1), self.number + 1
        first = f"{self.number}"
        inside = [first]
        if roll < 0.6:
            one = message(first, topic=self.rng.choice("ABC"), queue_id=queue_id, KEYS=f"key{first}", **light)
        else:
            inside += [f"{first}.{part}" for part in range(self.rng.choice([0, 1, 4]))]
            one = batch(*inside, topic="C", queue_id=queue_id, KEYS=f"key{first}", **light)
        (place,) = self.store.append([one])
        for number, name in enumerate(inside):
            self.possible[name] = (one.topic, queue_id, place.queue_offset + number)
            self.unsynced[name] = place.physical_offset + place.size

    def check(self):
        found, named, held = {}, {name: [] for name in LIGHT}, {}
        for key in self.store.queues():
            if key.topic in LIGHT:
                held[key.topic] = self.light(key.topic)
                continue
            for record in self.records(key):
                for offset, body in unfold(record):
                    assert body.decode() not in found
                    found[body.decode()] = (record.topic, record.queue_id, offset)
                for name in decode_properties(record.properties).get("INNER_MULTI_DISPATCH", "").split(","):
                    if name:
                        named[name].append(record.physical_offset)
        assert {name: held.get(name, []) for name in LIGHT} == {name: sorted(named[name]) for name in LIGHT}
        assert {name: found.get(name) for name in self.durable} == self.durable
        assert found.keys() <= self.durable.keys() | self.possible.keys()
        for name in self.rng.sample(sorted(found), min(8, len(found))):
            if "." not in name:
                assert len(self.store.query(found[name][0], "key" + name, 5, 0, FOREVER).records) == 1, name
        self.durable, self.possible, self.unsynced = found, {}, {}

    def records(self, key):
        if key.topic != "C":
            return read_all(self.store, *key, batch=32)
        records, offset = [], self.store.min_offset(*key)
        while offset < self.store.max_offset(*key):
            result = self.store.get(*key, offset, 32)
            records += [record for view in result.records for record in records_of(view)]
            assert result.next_offset > offset
            offset = result.next_offset
        return records

    def light(self, topic):
        places, offset = [], self.store.min_offset(topic, 0)
        while offset < self.store.max_offset(topic, 0):
            result = self.store.get(topic, 0, offset, 32)
            places += [record.physical_offset for view in result.records for record in records_of(view)]
            assert result.next_offset == offset + result.message_count
            offset = result.next_offset
        return places

    def delete_by_hand(self):
        for victim in ("index", "consumequeue", "consumequeue/%LMQ%y", "batchconsumequeue", "batchconsumequeue/C/1"):
            if self.rng.random() < 0.1 and os.path.exists(self.directory / victim):
                shutil.rmtree(self.directory / victim)


@pytest.mark.parametrize("seed", range(20))
def test_light_queues_and_batches_survive_what_single_messages_do(tmp_path, seed):
    assert live_several_times(tmp_path, seed) == []


def live_several_times(directory, seed):
    """Live, crash and check against the model several times; returns what a check of the store finds at the end."""
    lives = MixedLives(directory, seed)
    for _ in range(lives.rng.randint(2, 5)):
        lives.live()
    lives.store = open_store(directory, lives.config, clock=lives.clock)
    lives.check()
    lives.store.close()
    return check_store(directory).findings


@pytest.mark.crash
def test_many_more_mixed_lives(tmp_path):
    for seed in range(1000, 1060):
        assert live_several_times(tmp_path / str(seed), seed) == []
        shutil.rmtree(tmp_path / str(seed))
