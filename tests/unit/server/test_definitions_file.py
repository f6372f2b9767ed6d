"""The journal of definitions: what was declared is there again after a stop, a kill and a torn write."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from stratamq.broker.amqp.broker import AmqpBroker
from stratamq.broker.amqp.definition_rows import apply_changes
from stratamq.broker.amqp.definitions import definitions_of, load_definitions
from stratamq.broker.amqp.exchanges import Binding
from stratamq.broker.amqp.vhost import VirtualHost
from stratamq.errors import CorruptionError, InvalidArgument
from stratamq.formats.queue_frame import FileHeader, scan_frames
from stratamq.protocols.amqp.values import Table, encode_table
from stratamq.server.definitions_file import DEFINITIONS_FILE, GENERATION, JOURNAL_FILE, DefinitionsFile
from stratamq.testing.filesystem import FaultyFileSystem, SimulatedCrash
from stratamq.units import KiB
from tests.unit.broker.amqp.clients import new_broker


def queue(vhost: VirtualHost, name: str, **arguments) -> None:
    vhost.make_queue(name, durable=True, auto_delete=False, owner=None, arguments=arguments)


def binding(name: str, exchange: str, key: str, arguments: Table | None = None) -> Binding:
    table = arguments or {}
    return Binding(exchange, name, "queue", key, encode_table(table), table)


def change_something(broker: AmqpBroker, rng: random.Random) -> None:
    """One declare, bind, unbind or delete, by chance of what is there already."""
    vhost = broker.vhosts["/"]
    name, exchange, key = f"q{rng.randrange(6)}", f"e{rng.randrange(3)}", f"k{rng.randrange(3)}"
    match rng.randrange(6):
        case 0 | 1 if name not in vhost.queues:
            queue(vhost, name, **({"x-max-length": 5} if rng.random() < 0.5 else {}))
        case 2 if name in vhost.queues:
            vhost.delete_queue(vhost.queues[name])
        case 3 if exchange not in vhost.exchanges:
            vhost.declare_exchange(
                exchange,
                "topic",
                durable=rng.random() < 0.8,
                auto_delete=rng.random() < 0.3,
                internal=False,
                arguments={},
            )
        case 4 if name in vhost.queues and exchange in vhost.exchanges:
            table = {"n": rng.randrange(2)} if rng.random() < 0.5 else None
            one = binding(name, exchange, key, table)
            vhost.unbind(one) if rng.random() < 0.4 else vhost.bind(one)
        case 5 if rng.random() < 0.3:
            vhost.delete_exchange(exchange)


def save(file: DefinitionsFile, broker: AmqpBroker) -> None:
    """What the service does at the end of a turn."""
    if broker.is_definitions_dirty:
        if broker.must_rewrite_definitions or not file.append(broker.definition_changes):
            file.store(definitions_of(broker))
        broker.definitions_saved()


def shape(value: dict) -> dict:
    """Definitions without the order of their rows."""
    return {
        key: sorted(json.dumps(row, sort_keys=True) for row in rows) if isinstance(rows, list) else rows
        for key, rows in value.items()
    }


def loaded(directory: Path, filesystem: FaultyFileSystem | None = None) -> dict:
    """What a new start finds; nothing is written."""
    found = DefinitionsFile(directory, filesystem).load()
    assert found is not None
    broker = AmqpBroker()
    load_definitions(broker, found)
    return shape(definitions_of(broker))


@pytest.mark.parametrize("seed", range(12))
def test_json_and_journal_together_are_what_the_broker_has(tmp_path, seed):
    rng = random.Random(seed)
    broker = new_broker()
    file = DefinitionsFile(tmp_path, journal_bytes_max=4 * KiB)
    assert file.load() is None
    for _ in range(60):
        for _ in range(rng.randrange(4)):
            change_something(broker, rng)
        save(file, broker)
        assert loaded(tmp_path) == shape(definitions_of(broker))
    file.close(definitions_of(broker))
    assert not (tmp_path / JOURNAL_FILE).exists()
    assert loaded(tmp_path) == shape(definitions_of(broker))


@pytest.mark.parametrize("seed", range(25))
def test_what_was_saved_survives_a_loss_of_everything_unsynced(tmp_path, seed):
    rng = random.Random(seed)
    disk = FaultyFileSystem()
    broker = new_broker()
    file = DefinitionsFile(tmp_path, disk, journal_bytes_max=KiB)
    file.store(definitions_of(broker))
    broker.definitions_saved()
    disk.crash_at(rng.randrange(1, 120))
    saved = [shape(definitions_of(broker))]

    def change_on() -> None:
        while True:
            change_something(broker, rng)
            save(file, broker)
            saved.append(shape(definitions_of(broker)))

    with pytest.raises(SimulatedCrash):
        change_on()
    after = shape(definitions_of(broker))
    disk.lose_unsynced(rng)
    assert loaded(tmp_path, FaultyFileSystem()) in (saved[-1], after)


def journal_of(tmp_path: Path, queues: int) -> tuple[DefinitionsFile, list[int]]:
    """A file with so many journalled queues, and the journal's length after each."""
    broker = new_broker()
    file = DefinitionsFile(tmp_path)
    file.store(definitions_of(broker))
    broker.definitions_saved()
    ends = []
    for number in range(queues):
        queue(broker.vhosts["/"], f"q{number}")
        save(file, broker)
        ends.append((tmp_path / JOURNAL_FILE).stat().st_size)
    return file, ends


