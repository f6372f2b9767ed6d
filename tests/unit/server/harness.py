"""A broker without sockets: its request handlers on a real store, with a clock that tests move."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stratamq.broker.broker import Broker, BrokerAddress
from stratamq.config import BrokerConfig, RetentionConfig, StoreConfig
from stratamq.errors import StoreError
from stratamq.files.durable import ConfigFile
from stratamq.formats.message import Record, decode_record, encode_host
from stratamq.logstore.store import LogStore
from stratamq.logstore.types import Message, PutDone, PutResult, PutStatus
from stratamq.protocols.remoting.codes import RequestCode
from stratamq.protocols.remoting.command import BinaryHeader, CommandHeader
from stratamq.protocols.remoting.replies import encode_response, response_to_error
from stratamq.server.live_settings import KEPT_FILE, LiveSettings
from stratamq.server.requests.base import Answered
from stratamq.server.requests.families import BrokerFamilies
from stratamq.testing.clock import ManualClock
from tests.unit.protocols import wire
from tests.unit.protocols.wire import Answer

SMALL = StoreConfig(
    commit_log_file_bytes=1024 * 1024,
    consume_queue_file_bytes=20 * 1000,
    index_slots=1000,
    index_entries=4000,
    message_body_bytes_max=100_000,
)


class FakePeer:
    """A peer that keeps what it is sent."""

    def __init__(self, port: int = 5555) -> None:
        self.born_host = encode_host("127.0.0.1", port)
        self.address = f"127.0.0.1:{port}"
        self.is_closed = False
        self.is_clogged = False
        self.sent = b""
        self.unanswered = 0
        self.deferred: list[Callable[[], None]] = []
        self.notified: list[tuple[int, dict[str, str]]] = []
        self.called: list[tuple[int, dict[str, str], bytes, Answered]] = []

    def write(self, data: bytes) -> None:
        self.sent += data

    def write_parts(self, head: bytes, parts: Sequence[memoryview], parts_bytes: int) -> None:
        body = b"".join(parts)
        assert len(body) == parts_bytes
        self.sent += head + body

    def begin_request(self) -> None:
        self.unanswered += 1

    def end_request(self) -> None:
        self.unanswered -= 1

    def notify(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        self.notified.append((code, ext))

    def call(
        self, code: int, ext: dict[str, str], body: bytes, answered: Answered, *, timeout_ms: int = 10_000
    ) -> None:
        self.called.append((code, ext, body, answered))

    def defer(self, work: Callable[[], None]) -> None:
        self.deferred.append(work)

    def take(self) -> list[Answer]:
        """What was sent since the last call."""
        sent, self.sent = self.sent, b""
        return wire.split(sent)


class DirectCommitter:
    """Puts straight into the store; answers at once, or when told to."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self.on_arrivals: Callable[[Any], None] = lambda arrivals: None
        self.refuse_with: PutResult | None = None
        self.held: list[Callable[[], None]] | None = None

    def put(self, messages: Sequence[Message], done: PutDone) -> None:
        if self.refuse_with is not None:
            done(self.refuse_with)
            return
        try:
            appended = self._store.append(messages)
        except StoreError as error:
            done(PutResult(PutStatus.MESSAGE_ILLEGAL, (), str(error)))
            return
        token = self._store.commit()

        def answer() -> None:
            done(PutResult(PutStatus.PUT_OK, appended))
            if token is not None:
                self.on_arrivals(token.arrivals)

        if self.held is None:
            answer()
        else:
            self.held.append(answer)


