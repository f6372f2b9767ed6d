"""A store of 200,000 mixed messages that Apache RocketMQ wrote, read by the store tools and by the Spark source.

What is expected comes from two sides: RocketMQ's own decoder over the commit log, and the answers its client got.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.interop.rocketmq_java.runner import JavaClient, RocketServer, Row, dump_commit_log
from tests.interop.rocketmq_java.targets import need_java, wait_until
from tests.interop.stores import QUEUES, TAGS, stored

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

SINGLES = 60_000
BATCHES = 1_500
BATCH = 100
COMPRESSED = 300
DELAYED = 40
TRANSACTIONS = 60
ROUND = 10_000
FILE_BYTES = 4 << 20

TOPICS = ("Orders", "Clicks", "Batches", "Compressed", "Delayed", "Transactions")
NEVER_DELIVERED = 20  # delayed by the longest level
HALVES = "RMQ_SYS_TRANS_HALF_TOPIC"
DELAYS = "SCHEDULE_TOPIC_XXXX"

# Counts, and a sum over digests that any order of rows gives alike.
Summary = dict[tuple[str, int, str], tuple[int, int]]


class Bulk(NamedTuple):
    """The store, every record in it by RocketMQ's decoder, and the answers of the client to single messages."""

    store: Path
    records: list[Row]
    sent: list[Row]


@pytest.fixture(scope="module")
def bulk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bulk]:
    """RocketMQ writes the store and is stopped in order."""
    need_java("5.3.3", "server")
    folder = tmp_path_factory.mktemp("bulk")
    settings = {
        "mappedFileSizeCommitLog": FILE_BYTES,
        "mappedFileSizeConsumeQueue": 100_000,
        "maxHashSlotNum": 20_000,
        "maxIndexNum": 80_000,
        "transactionOpBatchInterval": 100,
        "transactionTimeOut": 6_000,
    }
    server = RocketServer(folder / "store", folder / "work", settings=settings, heap="768m")
    try:
        server.start()
        with JavaClient(folder / "client", heap="768m") as java:
            sent = write(java, server.namesrv)
        server.stop()
        records, _ = dump_commit_log(server.store)
        yield Bulk(server.store, records, sent)
    finally:
        server.kill()