def names(tmp_path: Path) -> list[str]:
    found = DefinitionsFile(tmp_path).load()
    assert found is not None
    return [row["name"] for row in found["queues"]]


def test_a_torn_end_is_cut_off_at_any_byte(tmp_path):
    _, ends = journal_of(tmp_path, 3)
    whole = (tmp_path / JOURNAL_FILE).read_bytes()
    frames = scan_frames(whole, FileHeader(int.from_bytes(whole[8:12], "little"), 0, 1)).frames
    assert [frame.end + -frame.end % 8 for frame in frames] == ends
    for length in range(len(whole)):
        (tmp_path / JOURNAL_FILE).write_bytes(whole[:length])
        assert names(tmp_path) == [f"q{number}" for number, frame in enumerate(frames) if frame.end <= length]


def test_damage_before_a_good_frame_is_corruption(tmp_path):
    _, ends = journal_of(tmp_path, 3)
    path = tmp_path / JOURNAL_FILE
    whole = bytearray(path.read_bytes())
    whole[ends[0] + 40] ^= 1
    path.write_bytes(whole)
    with pytest.raises(CorruptionError, match=r"definitions\.journal"):
        DefinitionsFile(tmp_path).load()
    path.write_bytes(b"rubbish" * 100)
    with pytest.raises(CorruptionError, match=r"definitions\.journal"):
        DefinitionsFile(tmp_path).load()


def test_a_journal_older_than_the_json_is_left_alone(tmp_path):
    file, _ = journal_of(tmp_path, 2)
    file.store({"queues": [], "vhosts": [{"name": "/"}]})
    assert (tmp_path / JOURNAL_FILE).exists()
    assert names(tmp_path) == []


def test_files_from_before_there_was_a_journal_are_read(tmp_path):
    broker = new_broker()
    queue(broker.vhosts["/"], "old")
    (tmp_path / DEFINITIONS_FILE).write_text(json.dumps(definitions_of(broker)))
    file = DefinitionsFile(tmp_path)
    value = file.load()
    assert value == definitions_of(broker)
    broker.definitions_saved()
    queue(broker.vhosts["/"], "new")
    save(file, broker)
    assert names(tmp_path) == ["old", "new"]
    assert GENERATION not in json.loads((tmp_path / DEFINITIONS_FILE).read_text())


def test_a_write_that_fails_is_made_good_by_writing_everything(tmp_path):
    disk = FaultyFileSystem()
    broker = new_broker()
    file = DefinitionsFile(tmp_path, disk)
    file.store(definitions_of(broker))
    broker.definitions_saved()
    queue(broker.vhosts["/"], "a")
    save(file, broker)
    disk.fail("sync", path_part=JOURNAL_FILE)
    queue(broker.vhosts["/"], "b")
    with pytest.raises(OSError, match=r"."):
        save(file, broker)
    disk.heal()
    queue(broker.vhosts["/"], "c")
    save(file, broker)
    assert names(tmp_path) == ["a", "b", "c"]


@pytest.mark.parametrize("bad", [[["?", "queues", {"vhost": "/", "name": "q"}]], [["+", "users", {}]], [3], [["+"]]])
def test_what_is_no_change_is_refused(bad):
    with pytest.raises(InvalidArgument):
        apply_changes({}, bad)
