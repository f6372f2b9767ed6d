"""Regenerate the golden stores: small RocketMQ stores written by Apache RocketMQ itself.

``python -m tests.interop.rocketmq_java.golden [NAME ...]`` writes, for every name in `GOLDENS`,
``tests/golden/NAME/store.tar.xz`` (the store directory as RocketMQ left it) and ``tests/golden/NAME/MANIFEST.json``
(every record as RocketMQ's own decoder reads it, what the clients saw, and the settings). Times, ports and message ids
differ from run to run; everything else comes from the fixed mix below.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.golden.archives import unpack_store
from tests.interop.rocketmq_java.runner import (
    CallFailed,
    JavaClient,
    RocketServer,
    Row,
    dump_commit_log,
    java_tool,
    run_java,
)

OUT = Path(__file__).resolve().parents[2] / "golden"

SETTINGS: dict[str, object] = {
    "mappedFileSizeCommitLog": 128 << 10,
    "mappedFileSizeConsumeQueue": 800,
    "maxHashSlotNum": 64,
    "maxIndexNum": 256,
    "flushConsumerOffsetInterval": 1_000,
    "flushDelayOffsetInterval": 1_000,
    # Must stay below transactionTimeOut: a check-back that runs before the mark is written commits a second time.
    "transactionOpBatchInterval": 100,
}

# What Special.java sets; recorded in the manifest.
SPECIAL_SETTINGS: dict[str, object] = {
    "mappedFileSizeCommitLog": 8 << 10,
    "mappedFileSizeConsumeQueue": 200,
    "mapperFileSizeBatchConsumeQueue": 460,
    "maxHashSlotNum": 16,
    "maxIndexNum": 64,
    "enableLmq": "true",
    "enableMultiDispatch": "true",
}

TIMER_SETTINGS: dict[str, object] = {
    "flushDiskType": "SYNC_FLUSH",
    "timerWheelEnable": "true",
    "mappedFileSizeTimerLog": 4 << 10,
    "recallMessageEnable": "true",
}
TIMED = 100
DELIVERED, RECALLED = ("soon 0", "soon 1"), ("timed 7", "timed 8")

LONG_TOPIC = "L" * 127
RETRIED = 6
LOAD = 400
COMMITTED = 2
SUBSCRIPTION_GROUP_NOT_EXIST = 26
# Left out of the manifest: said twice, or the same in every row.
DROPPED = ("bodyB64", "msgId", "uniqId", "brokerName", "transactionId", "regionId", "recallHandle")


@dataclass(frozen=True, slots=True)
class Golden:
    """How one golden store is made.

    ``clean`` tells a stop in order from kill -9; ``special`` stands for ``Special.java``, which writes records that no
    client can send, instead of the mix, and ``timers`` for messages that wait for their time.
    """

    version: str
    clean: bool
    settings: Mapping[str, object]
    special: bool = False
    timers: bool = False


GOLDENS = {
    "rocketmq-5.3-clean": Golden(version="5.3.3", clean=True, settings={}),
    "rocketmq-5.3-killed": Golden(version="5.3.3", clean=False, settings={"flushDiskType": "SYNC_FLUSH"}),
    "rocketmq-5.5-clean": Golden(version="5.5.0", clean=True, settings={"flushDiskType": "SYNC_FLUSH"}),
    "rocketmq-5.5-timers": Golden(version="5.5.0", clean=True, settings=TIMER_SETTINGS, timers=True),
    "rocketmq-5.3-special": Golden(version="5.3.3", clean=True, settings=SPECIAL_SETTINGS, special=True),
}


def mix() -> list[Row]:
    """The single messages of every golden store, in order."""
    rows: list[Row] = []
    tags = ["TagA", "TagB", "TagC", None, "标签", "\U0001f600", "polygenelubricants"]
    for i in range(60):
        row: Row = {"topic": "Orders", "queue": i % 3, "text": f"order {i}", "keys": f"order-{i} user-{i % 7}"}
        if tags[i % len(tags)] is not None:
            row["tags"] = tags[i % len(tags)]
        if i % 10 == 9:
            row.pop("keys")
            row["properties"] = {"region": "欧洲", "attempt": str(i), "sep": "a=b;c"}
            row["flag"] = -i
        rows.append(row)
    rows += [{"topic": "OneQueue", "queue": 0, "len": i + 1, "seed": i, "tags": f"T{min(i % 9, 1)}"} for i in range(50)]
    rows += [
        {"topic": "Sizes", "queue": 0, "len": 1},
        {"topic": "Sizes", "queue": 0, "text": "Grüße, 世界, \U0001f30d"},
        {"topic": "Sizes", "queue": 0, "len": 4096, "kind": "text", "keys": "just-not-compressed"},
        {"topic": "Sizes", "queue": 0, "len": 4097, "kind": "text", "keys": "just-compressed"},
        {"topic": "Sizes", "queue": 0, "len": 50_000, "kind": "text", "keys": "zlib"},
        {"topic": "Sizes", "queue": 0, "text": "one key twice", "keys": "twice twice", "wait": False},
        {"topic": LONG_TOPIC, "queue": 0, "text": "long topic", "keys": "long-topic"},
        {"topic": "Delayed", "queue": 0, "text": "delivered", "delay": 1, "keys": "delay-1", "tags": "TagA"},
        {"topic": "Delayed", "queue": 0, "text": "still waiting", "delay": 18, "keys": "delay-18"},
        {"topic": "Delayed", "queue": 0, "text": "level clamped", "delay": 99, "keys": "delay-99"},
    ]
    return rows


def write_mix(client: JavaClient, namesrv: str) -> list[Row]:
    """Send everything through RocketMQ's client; returns its results, one a message, a batch or a transaction."""
    client.producer(namesrv, group="golden-producer", retries=0, topicQueues=3)
    results: list[Row] = client.send(mix())
    batch = [{"topic": "Batches", "text": f"batched {i}", "keys": f"batch-{i}", "tags": "TagB"} for i in range(12)]
    client.send([{"topic": "Batches", "queue": 1, "text": "not batched"}])
    results += client.send([{**row, "queue": 1} for row in batch], mode="batch")
    for kind in ("LZ4", "ZSTD"):
        client.producer(namesrv, id=kind, group="golden-producer", compressType=kind)
        results += client.send([{"topic": "Sizes", "queue": 0, "len": 30_000, "kind": "text", "keys": kind}], id=kind)
    client.producer(namesrv, id="raw", group="golden-producer", compressOver=1 << 30)
    large = {"topic": "Sizes", "queue": 0, "len": 100_000, "kind": "text", "keys": "not-compressed", "tags": "Large"}
    results += client.send([large], id="raw")
    client.producer(namesrv, id="t", group="golden-transactions", transaction=True, retries=0)
    for decisions in ("commit commit", "rollback commit", "unknown commit", "unknown unknown"):
        decision, check = decisions.split()
        text = f"{decision} then {check}"
        row = {"topic": "Transactions", "text": text, "keys": f"transaction-{decision}-{check}", "tags": "TagT"}
        results += client.send([row], id="t", mode="transaction", decision=decision, onCheck=check)
    client.send([{"topic": "OneQueue", "queue": 0, "text": "one way", "tags": "OneWay"}], mode="oneway")
    return results


