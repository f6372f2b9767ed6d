"""The cold tier: sealing against the copy alone, reading a queue back against local files, blocks against other ways.

The backend is a folder on the same disk, so what is compared is the work on the bytes, not a network.

* upload: 128 MiB of 1 KB JSON messages sealed, compressed, indexed and put durably; the peer writes the same raw bytes
  to one file and syncs it, which is what a copy without index and compression would cost;
* read back: all of them in order as a consumer does, 32 a read, from the tier with an empty cache; the peer reads them
  from local files in the page cache;
* a random message with an empty cache; the peer reads the same from Parquet segments;
* compression of such blocks: zstd level 3 against zlib level 6, in speed (the note gives the sizes).
"""

from __future__ import annotations

import os
import random
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import zstandard

from bench.rows import Missing, Row
from stratamq.clock import SystemClock
from stratamq.config import StoreConfig, TieredConfig
from stratamq.formats.message import encode_host
from stratamq.logstore.store import LogStore
from stratamq.logstore.types import Message
from stratamq.tiered import reading
from stratamq.tiered.cache import BlockCache, FetchedBlocks
from stratamq.tiered.local import LogQueues
from stratamq.tiered.owner import run_inline
from stratamq.tiered.reading import Wanted
from stratamq.tiered.service import TierService, open_tier
from stratamq.units import KiB, MiB

COUNT = 128 * 1024
RANDOM_READS = 200
HOST = encode_host("127.0.0.1", 10911)


def bodies(count: int) -> list[bytes]:
    """JSON as applications send it: a ratio of about 4 with zstd."""
    rng = random.Random(7)
    found = []
    for number in range(count):
        items = ",".join(
            f'{{"sku":"SKU-{rng.randrange(10**6):06d}","qty":{rng.randrange(9)},"price":{rng.randrange(10**5) / 100}}}'
            for _ in range(17)
        )
        found.append(f'{{"order":{number},"customer":"{rng.randrange(10**7):07d}","items":[{items}]}}'.encode())
    return found


def run(rounds: int) -> list[Row | Missing]:
    """Four rows."""
    with tempfile.TemporaryDirectory(prefix="stratamq-bench-tier-") as folder:
        return _run(Path(folder), max(1, min(rounds, 5)))


