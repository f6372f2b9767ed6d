"""A name server and a broker behind the interface of `pipeline.calling.Calls`: no socket, and faults on demand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from stratamq.errors import PeerUnreachable
from stratamq.formats.message import encode_host, encode_record
from stratamq.pipeline.calling import Answer
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader

HOST = encode_host("127.0.0.1", 10911)
T0 = 1_700_000_000_000


def record(topic: str, queue_id: int, offset: int, body: bytes) -> bytes:
    return encode_record(
        body=body, topic=topic.encode(), properties=b"TAGS\x01t\x02", queue_id=queue_id, flag=0, queue_offset=offset,
        physical_offset=offset * 1000, sys_flag=0, born_timestamp=1, born_host=HOST,
        store_timestamp=T0 + 1000 * offset, store_host=HOST,
    )  # fmt: skip


class FakeBroker:
    """Topic ``orders`` with one queue, at ``b:1``; slaves at other addresses have the same."""

    def __init__(self, count: int, *, lowest: int = 0, gives: int = 32) -> None:
        self.records = {offset: record("orders", 0, offset, b"%d" % offset) for offset in range(lowest, count)}
        self.lowest = lowest
        self.end = count
        self.gives = gives
        self.brokers: dict[str, dict[str, str]] = {"a": {"0": "b:1"}}
        self.before_pull: Callable[[int], None] = lambda offset: None
        """Called before each pull is answered, with its offset; may change the broker or raise."""
        self.pulls: list[tuple[str, int, int]] = []
        self.most_flying = 0
        self.unknown = 0
        """So often the name server says that it knows no topic."""
        self._flying: dict[tuple[str, int], tuple[int, Mapping[str, str]]] = {}
        self._opaque = 0
        self.dropped: list[str] = []

    # --- the interface of Calls ---

    def call(self, address: str, code: int, ext: Mapping[str, str], body: bytes = b"") -> Answer:
        return self.answer(address, self.ask(address, code, ext, body))

    def ask(self, address: str, code: int, ext: Mapping[str, str], body: bytes = b"") -> int:
        self._opaque += 1
        self._flying[address, self._opaque] = (code, ext)
        self.most_flying = max(self.most_flying, len(self._flying))
        return self._opaque

    def answer(self, address: str, opaque: int) -> Answer:
        asked = self._flying.pop((address, opaque), None)
        if asked is None:
            raise PeerUnreachable(address, "the connection ended before the answer came")
        code, ext = asked
        if code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            if ext["topic"] != "orders" or self.unknown:
                self.unknown = max(0, self.unknown - 1)
                return _answer(ResponseCode.TOPIC_NOT_EXIST)
            return _answer(ResponseCode.SUCCESS, body=json.dumps(self._route()).encode())
        if code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            return _answer(ResponseCode.SUCCESS, body=b'{"topicList": ["orders", "gone"]}')
        if code == RequestCode.GET_MIN_OFFSET:
            return _answer(ResponseCode.SUCCESS, offset=self.lowest)
        if code == RequestCode.GET_MAX_OFFSET:
            return _answer(ResponseCode.SUCCESS, offset=self.end)
        assert code == RequestCode.PULL_MESSAGE
        return self._pull(address, int(ext["queueOffset"]), int(ext["maxMsgNums"]))

    def drop(self, address: str) -> None:
        self.dropped.append(address)
        for key in [key for key in self._flying if key[0] == address]:
            del self._flying[key]

    def close(self) -> None:
        """Nothing is open."""

    def _route(self) -> dict[str, object]:
        return {
            "brokerDatas": [{"brokerName": name, "brokerAddrs": addrs} for name, addrs in self.brokers.items()],
            "queueDatas": [{"brokerName": name, "readQueueNums": 1, "perm": 6} for name in self.brokers],
        }

    def _pull(self, address: str, offset: int, count: int) -> Answer:
        self.pulls.append((address, offset, count))
        try:
            self.before_pull(offset)
        except PeerUnreachable:
            self.drop(address)
            raise
        found, size = [], min(count, self.gives)
        at = offset
        while len(found) < size and at < self.end:
            if at in self.records:
                found.append(self.records[at])
            at += 1
        where = {"nextBeginOffset": at, "minOffset": self.lowest, "maxOffset": self.end}
        if offset < self.lowest or offset > self.end:
            return _answer(ResponseCode.PULL_OFFSET_MOVED, **{**where, "nextBeginOffset": self.lowest})
        if not found:
            code = ResponseCode.PULL_NOT_FOUND if offset == self.end else ResponseCode.PULL_RETRY_IMMEDIATELY
            return _answer(code, **where)
        return _answer(ResponseCode.SUCCESS, body=b"".join(found), **where)


class FakeCluster:
    """Several brokers behind the interface of `Calls`: broker ``a`` at ``a:1`` and so on, name server ``n:1``."""

    def __init__(self, **brokers: FakeBroker) -> None:
        self.brokers = brokers
        self.routes = {name: {"0": f"{name}:1"} for name in brokers}
        for name, broker in brokers.items():
            broker.brokers = self.routes
            broker.records = {n: record("orders", 0, n, b"%s %d" % (name.encode(), n)) for n in broker.records}

    def call(self, address: str, code: int, ext: Mapping[str, str], body: bytes = b"") -> Answer:
        return self._at(address).call(address, code, ext, body)

    def ask(self, address: str, code: int, ext: Mapping[str, str], body: bytes = b"") -> int:
        return self._at(address).ask(address, code, ext, body)

    def answer(self, address: str, opaque: int) -> Answer:
        return self._at(address).answer(address, opaque)

    def drop(self, address: str) -> None:
        self._at(address).drop(address)

    def close(self) -> None:
        """Nothing is open."""

    def _at(self, address: str) -> FakeBroker:
        return self.brokers.get(address.partition(":")[0]) or next(iter(self.brokers.values()))


def _answer(code: int, *, body: bytes = b"", **fields: int) -> Answer:
    import msgspec

    ext = msgspec.Raw(json.dumps({name: str(value) for name, value in fields.items()}).encode())
    return Answer(code, "", CommandHeader(code=code, ext=ext, flag=1), body)
