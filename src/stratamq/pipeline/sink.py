"""`df.write.format("stratamq")` and `writeStream`: rows to topics over the network, at least once.

Every message carries the property `KEY`: a digest of the option ``sink``, the streaming query and its batch number, the
number of the task, and all of the row; and how many alike came before it in the task. A task or batch that runs again
sends messages with the keys it sent before, as long as it gets the same rows; consumers that keep keys see the repeats.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage

from stratamq.errors import PeerRefused, PeerUnreachable, PipelineError
from stratamq.formats.properties import encode_properties
from stratamq.pipeline.sending import Producer, Target

if TYPE_CHECKING:
    from pyspark.sql import Row
    from pyspark.sql.types import StructType

KEY: Final = "STRATA_WRITE_KEY"
TYPES: Final = {
    "topic": "string", "tags": "string", "keys": "string", "body": "binary",
    "properties": "map<string,string>", "queue_id": "int",
}  # fmt: skip
OPTIONS: Final = ("namesrv", "topic", "sink", "retries")
BATCH_BYTES_MAX: Final = 1 << 20
BATCH_MESSAGES_MAX: Final = 512
RETRIES_DEFAULT: Final = 3
RETRY_SECONDS: Final = 0.5


@dataclass
class Sent(WriterCommitMessage):
    """What one task has sent."""

    messages: int


@dataclass(frozen=True)
class WriteOptions:
    """Checked options of a write."""

    namesrv: str
    topic: str | None
    sink: str
    retries: int


def parse_write_options(given: Mapping[str, str], schema: StructType) -> WriteOptions:
    """Check options and columns of a write. Raises PipelineError."""
    names = {name.lower(): name for name in given}
    unknown = sorted(set(names) - set(OPTIONS) - {"checkpointlocation"})  # which Spark hands over with ours
    if unknown:
        raise PipelineError(f"writing has no option {', '.join(unknown)}; it knows {', '.join(OPTIONS)}")
    options = {name: given[names[name]] for name in names}
    if not options.get("namesrv"):
        raise PipelineError("writing needs the option namesrv: HOST:PORT of a name server")
    for field in schema:
        if TYPES.get(field.name) != field.dataType.simpleString():
            wanted = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
            raise PipelineError(f"cannot write column {field.name} {field.dataType.simpleString()}; there are {wanted}")
    if "body" not in schema.names or ("topic" not in schema.names and not options.get("topic")):
        raise PipelineError("writing needs the column body, and the column or the option topic")
    retries = options.get("retries", str(RETRIES_DEFAULT))
    if not retries.isdecimal() or int(retries) > 100:
        raise PipelineError(f"the option retries is {retries!r}; it has to be a number from 0 to 100")
    return WriteOptions(options["namesrv"], options.get("topic"), options.get("sink", "spark"), int(retries))


class Sink:
    """Sends rows: ``write`` runs in a Python worker once a task, and again when the task is run again."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, rows: Iterator[Row]) -> Sent:
        """Send the rows of a task and wait until all are acknowledged.

        Raises:
            PipelineError: A row cannot be sent.
            PeerUnreachable, PeerRefused: After all retries; what was sent before stays sent.
        """
        seen: Counter[str] = Counter()
        task = task_name(self.options.sink)
        queues: dict[str, list[Target]] = {}
        waiting: dict[tuple[str, Target], list[tuple[int, bytes, str]]] = {}
        held = sent = 0
        with Producer(self.options.namesrv) as producer:
            for row in rows:
                values = row.asDict()
                topic = values.get("topic") or self.options.topic
                if not topic or values.get("body") is None:
                    raise PipelineError("a row has no topic or no body")
                if topic not in queues:
                    queues[topic] = producer.queues(topic)
                digest, properties = message_properties(values, str(topic), task, seen)
                target = choose_queue(queues[topic], values.get("queue_id"), digest, str(topic))
                body = bytes(values["body"])
                if held and held + len(body) + len(properties) > BATCH_BYTES_MAX:
                    self._flush(producer, waiting)
                    held = 0
                batch = waiting.setdefault((topic, target), [])
                batch.append((0, body, properties))
                held += len(body) + len(properties)
                sent += 1
                if len(batch) >= BATCH_MESSAGES_MAX:
                    self._flush(producer, waiting)
                    held = 0
            self._flush(producer, waiting)
        return Sent(sent)

    def _flush(self, producer: Producer, waiting: dict[tuple[str, Target], list[tuple[int, bytes, str]]]) -> None:
        for (topic, target), messages in waiting.items():
            for left in range(self.options.retries, -1, -1):
                try:
                    producer.send(topic, target, messages)
                    break
                except (PeerUnreachable, PeerRefused):
                    if not left:
                        raise
                    time.sleep(RETRY_SECONDS)
        waiting.clear()


class BatchSink(Sink, DataSourceWriter):
    """`df.write`."""


class StreamSink(Sink, DataSourceStreamWriter):
    """`df.writeStream`; messages are visible before Spark commits a batch, and a batch may be sent again."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: what was sent is acknowledged."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing can be taken back; the batch is sent again, with the same keys."""


def task_name(sink: str) -> str:
    """What names this task's work, and names it alike when it is run again."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return sink
    query = context.getLocalProperty("sql.streaming.queryId") or ""
    batch = context.getLocalProperty("streaming.sql.batchId") or ""
    return f"{sink}\x01{query}\x01{batch}\x01{context.partitionId()}"


def message_properties(values: Mapping[str, Any], topic: str, task: str, seen: Counter[str]) -> tuple[int, str]:
    """A number to choose a queue by, and the properties with the key. Raises PipelineError for control characters."""
    properties = {str(name): str(value) for name, value in (values.get("properties") or {}).items()}
    for name, column in (("TAGS", "tags"), ("KEYS", "keys")):
        if values.get(column):
            properties[name] = str(values[column])
    if any(mark in text for pair in properties.items() for text in pair for mark in "\x01\x02"):
        raise PipelineError("a property holds the control character 1 or 2, which separate properties")
    queue = values.get("queue_id")
    head = "\x02".join((task, topic, "" if queue is None else str(queue), repr(sorted(properties.items()))))
    digest = hashlib.blake2b(head.encode() + b"\x02" + bytes(values["body"]), digest_size=12).hexdigest()
    seen[digest] += 1
    properties[KEY] = f"{digest}-{seen[digest]}"
    return int(digest[:8], 16), encode_properties(properties)


def choose_queue(queues: list[Target], queue_id: int | None, number: int, topic: str) -> Target:
    """The queue of the row, else one by its digest: a repeat goes where it went before. Raises PipelineError."""
    if queue_id is None:
        return queues[number % len(queues)]
    for target in queues:
        if target.queue_id == queue_id:
            return target
    raise PipelineError(f"topic {topic} has no queue {queue_id} that can be written")