class Harness:
    """One broker and a way to ask it."""

    def __init__(self, directory: Path, config: BrokerConfig | None = None, clock: ManualClock | None = None) -> None:
        self.directory = directory
        self.clock = clock or ManualClock(1_767_225_600_000)
        host = encode_host("127.0.0.1", 10911)
        self.store = LogStore.open(directory, SMALL, clock=self.clock, store_host=host)
        self.committer = DirectCommitter(self.store)
        folder = directory / "config"
        self.broker = Broker(
            config=config or BrokerConfig(),
            store_config=SMALL,
            address=BrokerAddress("127.0.0.1", 10911, host),
            store=self.store,
            committer=self.committer,
            open_file=lambda name: ConfigFile(str(folder / name)),
            clock=self.clock,
            process_id=77,
        )
        self.live = LiveSettings(
            {BrokerConfig: self.broker.config, StoreConfig: SMALL, RetentionConfig: RetentionConfig()},
            folder / KEPT_FILE,
            apply=lambda configs: self.broker.reconfigure(configs[BrokerConfig]),
        )
        self.requests = BrokerFamilies(self.broker, data_dir=directory, live=self.live)
        self.pulls, self.pops, self.members = self.requests.pulls, self.requests.pops, self.requests.members
        self.committer.on_arrivals = self.requests.arrived
        self.handlers = self.requests.by_code
        self.peer = FakePeer()
        self._opaque = 0

    def request(
        self,
        code: int,
        ext: dict[str, Any] | None = None,
        body: Any = b"",
        *,
        peer: FakePeer | None = None,
        version: int = 475,
        one_way: bool = False,
        binary: bool = False,
    ) -> None:
        """Ask; the answer, if there is one now, is among what the peer got."""
        peer = peer or self.peer
        self._opaque += 1
        kind = BinaryHeader if binary else CommandHeader
        header = kind(
            code=code,
            opaque=self._opaque,
            version=version,
            flag=2 if one_way else 0,
            ext=msgspec.Raw(msgspec.json.encode(ext or {})),
            language="JAVA",
        )
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            answer = self.handlers[code](peer, header, memoryview(data))
        except Exception as error:
            number, remark = response_to_error(error)
            answer = encode_response(header, number, remark=remark)
        if answer is not None and not one_way:
            peer.write(answer)

    def ask(self, code: int, ext: dict[str, Any] | None = None, body: Any = b"", **rest: Any) -> Answer:
        """Ask and return the one answer."""
        peer = rest.get("peer") or self.peer
        peer.take()
        self.request(code, ext, body, **rest)
        (answer,) = peer.take()
        assert answer.opaque == self._opaque
        assert answer.flag == 1
        return answer

    def send(self, topic: str = "T", body: bytes = b"hello", properties: str = "", **ext: Any) -> Answer:
        """SEND_MESSAGE_V2."""
        fields = {
            "a": "p",
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": "0",
            "f": "0",
            "g": "1767225600000",
            "h": "0",
            "i": properties,
        }
        return self.ask(RequestCode.SEND_MESSAGE_V2, fields | {key: str(value) for key, value in ext.items()}, body)

    def pull_ext(self, topic: str = "T", **ext: Any) -> dict[str, str]:
        """The extFields of a pull with its subscription."""
        fields: dict[str, Any] = {
            "consumerGroup": "g",
            "topic": topic,
            "queueId": 0,
            "queueOffset": 0,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 15000,
            "subscription": "*",
            "subVersion": 0,
        }
        return {key: str(value) for key, value in (fields | ext).items() if value is not None}

    def pull(self, topic: str = "T", **ext: Any) -> Answer:
        """PULL_MESSAGE that does not wait."""
        return self.ask(RequestCode.PULL_MESSAGE, self.pull_ext(topic, **ext))

    def heartbeat(self, client_id: str = "c", *, peer: FakePeer | None = None, **consumers: str) -> Answer:
        """HEART_BEAT with consumer groups, each given as group="topic:expression"."""
        data = []
        for group, text in consumers.items():
            topic, _, expression = text.partition(":")
            subscription = {"topic": topic, "subString": expression or "*", "subVersion": 1, "expressionType": "TAG"}
            data.append({"groupName": group, "subscriptionDataSet": [subscription]})
        body = {"clientID": client_id, "producerDataSet": [{"groupName": "p"}], "consumerDataSet": data}
        return self.ask(RequestCode.HEART_BEAT, {}, body, peer=peer)

    def close(self) -> None:
        """Close the store."""
        self.store.close()


def records(body: bytes) -> list[Record]:
    """The records of a pull's body."""
    found = []
    at = 0
    while at < len(body):
        record = decode_record(memoryview(body)[at:])
        found.append(record)
        at += record.size
    return found
