"""A cold tier without a broker: queues in memory, a backend that fails on demand, a clock that tests move."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from stratamq.config import TieredConfig
from stratamq.formats import cold_segment
from stratamq.formats.cold_names import escape_topic
from stratamq.formats.message import encode_host, encode_record
from stratamq.testing.backend import FaultyBackend
from stratamq.testing.clock import ManualClock
from stratamq.tiered import commits
from stratamq.tiered.backend import MemoryBackend, PrefixedBackend
from stratamq.tiered.joining import read_index
from stratamq.tiered.local import Key, Piece
from stratamq.tiered.owner import Work, run_inline
from stratamq.tiered.service import TierService, open_tier

HOST = encode_host("127.0.0.1", 10911)
POLICY = TieredConfig(compact=False)
BROKER = "broker-a"


class FakeLocal:
    """Queues in memory. ``confirmed`` limits what may be uploaded; `clean` takes the oldest messages away."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.first: dict[Key, int] = {}
        self.records: dict[Key, list[bytes]] = {}
        self.unconfirmed: dict[Key, int] = {}

    def produce(
        self, key: Key, count: int = 1, *, body: bytes = b"x", properties: bytes = b"", time_ms: int | None = None
    ) -> None:
        rows = self.records.setdefault(key, [])
        self.first.setdefault(key, 0)
        for _ in range(count):
            offset = self.first[key] + len(rows)
            rows.append(
                encode_record(
                    body=body,
                    topic=key[0].encode(),
                    properties=properties,
                    queue_id=key[1],
                    flag=0,
                    queue_offset=offset,
                    physical_offset=offset * 1000,
                    sys_flag=0,
                    born_timestamp=1,
                    born_host=HOST,
                    store_timestamp=self.clock.wall_ms() if time_ms is None else time_ms,
                    store_host=HOST,
                )
            )

    def clean(self, key: Key, upto: int) -> None:
        gone = max(0, min(upto, self.visible_end(key)) - self.first[key])
        del self.records[key][:gone]
        self.first[key] += gone

    def keys(self) -> Iterable[Key]:
        return list(self.records)

    def start(self, key: Key) -> int:
        return self.first.get(key, 0)

    def visible_end(self, key: Key) -> int:
        return self.first.get(key, 0) + len(self.records.get(key, ()))

    def end(self, key: Key) -> int:
        return self.visible_end(key) - self.unconfirmed.get(key, 0)

    def read(self, key: Key, offset: int, end: int, max_bytes: int) -> Piece:
        rows = self.records[key][offset - self.first[key] : end - self.first[key]]
        taken, size = [], 0
        for row in rows:
            if taken and size + len(row) > max_bytes:
                break
            taken.append(memoryview(row))
            size += len(row)
        return Piece(offset, len(taken), size, taken)

    def waiting_bytes(self, key: Key, offset: int, end: int) -> tuple[int, int]:
        rows = self.records[key][offset - self.first[key] : end - self.first[key]][:100]
        return sum(map(len, rows)), offset + len(rows)

    def stored_ms(self, key: Key, offset: int) -> int:
        at = offset - self.first[key]
        row = self.records[key][at] if 0 <= at < len(self.records[key]) else None
        return -1 if row is None else int.from_bytes(row[56:64], "big")

    def physical_offset(self, key: Key, offset: int) -> int:
        return offset * 1000


class World:
    """One broker's tier over a shared backend. Several make a cluster of writers, of which one should write."""

    def __init__(
        self,
        directory: Path,
        *,
        policy: TieredConfig = POLICY,
        clock: ManualClock | None = None,
        backend: FaultyBackend | None = None,
        local: FakeLocal | None = None,
        name: str = "w",
    ) -> None:
        self.clock = clock or ManualClock()
        self.backend = backend or FaultyBackend(MemoryBackend())
        self.local = local or FakeLocal(self.clock)
        self.policy = policy
        self.directory = directory
        self.name = name
        self.topics_gone: set[str] = set()
        self._chance = 0
        self.open()

    @property
    def objects(self) -> PrefixedBackend:
        """The backend below this broker's root, without its faults."""
        return PrefixedBackend(self.backend.inner, escape_topic(BROKER))

    def chance(self, count: int) -> bytes:
        """The same bytes in every run, other ones each time."""
        self._chance += 1
        return hashlib.sha256(f"{self.name} {self._chance}".encode()).digest()[:count]

    def open(self, **arguments) -> None:
        opened = open_tier(self.policy, str(self.directory), BROKER, self.clock, backend=self.backend)
        self.service = TierService(
            opened,
            self.local,
            self.policy,
            self.clock,
            is_topic=lambda topic: topic not in self.topics_gone,
            own_names={BROKER},
            writer_name=self.name,
            chance=self.chance,
            **arguments,
        )

    def close(self) -> None:
        self.service.close()

    def restart(self) -> None:
        self.close()
        self.open()

    def tick(self, *, drain: bool = False) -> int:
        """What a broker does each second; returns how many rounds ran."""
        count = 0
        works = self.service.due(drain=drain)
        while works:
            for work in works:
                run_inline(work)
            count += len(works)
            works = self.service.due(drain=drain, look=False)
        return count

    def settle(self, *, drain: bool = True, rounds: int = 20) -> None:
        """Run until nothing is due."""
        for _ in range(rounds):
            if not self.tick(drain=drain):
                return
        raise AssertionError("it never ends")

    def advance(self, seconds: float) -> None:
        """Let time pass, second by second."""
        left = int(seconds * 1000)
        while left > 0:
            self.clock.advance(min(1000, left))
            left -= 1000
            self.tick()

    def manifest(self, key: Key):
        """The newest manifest of a queue as the backend has it."""
        return commits.find_head(self.objects, key[0], key[1], None).manifest

    def history(self, key: Key):
        """All versions of all incarnations of a queue that the backend has."""
        from stratamq.formats.cold_names import parse_manifest_name, queue_folder

        rows = [parse_manifest_name(entry.name) for entry in self.objects.list(queue_folder(*key))]
        return [commits.read_manifest(self.objects, row.life, row.version) for row in rows if row.version is not None]

    def stored(self, key: Key) -> dict[int, bytes]:
        """Every record of a queue that the backend holds, by offset."""
        found: dict[int, bytes] = {}
        manifest = self.manifest(key)
        for segment in manifest.segments if manifest else ():
            for offset, record in records_of(self.objects, segment):
                found[offset] = record
        return found


def records_of(backend, segment):
    """Offset and bytes of every record of a segment."""
    if segment.format == "parquet":
        from stratamq.tiered.parquet import read_records

        yield from read_records(backend, segment)
        return
    data = backend.read(segment.name)
    index = read_index(backend, segment)
    for number, row in enumerate(index.blocks):
        at = int(row["position"])
        raw = cold_segment.decode_block(data[at : at + int(row["stored_bytes"])], index, number, path=segment.name)
        positions = [*cold_segment.record_positions(raw).tolist(), len(raw)]
        for n in range(len(positions) - 1):
            yield int(row["first"]) + n, raw[positions[n] : positions[n + 1]]


def drive_to(work: Work, steps: int) -> bool:
    """Drive work for so many calls and drop it then, as a crash would. Returns whether it ended before."""
    try:
        call = next(work)
        for _ in range(steps):
            try:
                answer = call()
            except Exception as error:
                call = work.throw(error)
            else:
                call = work.send(answer)
    except StopIteration:
        return True
    return False
