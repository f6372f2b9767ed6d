"""``stratamq message``: find, show, send and take messages of a running cluster."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from typing import Final

import click

from stratamq.cli.admin.client import AdminClient, Broker
from stratamq.cli.admin.options import FLAG, admin_command, broker_option, cluster_option, topic_option
from stratamq.cli.admin.values import each_record
from stratamq.cli.output import Item, Kind, Printer
from stratamq.cli.store_query import MESSAGE, Time, message_values
from stratamq.errors import InvalidArgument, NothingFound, PeerRefused
from stratamq.formats.message import Record, decode_host
from stratamq.formats.properties import TAGS, UNIQ_KEY, encode_properties, find_property
from stratamq.protocols.remoting.codes import RequestCode

TOOL_GROUP: Final = "TOOLS_CONSUMER"
PULL_BATCH: Final = 32
NOT_FOUND: Final = 22
FOREVER_MS: Final = 2**63 - 1
body_option = click.option(
    "-f", "--bodyFormat", "--body-as", "body", type=click.Choice(["text", "hex", "none", "UTF-8"]), default="text"
)


@click.group()
def message() -> None:
    """Messages of a running cluster: find, show, send, take."""


def _show(records: Iterable[Record], body: str, printer: Printer) -> int:
    count = 0
    for record in records:
        printer.row(MESSAGE, message_values(record, "text" if body == "UTF-8" else body))
        count += 1
    return count


def offset_id_address(message_id: str) -> tuple[str, int]:
    """The broker and the physical offset that an offset message id names. Raises InvalidArgument."""
    try:
        raw = bytes.fromhex(message_id)
        host = decode_host(raw[:-8])
    except ValueError as error:
        raise InvalidArgument(f"{message_id!r} is no offset message id: {error}") from None
    return str(host), int.from_bytes(raw[-8:], "big")


@message.command("by-id")
@click.option("-i", "--msgId", "--id", "message_id", required=True, help="Offset message id, or unique key with -t.")
@click.option("-t", "--topic", help="Topic; needed for a unique key.")
@click.option("-g", "--consumerGroup", "group", help="Give it to a member of this group as well.")
@click.option("-d", "--clientId", "client", help="That member.")
@cluster_option
@body_option
@admin_command
def by_id(
    message_id: str,
    topic: str | None,
    group: str | None,
    client: str | None,
    cluster: str | None,
    body: str,
    admin: AdminClient,
    printer: Printer,
) -> None:
    """One message by its offset id or its unique key; -g and -d let a consumer process it once more."""
    if (group is None) != (client is None):
        raise click.UsageError("-g and -d go together")
    record, address = _record_by_id(admin, message_id, topic)
    _show([record], body, printer)
    if group is not None:
        ext = {"consumerGroup": group, "clientId": client, "msgId": record.message_id, "topic": record.topic}
        answer = admin.ask(address, RequestCode.CONSUME_MESSAGE_DIRECTLY, ext, timeout_s=15).value
        printer.remark(f"{client}: {answer.get('consumeResult')} after {answer.get('spentTimeMills')} ms")


def _record_by_id(admin: AdminClient, message_id: str, topic: str | None) -> tuple[Record, str]:
    if topic is not None:
        for record, broker in _by_key(admin, topic, message_id, 1, 0, FOREVER_MS, unique=True):
            return record, broker.address
    address, physical_offset = offset_id_address(message_id)
    try:
        answer = admin.ask(address, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": physical_offset, "topic": topic})
    except PeerRefused as error:
        raise NothingFound(f"{address} has no message {message_id}: {error.remark}") from error
    return next(each_record(answer.body)), address


def _by_key(
    admin: AdminClient, topic: str, key: str, count: int, begin: int, end: int, *, unique: bool
) -> Iterator[tuple[Record, Broker]]:
    ext: dict[str, object] = {"topic": topic, "key": key, "maxNum": count, "beginTimestamp": begin, "endTimestamp": end}
    if unique:
        ext["_UNIQUE_KEY_QUERY"] = "true"
    for broker in admin.route(topic).brokers:
        answer = admin.call(broker.address, RequestCode.QUERY_MESSAGE, ext)
        if answer.code == NOT_FOUND:
            continue
        if answer.code != 0:
            raise PeerRefused(broker.address, "the query", answer.code, answer.remark)
        for record in each_record(answer.body):
            if not unique or find_property(record.properties, UNIQ_KEY) == key:
                yield record, broker


@message.command("by-key")
@topic_option
@click.option("-k", "--msgKey", "--key", "key", required=True, help="One of the keys.")
@click.option("-b", "--beginTimestamp", "begin", type=Time(), default=0, help="Stored at or after.")
@click.option("-e", "--endTimestamp", "end", type=Time(), default=FOREVER_MS, help="Stored at or before.")
@click.option("-m", "--maxNum", "count", type=click.IntRange(1, 64), default=32, show_default=True)
@cluster_option
@body_option
@admin_command
def by_key(
    topic: str,
    key: str,
    begin: int,
    end: int,
    count: int,
    cluster: str | None,
    body: str,
    admin: AdminClient,
    printer: Printer,
) -> None:
    """Messages with a key."""
    records = (record for record, _ in _by_key(admin, topic, key, count, begin, end, unique=False))
    if not _show(records, body, printer):
        raise NothingFound(f"no message of {topic} has key {key}")


@message.command("by-unique-key")
@topic_option
@click.option("-i", "--msgId", "--id", "key", required=True, help="Unique key: the id that the producer saw.")
@click.option("-a", "--showAll", "show_all", is_flag=True, help="All of them; a resent message has the same one.")
@cluster_option
@body_option
@admin_command
def by_unique_key(
    topic: str, key: str, show_all: bool, cluster: str | None, body: str, admin: AdminClient, printer: Printer
) -> None:
    """The message that a producer was told this id of."""
    found = (record for record, _ in _by_key(admin, topic, key, 32, 0, FOREVER_MS, unique=True))
    if not _show(found if show_all else itertools.islice(found, 1), body, printer):
        raise NothingFound(f"no message of {topic} has unique key {key}")


@message.command("by-offset")
@topic_option
@click.option("-b", "--brokerName", "broker", required=True, help="Broker name.")
@click.option("-i", "--queueId", "queue", type=click.IntRange(0), required=True)
@click.option("-o", "--offset", type=click.IntRange(0), required=True)
@body_option
@admin_command
def by_offset(
    topic: str, broker: str, queue: int, offset: int, body: str, admin: AdminClient, printer: Printer
) -> None:
    """The message at an offset of a queue."""
    address = next((one.address for one in admin.route(topic).brokers if one.name == broker), None)
    if address is None:
        raise InvalidArgument(f"broker {broker} does not hold topic {topic}")
    if not _show(itertools.islice(_read(admin, address, topic, queue, offset, offset + 1), 1), body, printer):
        raise NothingFound(f"{topic} queue {queue} on {broker} has no message at {offset}")


def _read(
    admin: AdminClient, address: str, topic: str, queue: int, start: int, end: int, expression: str = "*"
) -> Iterator[Record]:
    """The messages of a queue from ``start`` to before ``end``, pulled without committing anything."""
    at = start
    while at < end:
        ext = {
            "consumerGroup": TOOL_GROUP,
            "topic": topic,
            "queueId": queue,
            "queueOffset": at,
            "maxMsgNums": min(PULL_BATCH, end - at),
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": expression,
            "subVersion": 0,
            "expressionType": "TAG",
        }
        answer = admin.call(address, RequestCode.PULL_MESSAGE, ext)
        if answer.code not in (0, 19, 20, 21):
            raise PeerRefused(address, "the pull", answer.code, answer.remark)
        if answer.code == 0:
            yield from (record for record in each_record(answer.body) if record.queue_offset < end)
        following = int(answer.ext["nextBeginOffset"])
        if following <= at:
            return
        at = following


def _bounds(admin: AdminClient, address: str, topic: str, queue: int, begin: int | None, end: int | None) -> range:
    where = {"topic": topic, "queueId": queue}

    def offset(code: int, **more: object) -> int:
        return int(admin.ask(address, code, {**where, **more}).ext["offset"])

    low, high = offset(RequestCode.GET_MIN_OFFSET), offset(RequestCode.GET_MAX_OFFSET)
    if begin is not None:
        low = max(low, offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=begin))
    if end is not None:
        high = min(high, offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=end + 1))
    return range(low, max(low, high))


@message.command("print")
@topic_option
@click.option("-s", "--subExpression", "expression", default="*", help="Tags, such as TagA || TagB.")
@click.option("-b", "--beginTimestamp", "begin", type=Time(), help="Stored at or after.")
@click.option("-e", "--endTimestamp", "end", type=Time(), help="Stored at or before.")
@click.option("-d", "--printBody", "with_body", type=FLAG, default=True, help="With bodies.")
@click.option("-c", "--charsetName", "charset", help="Accepted for mqadmin's sake; bodies are UTF-8 or bytes.")
@click.option("-l", "--limit", type=click.IntRange(1), help="Most messages shown.")
@admin_command
def print_topic(
    topic: str,
    expression: str,
    begin: int | None,
    end: int | None,
    with_body: bool,
    charset: str | None,
    limit: int | None,
    admin: AdminClient,
    printer: Printer,
) -> None:
    """The messages of a topic, queue by queue."""

    def records() -> Iterator[Record]:
        for broker, queue in admin.read_queues(topic):
            bounds = _bounds(admin, broker.address, topic, queue, begin, end)
            yield from _read(admin, broker.address, topic, queue, bounds.start, bounds.stop, expression)

    _show(itertools.islice(records(), limit), "text" if with_body else "none", printer)


@message.command("print-queue")
@topic_option
@click.option("-a", "--brokerName", "broker", required=True, help="Broker name.")
@click.option("-i", "--queueId", "queue", type=click.IntRange(0), required=True)
@click.option("-s", "--subExpression", "expression", default="*", help="Tags.")
@click.option("-b", "--beginTimestamp", "begin", type=Time(), help="Stored at or after.")
@click.option("-e", "--endTimestamp", "end", type=Time(), help="Stored at or before.")
@click.option("-p", "--print", "with_messages", type=FLAG, default=True, help="The messages themselves.")
@click.option("-d", "--printBody", "with_body", type=FLAG, default=True, help="With bodies.")
@click.option("-f", "--calculate", type=FLAG, default=False, help="How many messages have which tag.")
@click.option("-c", "--charsetName", "charset", help="Accepted for mqadmin's sake.")
@admin_command
def print_queue(
    topic: str,
    broker: str,
    queue: int,
    expression: str,
    begin: int | None,
    end: int | None,
    with_messages: bool,
    with_body: bool,
    calculate: bool,
    charset: str | None,
    admin: AdminClient,
    printer: Printer,
) -> None:
    """The messages of one queue, or how many have which tag."""
    address = next((one.address for one in admin.route(topic).brokers if one.name == broker), None)
    if address is None:
        raise InvalidArgument(f"broker {broker} does not hold topic {topic}")
    bounds = _bounds(admin, address, topic, queue, begin, end)
    counts: dict[str, int] = {}
    for record in _read(admin, address, topic, queue, bounds.start, bounds.stop, expression):
        tag = find_property(record.properties, TAGS) or ""
        counts[tag] = counts.get(tag, 0) + 1
        if with_messages:
            _show([record], "text" if with_body else "none", printer)
    if calculate:
        rows = sorted(counts.items(), key=lambda pair: -pair[1])
        printer.table("tags", "", [Item("tag", "tag"), Item("messages", "messages", Kind.COUNT)], rows)


SENT: Final = (
    Item("broker", "broker"),
    Item("queue", "queue", Kind.PLACE),
    Item("offset", "offset", Kind.PLACE),
    Item("message_id", "unique key"),
    Item("offset_message_id", "offset id"),
    Item("ms", "ms"),
)


@message.command("send")
@topic_option
@click.option("-p", "--body", required=True, help="Body, as UTF-8.")
@click.option("-k", "--keys", "--key", "keys", help="Keys, separated by spaces.")
@click.option("-c", "--tags", "--tag", "tags", help="Tag.")
@click.option("-b", "--broker", "--brokerName", "broker", help="Broker name; needed with -i.")
@click.option("-i", "--qid", "--queue", "queue", type=click.IntRange(0), help="Queue; any when not given.")
@click.option("-P", "--property", "more", multiple=True, help="NAME=VALUE; may be repeated.")
@click.option("-m", "--msgTraceEnable", "trace", type=FLAG, default=False, help="Accepted for mqadmin's sake.")
@admin_command
def send(
    topic: str,
    body: str,
    keys: str | None,
    tags: str | None,
    broker: str | None,
    queue: int | None,
    more: tuple[str, ...],
    trace: bool,
    admin: AdminClient,
    printer: Printer,
) -> None:
    """Send one message."""
    if queue is not None and broker is None:
        raise click.UsageError("-i goes with -b")
    properties = {"KEYS": keys, "TAGS": tags, "WAIT": "true"}
    for pair in more:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.UsageError(f"-P {pair!r} is not NAME=VALUE")
        properties[name] = value
    text = encode_properties({name: value for name, value in properties.items() if value})
    printer.table("sent", "", SENT, [send_one(admin, topic, body.encode(), text, broker, queue)])


def send_one(
    admin: AdminClient, topic: str, body: bytes, properties: str, broker: str | None, queue: int | None
) -> list[object]:
    """Send one message; returns where it went, its ids and the milliseconds, as the columns of `SENT`."""
    route = admin.find_route(topic) or admin.route("TBW102")
    found = [one for one in route.brokers if broker in (None, one.name)]
    if not found:
        raise InvalidArgument(f"broker {broker} does not hold topic {topic}")
    ext = {
        "a": "TOOLS_PRODUCER",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": -1 if queue is None else queue,
        "f": 0,
        "g": round(time.time() * 1000),
        "h": 0,
        "i": properties,
        "j": 0,
        "k": False,
        "m": False,
    }
    started = time.perf_counter()
    answer = admin.ask(found[0].address, RequestCode.SEND_MESSAGE_V2, ext, body).ext
    took = round((time.perf_counter() - started) * 1000, 2)
    place = [found[0].name, int(answer["queueId"]), int(answer["queueOffset"])]
    return [*place, answer.get("transactionId"), answer.get("msgId"), took]


@message.command("send-status")
@click.option("-b", "--brokerName", "broker", required=True, help="Broker name; its own topic is sent to.")
@click.option("-s", "--messageSize", "size", type=click.IntRange(1), default=128, show_default=True)
@click.option("-c", "--count", type=click.IntRange(1), default=50, show_default=True)
@admin_command
def send_status(broker: str, size: int, count: int, admin: AdminClient, printer: Printer) -> None:
    """Send some messages to a broker's own topic, and say how long each took."""
    rows = [send_one(admin, broker, bytes(size), "", broker, None) for _ in range(count)]
    printer.table("sent", "", SENT, rows)


