"""`stratamq store dump`: explain one record, unit or entry byte by byte."""

from __future__ import annotations

from pathlib import Path

import click

from stratamq.cli.output import Item, Kind, Printer, output_options
from stratamq.errors import OffsetOutOfRange
from stratamq.logstore import layout
from stratamq.logstore.batch_files import number_of, open_batches, units_between
from stratamq.logstore.explain import Explained, explain_batch_unit, explain_file, explain_record, explain_unit
from stratamq.logstore.snapshot import StoreSnapshot

HEAD = (Item("kind", "what"), Item("file", "file"), Item("offset", "at byte"))
FIELDS = (
    Item("offset", "at byte", Kind.PLACE),
    Item("length", "bytes", Kind.COUNT),
    Item("hex", "hex"),
    Item("name", "field"),
    Item("value", "value"),
    Item("note", "note"),
)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--offset", type=click.IntRange(0), help="Physical offset of a record.")
@click.option("--topic", help="Topic of a queue; goes with --queue and --offset-in-queue.")
@click.option("--queue", "queue_id", type=click.IntRange(0), help="Queue number.")
@click.option("--offset-in-queue", type=click.IntRange(0), help="Queue offset: explains the unit and its record.")
@click.option("--file", "file", type=click.Path(path_type=Path), help="A file of the store, as path below DIRECTORY.")
@click.option("--at", type=click.IntRange(0), default=0, show_default=True, help="Byte position in --file.")
@output_options
def dump(
    directory: Path,
    offset: int | None,
    topic: str | None,
    queue_id: int | None,
    offset_in_queue: int | None,
    file: Path | None,
    at: int,
    printer: Printer,
    quiet: bool,
) -> None:
    """Explain byte by byte what stands at one place of the store DIRECTORY.

    The place is given in one of three ways: --offset, or --topic with --queue and --offset-in-queue, or --file with
    --at. Records, blank records, consume-queue units, index files and the checkpoint can be explained.
    """
    of_queue = (topic, queue_id, offset_in_queue)
    ways = (offset is not None) + (any(value is not None for value in of_queue)) + (file is not None)
    if ways != 1:
        raise click.UsageError("give one of: --offset; --topic, --queue and --offset-in-queue; --file and --at")
    if file is not None:
        _show(printer, "", explain_file(directory / file, at))
        return
    with StoreSnapshot.open(directory) as snapshot:
        if offset is not None:
            _show(printer, "", _record(snapshot, offset))
            return
        if topic is None or queue_id is None or offset_in_queue is None:
            raise click.UsageError("--topic, --queue and --offset-in-queue go together")
        unit, physical_offset = _unit(snapshot, topic, queue_id, offset_in_queue)
        _show(printer, "unit_", unit)
        if physical_offset is not None:
            _show(printer, "record_", _record(snapshot, physical_offset))


def _record(snapshot: StoreSnapshot, physical_offset: int) -> Explained:
    log, position = snapshot.buffer_of(physical_offset)
    file = snapshot.file_of(physical_offset)
    assert file is not None
    return explain_record(file.path, log.data, position, physical_offset)


def _unit(snapshot: StoreSnapshot, topic: str, queue_id: int, offset: int) -> tuple[Explained, int | None]:
    """The unit, and where its record is when that is in the log."""
    if (snapshot.path / layout.BATCH_CONSUME_QUEUE / topic).is_dir():
        return _batch_unit(snapshot, topic, queue_id, offset)
    there = snapshot.queue(topic, queue_id)
    units = snapshot.raw_units(topic, queue_id, offset, offset + 1)
    if not len(units):
        where = f"topic {topic}, queue {queue_id}"
        raise OffsetOutOfRange(offset, there.min_offset, there.max_offset, where=where)
    with snapshot.queue_files(topic, queue_id) as files:
        path, position = files.place(offset)
    explained = explain_unit(path, Path(path).read_bytes(), position, offset)
    physical_offset = int(units["physical_offset"][0])
    return explained, physical_offset if snapshot.file_of(physical_offset) and units["size"][0] > 0 else None


def _batch_unit(snapshot: StoreSnapshot, topic: str, queue_id: int, offset: int) -> tuple[Explained, int | None]:
    """The unit of the record that holds a message, and where that is."""
    (unit, *_) = units_between(snapshot, topic, queue_id, offset, offset + 1)
    stream = open_batches(snapshot, topic, queue_id)
    path, position = stream.place(number_of(stream, lambda one: one.end_offset <= offset, 0, stream.count))
    return explain_batch_unit(path, Path(path).read_bytes(), position), unit.physical_offset


def _show(printer: Printer, prefix: str, explained: Explained) -> None:
    printer.facts(f"{prefix}place", explained.kind, list(zip(HEAD, explained[:3], strict=True))[1:])
    printer.table(f"{prefix}fields", "", FIELDS, explained.fields)