def _run(folder: Path, rounds: int) -> list[Row | Missing]:
    clock = SystemClock()
    store = LogStore.open(folder / "s", StoreConfig(), clock=clock, store_host=HOST)
    template = Message(topic="T", queue_id=0, body=b"", properties="", born_timestamp=1, born_host=HOST)
    sent = bodies(COUNT)
    for at in range(0, COUNT, 4096):
        part = sent[at : at + 4096]
        store.append_many(template, part, [f"KEYS\x01k{at + n}\x02" for n in range(len(part))])
        store.commit()
    token = store.unsynced()
    assert token is not None
    store.sync(token)
    store.synced(token)
    size = store.max_physical_offset
    ours: dict[str, list[float]] = {"upload": [], "read": [], "random": [], "zstd": []}
    peers: dict[str, list[float]] = {"upload": [], "read": [], "random": [], "zstd": []}
    ratio = stored = 0.0
    for number in range(rounds):
        flat = _tier(store, folder / f"flat{number}", TieredConfig(compact=False))
        ours["upload"].append(size / MiB / _timed(lambda tier=flat: _upload(tier)))  # type: ignore[misc]
        peers["upload"].append(size / MiB / _timed(lambda n=number: _copy(store, folder / f"raw{n}", size)))  # type: ignore[misc]
        ours["read"].append(size / MiB / _timed(lambda tier=flat: _read_all(tier)))  # type: ignore[misc]
        peers["read"].append(size / MiB / _timed(lambda: _read_local(store)))
        policy = TieredConfig(compact_format="parquet", expire_interval_ms=1000)
        lake = _tier(store, folder / f"lake{number}", policy)
        _upload(lake)
        assert lake.manifests["T", 0].segments[0].format == "parquet"
        ours["random"].append(RANDOM_READS / _timed(lambda tier=flat: _read_random(tier)))  # type: ignore[misc]
        peers["random"].append(RANDOM_READS / _timed(lambda tier=lake: _read_random(tier)))  # type: ignore[misc]
        blocks = [b"".join(sent[at : at + 256]) for at in range(0, 16_384, 256)]
        raw = sum(map(len, blocks))
        compressor = zstandard.ZstdCompressor(level=3)
        packed: list[bytes] = []
        ours["zstd"].append(raw / MiB / _timed(lambda: packed.extend(map(compressor.compress, blocks))))  # noqa: B023
        ratio = raw / sum(map(len, packed))
        packed.clear()
        peers["zstd"].append(raw / MiB / _timed(lambda: packed.extend(map(zlib.compress, blocks))))  # noqa: B023
        stored = raw / sum(map(len, packed))
        flat.close()
        lake.close()
    store.close()
    rows = (
        ("upload", "seal and upload 1 KB messages", "write and sync the raw bytes", "MiB/s", ""),
        ("read", "read a cold queue in order", "local files in memory", "MiB/s", ""),
        ("random", "read a random cold message", "Parquet segments", "messages/s", ""),
        ("zstd", "compress blocks, zstd 3", "zlib 6", "MiB/s", f"sizes 1:{ratio:.1f} against 1:{stored:.1f}"),
    )
    return [
        Row(job=job, peer=peer, unit=unit, ours=tuple(ours[key]), theirs=tuple(peers[key]), note=note)
        for key, job, peer, unit, note in rows
    ]


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _tier(store: LogStore, folder: Path, policy: TieredConfig) -> TierService:
    from stratamq.tiered.folder import FolderBackend

    backend = FolderBackend(str(folder / "cold"))
    opened = open_tier(policy, str(folder / "catalogue"), "b", SystemClock(), backend=backend)
    return TierService(opened, LogQueues(store), policy, SystemClock())


def _upload(service: TierService) -> None:
    for _ in range(1000):
        works = service.due(drain=True)
        for work in works:
            run_inline(work)
        head = service.manifests.get(("T", 0))
        if head is not None and head.end == COUNT and (not service.policy.compact or head.segments[0].format != "flat"):
            return
    raise AssertionError("it never ends")


def _copy(store: LogStore, path: Path, size: int) -> None:
    log, _, _ = store.retained()
    with path.open("wb") as file:
        for base in log.bases:
            file.write(log.file_view(base)[: min(log.file_bytes, size - base)])
        file.flush()
        os.fdatasync(file.fileno())
    path.unlink()


def _blocks(service: TierService, ahead: int) -> FetchedBlocks:
    return FetchedBlocks(BlockCache(64 * MiB), service.tier.backend, ahead)


def _read_all(service: TierService) -> None:
    head, blocks = service.manifests["T", 0], _blocks(service, 4 * MiB)
    offset = 0
    while offset < COUNT:
        offset = reading.read(head, Wanted(offset, 32, 256 * KiB), blocks).next_offset


def _read_local(store: LogStore) -> None:
    offset = 0
    while offset < COUNT:
        offset = store.get("T", 0, offset, 32).next_offset


def _read_random(service: TierService) -> None:
    head, rng = service.manifests["T", 0], random.Random(3)
    indexes = BlockCache(512 * MiB)
    warm = FetchedBlocks(indexes, service.tier.backend, 0)
    for segment in head.segments:
        warm.index(segment)
    for _ in range(RANDOM_READS):
        offset = rng.randrange(COUNT)
        blocks = FetchedBlocks(BlockCache(1), service.tier.backend, 0)
        segment = head.segments[reading.segment_at(head, offset)]
        index = warm.index(segment)
        blocks.block(segment, index, index.block_of(offset))