@message.command("send-times")
@topic_option
@click.option("-a", "--amount", type=click.IntRange(1), default=100, show_default=True)
@click.option("-s", "--size", type=click.IntRange(1), default=128, show_default=True)
@admin_command
def send_times(topic: str, amount: int, size: int, admin: AdminClient, printer: Printer) -> None:
    """Send some messages to a topic, and say how long they took on average."""
    rows = [send_one(admin, topic, bytes(size), "", None, None) for _ in range(amount)]
    printer.table("sent", "", SENT, rows)
    printer.remark(f"{sum(float(str(row[-1])) for row in rows) / amount:.2f} ms on average")


@message.command("take")
@topic_option
@click.option("-b", "--brokerName", "broker", help="Broker name.")
@click.option("-i", "--queueId", "queue", type=click.IntRange(0), help="Queue; with -b.")
@click.option("-o", "--offset", type=click.IntRange(0), help="From this offset on; with -i.")
@click.option("-g", "--consumerGroup", "group", help="Accepted for mqadmin's sake: nothing is committed.")
@click.option("-s", "--beginTimestamp", "begin", type=Time(), help="Stored at or after.")
@click.option("-e", "--endTimestamp", "end", type=Time(), help="Stored at or before.")
@click.option("-c", "--MessageNumber", "count", type=click.IntRange(1), default=128, show_default=True)
@admin_command
def take(
    topic: str,
    broker: str | None,
    queue: int | None,
    offset: int | None,
    group: str | None,
    begin: int | None,
    end: int | None,
    count: int,
    admin: AdminClient,
    printer: Printer,
) -> None:
    """Some messages of a topic, a broker or a queue; nothing is committed."""
    if (queue is not None and broker is None) or (offset is not None and queue is None):
        raise click.UsageError("-i goes with -b, and -o with -i")

    def records() -> Iterator[Record]:
        for one, number in admin.read_queues(topic):
            if broker not in (None, one.name) or queue not in (None, number):
                continue
            bounds = _bounds(admin, one.address, topic, number, begin, end)
            start = bounds.start if offset is None else max(offset, bounds.start)
            yield from _read(admin, one.address, topic, number, start, bounds.stop)

    if not _show(itertools.islice(records(), count), "text", printer):
        raise NothingFound(f"nothing of topic {topic} was found there")


