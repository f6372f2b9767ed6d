"""A small queue store, the same bytes every time: run as a module, it writes ``queue-store/store.tar.xz`` anew.

Two virtual hosts, a queue with two priorities, small and large messages, some acknowledged, some delivered; stopped in
order once, and then killed with a journal and an unsealed message file.
"""

from __future__ import annotations

import io
import os
import random
import tarfile
import tempfile
from pathlib import Path
from unittest import mock

from stratamq.config import QueueStoreConfig
from stratamq.queuestore.store import QueueStore
from stratamq.testing.clock import ManualClock
from tests.golden.archives import GOLDEN

SEED = 20_261_121
WRITTEN_S = 1_800_000_000
"""When the files of the archive say that they were written."""
NAMES = ["/\norders\n0", "/\norders\n1", "/\ninvoices\n0", "test\norders\n0"]
CONFIG = QueueStoreConfig(
    queue_index_embed_msgs_below=64,
    queue_index_segment_entry_count=16,
    queue_index_journal_bytes_max=4096,
    journal_file_bytes=2048,
    msg_store_file_size_limit=2048,
    write_buffer_bytes=1024,
    recent_bytes_max=4096,
    maintenance_bytes=1024,
)


def make(directory: Path) -> None:
    """Make the store in ``directory``."""
    rng = random.Random(SEED)

    def salt() -> int:
        return rng.getrandbits(32)

    with (
        mock.patch("stratamq.queuestore.store.random_salt", salt),
        mock.patch("stratamq.queuestore.manifest.random_salt", salt),
    ):
        store = QueueStore.open(directory, CONFIG, clock=ManualClock())
        operate(store, rng, 60)
        store.close()
        store = QueueStore.open(directory, CONFIG, clock=ManualClock())
        operate(store, rng, 12)
        store._journal.close()
        store._handles.close()
        store._lock.release()


def operate(store: QueueStore, rng: random.Random, count: int) -> None:
    """Publish, deliver and acknowledge at random, every step synced."""
    for number in range(count):
        queues = [store.declare_queue(name, durable=True) for name in rng.sample(NAMES, rng.randint(1, 3))]
        store.publish(b"%d." % number * rng.choice([4, 80]), persistent=True, queues=queues)
        fetched = queues[0].fetch(2) if number % 3 == 0 else []
        queues[0].ack([delivery.seq for delivery in fetched[:1]])
        token = store.commit()
        assert token is not None
        store.sync(token)
        store.synced(token)
        store.tick()


def files_of(directory: Path) -> dict[str, bytes]:
    """Every file but the lock, which names a process."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def write_archive() -> None:
    """Make the store and pack it."""
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / "store")
        with tarfile.open(GOLDEN / "queue-store" / "store.tar.xz", "w:xz") as archive:
            for name in ["msg_store_transient", *files_of(Path(folder) / "store")]:
                path = Path(folder) / "store" / name
                entry = tarfile.TarInfo(os.path.join("store", name))
                entry.mtime = WRITTEN_S
                if path.is_dir():
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                    archive.addfile(entry)
                else:
                    entry.size = path.stat().st_size
                    archive.addfile(entry, io.BytesIO(path.read_bytes()))


if __name__ == "__main__":
    write_archive()