def write(java: JavaClient, namesrv: str) -> list[Row]:
    """Write the mix; returns what was answered to plain single messages."""
    java.producer(namesrv, retries=0, topicQueues=QUEUES)
    sent = send(java, [{"topic": topic, "queue": 0, "text": f"first of {topic}"} for topic in TOPICS])
    for start in range(0, SINGLES, ROUND):
        sent += send(java, [single(i) for i in range(start, start + ROUND)], mode="async")
    for number in range(BATCHES):
        stored(java.send([member(number, i) for i in range(BATCH)], mode="batch"))
    compressed = [
        {"topic": "Compressed", "queue": i % QUEUES, "len": 5_000 + i, "kind": "text", "keys": f"text-{i}"}
        for i in range(COMPRESSED)
    ]
    for kind in ("ZLIB", "LZ4", "ZSTD"):
        java.producer(namesrv, id=kind, compressType=kind)
        sent += send(java, [{**row, "tags": kind} for row in compressed], id=kind, mode="async")
    delayed = [
        {"topic": "Delayed", "queue": 1, "text": f"delayed {i}", "keys": f"delayed-{i}", "tags": "late", "delay": level}
        for i, level in enumerate([1] * (DELAYED - NEVER_DELIVERED) + [18] * NEVER_DELIVERED)
    ]
    stored(java.send(delayed))
    java.producer(namesrv, id="t", group="transactions", transaction=True, retries=0)
    for decision in ("commit", "rollback"):
        half = [
            {"topic": "Transactions", "text": f"{decision} {i}", "keys": f"{decision}-{i}", "tags": decision}
            for i in range(TRANSACTIONS // 2)
        ]
        stored(java.send(half, id="t", mode="transaction", decision=decision))
    java.puller(namesrv)
    expected = {"Delayed": 1 + DELAYED - NEVER_DELIVERED, "Transactions": 1 + TRANSACTIONS // 2}
    for topic, count in expected.items():
        wait_until(f"{count} messages in {topic}", functools.partial(holds, java, topic, count))
    return sent


def holds(java: JavaClient, topic: str, count: int) -> bool:
    """Whether so many messages are in a topic."""
    total: int = sum(row["max"] for row in java.offsets(topic))
    return total == count


def send(java: JavaClient, messages: list[Row], **options: Any) -> list[Row]:
    """Send, and put topic and tags of each message beside its answer."""
    answers = stored(java.send(messages, **options))
    pairs = zip(messages, answers, strict=True)
    return [{**answer, "topic": message["topic"], "tags": message.get("tags")} for message, answer in pairs]


def single(number: int) -> Row:
    """One of the messages that are sent one by one."""
    tag = TAGS[number % len(TAGS)]
    row: Row = {"topic": TOPICS[number % 2], "queue": number // 2 % QUEUES, "len": 1 + number * 37 % 600}
    row |= {"seed": number, "keys": f"single-{number} user-{number % 1000}"}
    if number % 50 == 0:
        row["properties"] = {"region": "欧洲", "number": str(number)}
    return row if tag is None else {**row, "tags": tag}


def member(batch: int, number: int) -> Row:
    """One message of a batch."""
    text = f"batch {batch} member {number}"
    return {"topic": "Batches", "queue": batch % QUEUES, "text": text, "keys": f"{batch}-{number}", "tags": "batched"}


def test_the_store_is_what_was_asked_for(bulk: Bulk) -> None:
    topics = Counter(row["topic"] for row in bulk.records)
    assert len(bulk.records) >= 200_000
    assert topics["Batches"] == 1 + BATCHES * BATCH
    assert topics["Delayed"] == 1 + DELAYED - NEVER_DELIVERED
    assert topics[DELAYS] == DELAYED
    assert topics["Transactions"] == 1 + TRANSACTIONS // 2
    assert topics[HALVES] == TRANSACTIONS
    assert len(list((bulk.store / "commitlog").iterdir())) >= 10


def stratamq(*arguments: str | Path) -> tuple[int, str]:
    """Run the command; its exit code and what it printed."""
    command = [sys.executable, "-m", "stratamq.cli.main", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout


def test_store_check_finds_nothing_wrong(bulk: Bulk) -> None:
    code, output = stratamq("store", "check", bulk.store, "--output", "json")
    report = json.loads(output)
    summary = report["summary"]
    assert code == 0
    assert (summary["errors"], summary["warnings"]) == (0, 0), report["findings"]
    assert summary["records"] == len(bulk.records)
    # Every record has a unit; also those of system topics.
    assert summary["units"] == len(bulk.records)
    assert summary["was_stopped_cleanly"]


def test_store_query_finds_messages(bulk: Bulk) -> None:
    some = next(row for row in bulk.records if row["keys"] == f"single-{SINGLES // 2} user-0")
    for key, count in ((f"single-{SINGLES // 2}", 1), ("user-7", SINGLES // 1000), ("700-42", 1), ("delayed-3", 2)):
        topics = {"delayed-3": None}.get(key, "Batches" if key == "700-42" else None)
        found = query(bulk, "--key", key, *(["--topic", topics] if topics else []), "--limit", "100")
        assert len(found) == count, key
        assert all(key in row["keys"].split() for row in found), key
    for name in ("uniqId", "offsetMsgId"):
        (found_one,) = query(bulk, "--id", some[name])
        assert located(found_one) == (some["topic"], some["queueId"], some["queueOffset"]), name
    assert query(bulk, "--key", "no-such-key") == []
    rows = [row for row in bulk.records if (row["topic"], row["queueId"]) == ("Orders", 1)]
    begin, end = rows[1000]["storeTimestamp"], rows[1300]["storeTimestamp"]
    expected = [row["queueOffset"] for row in rows if begin <= row["storeTimestamp"] < end]
    found = query(
        bulk, "--topic", "Orders", "--queue", "1", "--from", str(begin), "--to", str(end), "--limit", str(len(rows))
    )
    assert [row["queue_offset"] for row in found] == expected


def query(bulk: Bulk, *arguments: str) -> list[Row]:
    """What `store query` prints, as objects."""
    code, output = stratamq("store", "query", bulk.store, *arguments, "--output", "json")
    rows = [json.loads(line) for line in output.split("\n") if line]  # bodies may hold other ends of lines
    assert code == (0 if rows else 1)
    return rows


def located(row: Mapping[str, Any]) -> tuple[str, int, int]:
    """Where a message that `store query` printed is."""
    return row["topic"], row["queue_id"], row["queue_offset"]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A small Spark on two cores."""
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    from stratamq.pipeline.session import session

    java_options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    config = {"spark.sql.shuffle.partitions": "2", "spark.driver.extraJavaOptions": java_options}
    made = session("interop", "local[2]", config=config, jvm_log=tmp_path_factory.mktemp("spark") / "jvm.log")
    yield made
    made.stop()


@pytest.mark.spark
def test_spark_reads_every_record_as_stored(bulk: Bulk, spark: Any) -> None:
    options = {"bytesPerSplit": "16m", "decompress": "false"}
    rows = spark.read.format("stratamq").options(**options).load(str(bulk.store))
    columns = ("queue_offset", "physical_offset", "sys_flag", "reconsume_times", "message_id", "keys")
    fields = ("queueOffset", "commitLogOffset", "sysFlag", "reconsumeTimes", "id", "keys")
    expected = summary_of(({**row, "id": row["uniqId"] or row["offsetMsgId"]} for row in bulk.records), fields)
    assert sum(count for count, _ in expected.values()) == len(bulk.records)
    assert summary_by_spark(rows, columns) == expected


@pytest.mark.spark
def test_spark_reads_bodies_as_the_client_sent_them(bulk: Bulk, spark: Any) -> None:
    rows = spark.read.format("stratamq").option("topics", "Orders,Clicks,Compressed").load(str(bulk.store))
    sent = [row for row in bulk.sent if row["topic"] in ("Orders", "Clicks", "Compressed")]
    assert len(sent) == 3 + SINGLES + 3 * COMPRESSED
    assert summary_by_spark(rows, ("queue_offset", "message_id")) == summary_of(sent, ("queueOffset", "msgId"))


def summary_of(rows: Iterable[Row], fields: Sequence[str]) -> Summary:
    """Count and checksum by topic, queue and tag of rows that RocketMQ or its client described."""
    found: dict[tuple[str, int, str], list[int]] = {}
    for row in rows:
        text = "|".join(str(row[field]) for field in (*fields, "bodyMd5") if row[field] is not None)
        total = found.setdefault((row["topic"], row["queueId"], row["tags"] or ""), [0, 0])
        total[0] += 1
        total[1] += zlib.crc32(text.encode())
    return {key: (count, checksum) for key, (count, checksum) in found.items()}


def summary_by_spark(rows: Any, columns: Sequence[str]) -> Summary:
    """The same of rows that Spark reads; what is null is left out, as above."""
    from pyspark.sql import functions

    text = functions.concat_ws("|", *columns, functions.md5("body"))
    tags = functions.coalesce("tags", functions.lit("")).alias("tags")
    grouped = rows.groupBy("topic", "queue_id", tags)
    totals = grouped.agg(functions.count("*").alias("count"), functions.sum(functions.crc32(text)).alias("checksum"))
    return {(row.topic, row.queue_id, row.tags): (row["count"], row.checksum) for row in totals.collect()}