UNITS: Final = (
    Item("offset", "offset", Kind.PLACE),
    Item("physical_offset", "physical offset", Kind.PLACE),
    Item("size", "bytes", Kind.COUNT),
    Item("tags_code", "tags code", Kind.PLACE),
    Item("message", "message"),
)


@message.command("queue-units")
@topic_option
@click.option("-q", "--queue", type=click.IntRange(0), required=True)
@click.option("-i", "--index", type=click.IntRange(0), required=True, help="From this offset on.")
@click.option("-c", "--count", type=click.IntRange(1, 100), default=10, show_default=True)
@broker_option
@click.option("-g", "--consumer", "--consumerGroup", "group", help="Show what its subscription would take.")
@admin_command
def queue_units(
    topic: str,
    queue: int,
    index: int,
    count: int,
    broker: str | None,
    group: str | None,
    admin: AdminClient,
    printer: Printer,
) -> None:
    """Units of a ConsumeQueue as the broker sees them."""
    addresses = admin.targets(broker, None) if broker else [one.address for one in admin.route(topic).brokers][:1]
    ext = {"topic": topic, "queueId": queue, "index": index, "count": count, "consumerGroup": group}
    value = admin.ask(addresses[0], RequestCode.QUERY_CONSUME_QUEUE, ext).value
    rows = [
        [index + number, one.get("physicOffset"), one.get("physicSize"), one.get("tagsCode"), one.get("msg")]
        for number, one in enumerate(value.get("queueData") or ())
    ]
    printer.table("units", "", UNITS, rows)
    printer.remark(f"the queue holds offsets {value.get('minQueueIndex')} to {value.get('maxQueueIndex')}")


@message.command("trace")
@click.option("-i", "--msgId", "--id", "key", required=True, help="Unique key.")
@click.option("-t", "--traceTopic", "topic", default="RMQ_SYS_TRACE_TOPIC", show_default=True)
@click.option("-b", "--beginTimestamp", "begin", type=Time(), default=0, help="Stored at or after.")
@click.option("-e", "--endTimestamp", "end", type=Time(), default=FOREVER_MS, help="Stored at or before.")
@click.option("-c", "--maxNum", "count", type=click.IntRange(1, 64), default=32, show_default=True)
@admin_command
def trace(key: str, topic: str, begin: int, end: int, count: int, admin: AdminClient, printer: Printer) -> None:
    """What clients with tracing on have noted about a message."""
    found = (record for record, _ in _by_key(admin, topic, key, count, begin, end, unique=False))
    if not _show(found, "text", printer):
        raise NothingFound(f"{topic} says nothing about {key}")
