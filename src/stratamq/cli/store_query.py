"""`stratamq store query`: find messages by key, id, time or offset."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from stratamq.cli.output import Item, Kind, Printer, output_options, progress_shown
from stratamq.formats.message import SYS_COMPRESSED, SYS_COMPRESSION_MASK, Record, decode_host
from stratamq.formats.properties import KEYS, TAGS, UNIQ_KEY, decode_properties
from stratamq.logstore import listing, search
from stratamq.logstore.batch_files import batch_range
from stratamq.logstore.search import Found
from stratamq.logstore.snapshot import StoreSnapshot
from stratamq.logstore.types import Progress
from stratamq.logstore.words import describe_sys_flag

MESSAGE = (
    Item("topic", "topic"),
    Item("queue_id", "queue"),
    Item("queue_offset", "queue offset"),
    Item("physical_offset", "physical offset"),
    Item("message_id", "id"),
    Item("offset_message_id", "offset id"),
    Item("tags", "tags"),
    Item("keys", "keys"),
    Item("store_timestamp", "stored", Kind.TIME),
    Item("born_timestamp", "born", Kind.TIME),
    Item("born_host", "born at"),
    Item("reconsume_times", "consumed again"),
    Item("sys_flag", "sys flag"),
    Item("flags", "that is"),
    Item("properties", "properties"),
    Item("body_bytes", "body bytes", Kind.COUNT),
    Item("body", "body"),
)


class Time(click.ParamType):  # type: ignore[type-arg]
    """A point in time: milliseconds since the epoch, or ISO 8601; without a zone it is UTC."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it as milliseconds."""
        if isinstance(value, int):
            return value
        text = str(value)
        if text.isdigit():
            return int(text)
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{text!r} is neither ISO 8601 (2026-11-21T03:34:12Z) nor milliseconds since 1970", param, ctx)
        return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--key", help="One of a message's keys, or its unique key.")
@click.option("--id", "message_id", help="Offset message id, or unique key.")
@click.option("--topic", help="Topic: alone, with --key, or with --queue, --from, --to, --offset.")
@click.option("--queue", "queue_id", type=click.IntRange(0), help="Only this queue of --topic.")
@click.option("--from", "from_ms", type=Time(), help="Stored at or after: ISO 8601 (UTC) or milliseconds.")
@click.option("--to", "until_ms", type=Time(), help="Stored before.")
@click.option("--offset", type=click.IntRange(0), help="From this queue offset of --topic and --queue on.")
@click.option("--limit", type=click.IntRange(1), default=32, show_default=True, help="Most messages shown.")
@click.option(
    "--body", type=click.Choice(["text", "hex", "none"]), default="text", show_default=True, help="How to show bodies."
)
@output_options
def query(
    directory: Path,
    key: str | None,
    message_id: str | None,
    topic: str | None,
    queue_id: int | None,
    from_ms: int | None,
    until_ms: int | None,
    offset: int | None,
    limit: int,
    body: str,
    printer: Printer,
    quiet: bool,
) -> int:
    """Find messages in the store DIRECTORY by --key, --id, or --topic with a range of time or an offset.

    As JSON: one object a line. Ends with 1 when nothing is found.
    """
    if (key is not None) + (message_id is not None) + (topic is not None and key is None) != 1:
        raise click.UsageError("give one of: --key (perhaps with --topic), --id, --topic")
    if topic is None and (queue_id, from_ms, until_ms, offset) != (None,) * 4:
        raise click.UsageError("--queue, --from, --to and --offset go with --topic")
    if key is not None and (queue_id, from_ms, until_ms, offset) != (None,) * 4:
        raise click.UsageError("--key goes with --topic only")
    if offset is not None and queue_id is None:
        raise click.UsageError("--offset goes with --topic and --queue")
    with StoreSnapshot.open(directory) as snapshot, progress_shown(quiet=quiet) as progress:
        found = _search(snapshot, key, message_id, topic, queue_id, from_ms, until_ms, offset, limit, progress)
    for record in found.records:
        printer.row(MESSAGE, message_values(record, body))
    more = "; there are more: raise --limit" if found.has_more else ""
    click.echo(f"{len(found.records)} found {found.way}{more}", err=True)
    return 0 if found.records else 1


def _search(
    snapshot: StoreSnapshot,
    key: str | None,
    message_id: str | None,
    topic: str | None,
    queue_id: int | None,
    from_ms: int | None,
    until_ms: int | None,
    offset: int | None,
    limit: int,
    progress: Progress | None,
) -> Found:
    if key is not None:
        return search.by_key(snapshot, key, topic=topic, limit=limit, progress=progress)
    if message_id is not None:
        return search.by_id(snapshot, message_id, limit=limit, progress=progress)
    assert topic is not None
    if offset is not None and queue_id is not None:
        is_batch = listing.list_batch_queues(str(snapshot.path), [topic])
        end = (batch_range(snapshot, topic, queue_id) if is_batch else snapshot.queue(topic, queue_id)).max_offset
        records = search.at_offsets(snapshot, topic, queue_id, offset, max(offset, min(end, offset + limit)))
        return Found(records, offset + limit < end, "by consume queue")
    return search.by_time(snapshot, topic, queue_id, from_ms=from_ms, until_ms=until_ms, limit=limit)


def message_values(record: Record, body: str) -> list[Any]:
    """A message as the columns of `MESSAGE`; ``body`` is how its body is shown: text, hex or none."""
    found = decode_properties(record.properties)
    return [
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.physical_offset,
        found.get(UNIQ_KEY) or record.message_id,
        record.message_id,
        found.get(TAGS),
        found.get(KEYS),
        record.store_timestamp,
        record.born_timestamp,
        str(decode_host(record.born_host)),
        record.reconsume_times,
        record.sys_flag,
        describe_sys_flag(record.sys_flag),
        found,
        len(record.body),
        _body(record, body),
    ]


def _body(record: Record, how: str) -> str | None:
    """The body as asked for; as text it is decompressed where the standard library can."""
    if how == "none":
        return None
    if how == "hex":
        return record.body.hex(" ")
    if record.sys_flag & SYS_COMPRESSED:
        try:
            return _decompressed(record).decode("utf-8", "replace")
        except (ValueError, OSError, zlib.error, ModuleNotFoundError) as error:
            return f"({len(record.body)} bytes, compressed: {error})"
    return record.body.decode("utf-8", "replace")


def _decompressed(record: Record) -> bytes:
    kind = record.sys_flag & SYS_COMPRESSION_MASK
    from stratamq.formats.arrow import decompress_body

    return decompress_body(record.body, kind)