def wait_for(what: str, condition: Callable[[], bool], *, timeout_s: float = 60) -> None:
    """Wait until ``condition`` holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.1)


def consume(client: JavaClient, namesrv: str) -> dict[str, dict[str, int]]:
    """Leave consumer offsets: one group in the middle of Orders, one at its end after a retry of each TagA message."""
    client.puller(namesrv, id="committer", group="golden-middle")

    def commit() -> bool:
        try:
            for queue in range(3):
                client.call("pull.commit", id="committer", topic="Orders", queue=queue, offset=5 + queue)
        except CallFailed as unknown:
            if unknown.code != SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            return False
        return True

    wait_for("the first heartbeat, which creates the group", commit)
    client.push(namesrv, "OneQueue", id="retrying", group="golden-retrying", tags="T0", failures=1, retryLevel=1)
    got: list[Row] = []

    def all_twice() -> bool:
        got.extend(client.poll("retrying", min=1, timeout_s=1))
        return sum(not row["refused"] for row in got) >= RETRIED

    wait_for("every refused message came back", all_twice)
    client.stop("retrying")
    offsets: dict[str, dict[str, int]] = {}
    client.puller(namesrv, id="reader", group="golden-retrying")
    for group, topic, queues, id in (
        ("golden-middle", "Orders", 3, "committer"),
        ("golden-retrying", "OneQueue", 1, "reader"),
        ("golden-retrying", "%RETRY%golden-retrying", 1, "reader"),
    ):
        found = {str(n): client.call("pull.committed", id=id, topic=topic, queue=n) for n in range(queues)}
        offsets[f"{topic}@{group}"] = found
    return offsets


def observe(client: JavaClient) -> Row:
    """What a client sees of the running broker: offsets of queues, answers to queries."""
    topics = ["Orders", "OneQueue", "Sizes", "Batches", "Delayed", "Transactions", LONG_TOPIC]
    queues = {topic: client.offsets(topic) for topic in topics}
    keys = [
        ("Orders", "order-3"),
        ("Orders", "user-2"),
        ("Sizes", "twice"),
        ("Batches", "batch-7"),
        ("Delayed", "delay-1"),
    ]
    keys += [("Transactions", "transaction-commit-commit"), ("Transactions", "transaction-rollback-commit")]
    answers = []
    for topic, key in keys:
        try:
            found = [row["offsetMsgId"] for row in client.query(topic, key)]
        except CallFailed as nothing:
            found = [str(nothing.message)]
        answers.append({"topic": topic, "key": key, "offsetMsgIds": found})
    middle = client.pull_all("OneQueue")[25]["storeTimestamp"]
    search = {"topic": "OneQueue", "timestamp": middle}
    search["offsets"] = client.call("pull.search", id="q", topic="OneQueue", timestamp=middle)
    return {"queues": queues, "queries": answers, "searches": [search]}


def make(name: str, golden: Golden, out: Path) -> None:
    """Write one golden store and its manifest."""
    scratch = Path(tempfile.mkdtemp(prefix="golden-"))
    store = scratch / "store"
    server = RocketServer(store, scratch / "work", version=golden.version, settings={**SETTINGS, **golden.settings})
    try:
        server.start()
        with JavaClient(scratch / "client", version=golden.version) as client:
            sent = write_mix(client, server.namesrv)
            failed = [row for row in sent if "exception" in row]
            assert not failed, failed
            client.puller(server.namesrv)
            wait_for("the delayed message", lambda: client.offsets("Delayed")[0]["max"] >= 1)
            wait_for("the transaction decided on check", lambda: total(client, "Transactions") >= COMMITTED)
            groups = consume(client, server.namesrv)
            seen = observe(client)
            wait_for("the offsets in consumerOffset.json", lambda: offsets_on_disk(store, "golden-retrying"))
            if golden.clean:
                server.stop()
            else:
                # A broker that dies under load: some of these are answered, some are not.
                load = [
                    {"topic": "Orders", "queue": i % 3, "text": f"last {i}", "keys": f"last-{i}"} for i in range(LOAD)
                ]
                pending = client.submit("producer.send", id="p", mode="async", messages=load)
                while client.offsets("Orders")[0]["max"] < 21:
                    pass
                server.kill()
                answered = [row for row in pending.result(timeout=150) if "exception" not in row]
                assert 0 < len(answered) < LOAD, f"{len(answered)} of {LOAD} answered before the kill"
                sent += answered
        settings = {key: value for key, value in server.settings.items() if not key.startswith("storePath")}
        write(out / name, name, golden, store, settings, {"sent": sent, "groups": groups, **seen})
    finally:
        server.kill()
        shutil.rmtree(scratch, ignore_errors=True)


def make_timers(name: str, golden: Golden, out: Path) -> None:
    """Write the golden store of messages that wait: some are delivered before the stop, and two are recalled."""
    scratch = Path(tempfile.mkdtemp(prefix="golden-"))
    store = scratch / "store"
    server = RocketServer(store, scratch / "work", version=golden.version, settings={**SETTINGS, **golden.settings})
    try:
        server.start()
        with JavaClient(scratch / "client", version=golden.version) as client:
            client.producer(server.namesrv, group="golden-producer", retries=0, topicQueues=1)
            client.send([{"topic": topic, "queue": 0, "text": "now"} for topic in ("Timed", "Later")])
            client.puller(server.namesrv)
            hour = int(time.time() * 1000) // 3_600_000 * 3_600_000 + 2 * 3_600_000
            rows: list[Row] = [{"topic": "Timed", "text": text, "delayMs": 1_500} for text in DELIVERED]
            rows += [
                {"topic": ("Timed", "Later")[i % 2], "text": f"timed {i}", "deliverMs": hour + i % 5 * 7_000 + i % 3}
                for i in range(TIMED)
            ]
            sent = client.send(rows)
            failed = [row for row in sent if "exception" in row]
            assert not failed, failed
            for row, told in zip(rows, sent, strict=True):
                told["text"], told["deliverMs"] = row["text"], row.get("deliverMs")
                if row["text"] in RECALLED:
                    client.call("producer.recall", id="p", topic=row["topic"], handle=told["recallHandle"])
            wait_for("what is due", lambda: total(client, "Timed") >= 1 + len(DELIVERED))
            checkpoint, count = store / "config" / "timercheck", TIMED + len(DELIVERED) + len(RECALLED)
            wait_for("all are in the timer", lambda: checkpoint.read_bytes()[16:24] == count.to_bytes(8, "big"))
            server.stop()
        settings = {key: value for key, value in server.settings.items() if not key.startswith("storePath")}
        write(out / name, name, golden, store, settings, {"sent": sent})
    finally:
        server.kill()
        shutil.rmtree(scratch, ignore_errors=True)


def total(client: JavaClient, topic: str) -> int:
    """Messages in all queues of a topic."""
    return sum(int(queue["max"]) for queue in client.offsets(topic))


def make_special(name: str, golden: Golden, out: Path) -> None:
    """Write the golden store of special records."""
    scratch = Path(tempfile.mkdtemp(prefix="golden-"))
    try:
        store = scratch / "store"
        output = run_java("Special", str(store), version=golden.version, work=scratch)
        sent = [json.loads(line) for line in output.splitlines()]
        failed = [row for row in sent if row["status"] != "PUT_OK"]
        assert not failed, failed
        write(out / name, name, golden, store, golden.settings, {"sent": sent})
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def unpack(name: str, folder: Path) -> Path:
    """Unpack a golden store into ``folder``; returns the store directory."""
    return unpack_store(name, folder)


def manifest(name: str) -> Row:
    """The manifest of a golden store."""
    loaded: Row = json.loads((OUT / name / "MANIFEST.json").read_text(encoding="utf-8"))
    return loaded


def offsets_on_disk(store: Path, group: str) -> bool:
    """True once the group is in the offset file."""
    path = store / "config" / "consumerOffset.json"
    return path.exists() and group in path.read_text()


def write(
    folder: Path, name: str, golden: Golden, store: Path, settings: Mapping[str, object], seen: Mapping[str, Any]
) -> None:
    """Pack the store and describe it."""
    folder.mkdir(parents=True, exist_ok=True)
    records, ends = dump_commit_log(store, version=golden.version)
    with tarfile.open(folder / "store.tar.xz", "w:xz", preset=9) as archive:
        archive.add(store, arcname="store", filter=anonymous)
    files = {
        str(path.relative_to(store)): {"size": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }
    java = subprocess.run([java_tool("java"), "-version"], capture_output=True, text=True, timeout=30).stderr
    head = {
        "name": name,
        "rocketmq": golden.version,
        "java": java.splitlines()[0],
        "ended": "clean" if golden.clean else "kill -9",
        "settings": {key: str(value) for key, value in settings.items()},
    }
    with (folder / "MANIFEST.json").open("w", encoding="utf-8") as out:
        out.write("{\n")
        for key, value in {**head, **{k: seen[k] for k in seen if k != "sent"}}.items():
            out.write(f"{json.dumps(key)}: {json.dumps(value)},\n")
        out.write(f'"files": {{\n{lines(files)}\n}},\n')
        ended = ",\n".join(json.dumps({"file": e.file, "end": e.end, "blank": e.blank}) for e in ends)
        out.write(f'"ends": [\n{ended}\n],\n')
        out.write(f'"sent": [\n{rows(seen.get("sent", []))}\n],\n')
        out.write(f'"records": [\n{rows(records)}\n]\n}}\n')


def lines(values: Mapping[str, Any]) -> str:
    """JSON members, one a line."""
    return ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())


def rows(values: Iterable[Row]) -> str:
    """JSON objects, one a line, without what the manifest leaves out."""
    kept = ({k: v for k, v in row.items() if k not in DROPPED and v is not None} for row in values)
    return ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in kept)


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Drop owner names; times stay."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def sha256(path: Path) -> str:
    """Digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(names: list[str]) -> None:
    """Make the named golden stores, all without names."""
    for name in names or list(GOLDENS):
        maker = make_special if GOLDENS[name].special else make_timers if GOLDENS[name].timers else make
        maker(name, GOLDENS[name], OUT)
        size = sum(path.stat().st_size for path in (OUT / name).iterdir())
        print(f"{name}: {size} bytes")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
