"""Opening a store: the manifest's state, then the journal's frames behind it, then reference counts anew.

1. Make the queues as the manifest has them.
2. Read and scan the journal files. A bad frame that a later one calls durable is corruption, and so is a frame that is
   missing between manifest and journal: nothing is changed.
3. Load the message files, from the recovery file of a clean stop or from their footers, and count references anew.
4. Replay the good frames over the queues. A change that the manifest holds already is passed over by its batch. An
   entry whose body is not in the message store was never synced and goes.
5. Cut off the journal's torn end, sync the journal, remove files that nothing names.

Each pass may be repeated after a crash in its middle.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stratamq.errors import ChecksumMismatch, MisplacedRecord, TruncatedRecord
from stratamq.files.filesystem import FileSystem
from stratamq.formats.queue_journal import Ack, Declare, Delete, Mark, Publish, Purge, Record, decode_records
from stratamq.formats.queue_manifest import StoreRecord
from stratamq.queuestore import layout
from stratamq.queuestore.journal import Journal, JournalFile, JournalRead, read_journal
from stratamq.queuestore.manifest import Manifest
from stratamq.queuestore.message_files import load_messages, take_recovery
from stratamq.queuestore.queue import Queue, Shared
from stratamq.queuestore.queue_files import count_references, load_queues, remove_orphans
from stratamq.queuestore.segment import BODY_HERE, IN_PERSISTENT, SURVIVES
from stratamq.queuestore.types import Progress, RecoveryReport


@dataclass(slots=True)
class Recovered:
    """What was found: queues in order of their ids, the newest batch."""

    queues: list[Queue] = field(default_factory=list)
    next_queue_id: int = 1
    batch: int = 0
    damaged: int = 0
    durable: int = 0
    """Newest frame of the journal that a later one says is synced."""
    dropped: dict[tuple[int, int], int] = field(default_factory=dict)
    """Messages without a body, by queue and number: the frame that published them."""
    report: RecoveryReport = field(default_factory=RecoveryReport)


def read_journals(
    fs: FileSystem, journal: Journal, low: int, progress: Progress | None
) -> tuple[list[JournalRead], int]:
    """The files from frame ``low`` on up to the end of what is whole, and how many bytes behind it are cut off.

    Older files are left-overs: their removal was not synced, so any of them may be there.
    Raises ChecksumMismatch: A frame that was synced is damaged.
    """
    numbers = layout.list_numbered(fs, journal.directory, layout.JOURNAL_SUFFIX)
    reads: list[JournalRead] = []
    for done, number in enumerate(numbers):
        reads.append(read_journal(fs, journal.path_of(number), number))
        if progress is not None:
            progress("reading the journal", done + 1, len(numbers))
    needed = [at for at, read in enumerate(reads) if read.header is not None and read.header.first <= low]
    reads, cut = whole_part(reads[needed[-1] if needed else 0 :], low)
    return [read for read in reads if read.scan.frames and read.scan.frames[-1].number >= low], cut


def whole_part(reads: list[JournalRead], low: int) -> tuple[list[JournalRead], int]:
    """The files up to the end of what is whole, and how many bytes behind it there are.

    The first file must hold frame ``low`` or begin before it. Raises ChecksumMismatch.
    """
    expected = low
    for position, read in enumerate(reads):
        header = read.header
        fits = header is not None and (header.first == expected or (position == 0 and header.first < low))
        if fits and read.header is not None:
            expected = read.header.first + len(read.scan.frames)
            if read.scan.end == len(read.data):
                continue
        return _cut(reads, position, fits, expected)
    return reads, 0


def _cut(reads: list[JournalRead], position: int, fits: bool, expected: int) -> tuple[list[JournalRead], int]:
    """The journal is whole up to ``position``, the file there included when it ``fits``."""
    bad = reads[position]
    later = reads[position + 1 :]
    durable = bad.scan.durable_beyond
    for read in later if fits else reads[position:]:
        durable = max([durable, read.scan.durable_beyond, *[frame.durable for frame in read.scan.frames]])
    if durable >= expected:
        raise ChecksumMismatch(
            bad.path, bad.scan.end if fits else 0, f"frame {expected}, which was synced", "bytes that are no frame"
        )
    cut = len(bad.data) - bad.scan.end if fits else len(bad.data)
    return reads[: position + 1 if fits else position], cut + sum([len(read.data) for read in later])


def mend_journal(fs: FileSystem, journal: Journal, reads: list[JournalRead], cut: int) -> None:
    """Cut off what is not whole, sync what is, and give the files to the journal. May be repeated."""
    numbers = layout.list_numbered(fs, journal.directory, layout.JOURNAL_SUFFIX)
    names = {read.number for read in reads}
    for number in reversed(numbers):
        if number not in names:
            fs.remove(journal.path_of(number))
    for read in reads:
        fd = fs.open(read.path)
        try:
            if cut and read.scan.end < len(read.data):
                fs.truncate(fd, read.scan.end)
            fs.sync(fd)
        finally:
            fs.close(fd)
    fs.sync_directory(journal.directory)
    journal.adopt(
        [JournalFile(read.number, read.scan.frames[-1].number, read.scan.end) for read in reads],
        numbers[-1] + 1 if numbers else 0,
    )


class Replay:
    """Applies journal records to queues."""

    def __init__(self, shared: Shared, found: Recovered) -> None:
        self._shared = shared
        self._found = found
        self._by_id = {queue.id: queue for queue in found.queues}
        self._dropped = found.dropped
        self.id_max = 0

    def apply_file(self, read: JournalRead) -> None:
        """All good frames of a journal file."""
        for frame in read.scan.frames:
            self._shared.batch = frame.number
            self._found.durable = max(self._found.durable, frame.durable)
            for record in decode_records(read.data, frame.start, frame.end, path=read.path):
                self.apply(record, frame.number)
            self._shared.parts.clear()
            self._found.batch = frame.number

    def apply(self, record: Record, batch: int) -> None:
        """One record of frame ``batch``."""
        if isinstance(record, Publish):
            for queue_id, seq in record.targets:
                self._publish(self._queue(queue_id, batch), seq, record, batch)
        elif isinstance(record, Declare):
            self._found.next_queue_id = max(self._found.next_queue_id, record.queue + 1)
            if record.queue not in self._by_id:
                declared = self._by_id[record.queue] = Queue(self._shared, record.queue, record.name, True)
                declared.note_dirty()
        elif isinstance(record, Delete):
            queue = self._by_id.pop(record.queue, None)
            if queue is not None:
                queue.release_all()
                self._forget(queue, batch)
        else:
            queue = self._queue(record.queue, batch)
            if queue is None:
                return
            if isinstance(record, Ack):
                for first, count in record.runs:
                    queue.ack(range(first, first + count))
                    if self._dropped:
                        for seq in range(first, first + count):
                            self._dropped.pop((queue.id, seq), None)
            elif isinstance(record, Mark):
                queue.mark = max(queue.mark, record.mark)
                queue.skip_to(max(queue.next_seq, record.mark))
                queue.note_dirty()
            else:
                self._purge(queue, record)

    def _forget(self, queue: Queue, batch: int) -> None:
        shared = self._shared
        shared.acked.pop(queue.id, None)
        for table in (shared.dirty, shared.recent_queues, shared.dropping):
            table.pop(queue.id, None)
        shared.deleted[queue.id] = batch
        for pair in [pair for pair in self._dropped if pair[0] == queue.id]:
            del self._dropped[pair]

    def _queue(self, queue_id: int, batch: int) -> Queue | None:
        queue = self._by_id.get(queue_id)
        return None if queue is None or queue.stamp >= batch else queue

    def _publish(self, queue: Queue | None, seq: int, record: Publish, batch: int) -> None:
        if queue is None:
            return
        if seq > queue.next_seq:
            queue.skip_to(seq)
        if record.content is not None:
            queue.append(BODY_HERE | SURVIVES, record.content, record.size, record.expiry_ms, record.priority)
            return
        store = self._shared.persistent
        self.id_max = max(self.id_max, record.stored_id)
        if store.length_of(record.stored_id) != record.size:
            self._dropped[queue.id, seq] = batch
            queue.skip_to(seq + 1)
            return
        store.refer(record.stored_id)
        kind = IN_PERSISTENT | SURVIVES
        queue.append(kind, record.stored_id, record.size, record.expiry_ms, record.priority)

    def _purge(self, queue: Queue, record: Purge) -> None:
        queue.skip_to(max(queue.next_seq, record.upto))
        queue.note_dirty()
        at = 0
        for first, count in [*record.kept, (record.upto, 0)]:
            queue.ack(queue.numbers_between(at, first))
            at = first + count
        kept = {(queue.id, first + i) for first, count in record.kept for i in range(count)}
        for pair in [pair for pair in self._dropped if pair[0] == queue.id and pair[1] < record.upto]:
            if pair not in kept:
                del self._dropped[pair]

    def queues(self) -> list[Queue]:
        """The queues that are left, in order of their ids."""
        return [self._by_id[queue_id] for queue_id in sorted(self._by_id)]


def check_join(store: StoreRecord | None, reads: list[JournalRead], *, manifest: str, journal: str) -> None:
    """Nothing may be missing between manifest and journal. Raises MisplacedRecord."""
    last = reads[-1].scan.frames[-1].number if reads else 0
    if store is not None and store.low <= store.batch and last < store.batch:
        hint = f"is {manifest} of this store?"
        raise MisplacedRecord(journal, 0, f"frames {store.low} to {store.batch}", f"frames up to {last}", hint=hint)


def _truth(shared: Shared, journal: Journal) -> list[str]:
    """Directories that are empty as long as there is no manifest."""
    return [journal.directory, shared.index.directory, shared.persistent.directory]


def recover(
    fs: FileSystem, shared: Shared, journal: Journal, manifest: Manifest, progress: Progress | None
) -> Recovered:
    """All passes. Raises CorruptionError, ConfigError, OSError."""
    found = Recovered()
    found.damaged = load_queues(shared, manifest, found.queues)
    if manifest.store is None and any(fs.list(path) for path in _truth(shared, journal)):
        raise TruncatedRecord(manifest.path, 0, "the manifest of the files beside it", "no file")
    low = 1 if manifest.store is None else manifest.store.low
    reads, cut = read_journals(fs, journal, low, progress)
    check_join(manifest.store, reads, manifest=manifest.path, journal=journal.directory)
    if manifest.store is not None:
        found.next_queue_id = manifest.store.next_queue_id
        found.batch = manifest.store.batch
    has_frames = any(read.scan.frames for read in reads)
    store = shared.persistent
    clean = not cut and not has_frames and take_recovery(fs, manifest.directory, store, found.batch)
    scanned = 0
    if not clean:
        scanned = load_messages(fs, store, progress)
        found.damaged += count_references(shared, found.queues)
        store.next_id = max(store.next_id, manifest.store.next_message_id if manifest.store is not None else 1)
    replay = Replay(shared, found)
    for done, read in enumerate(reads):
        replay.apply_file(read)
        if progress is not None:
            progress("replaying the journal", done + 1, len(reads))
    mend_journal(fs, journal, reads, cut)
    found.queues = replay.queues()
    if not clean:
        store.next_id = max(store.next_id, replay.id_max + 1)
        store.bury()
        store.frozen = bool(found.damaged)
        remove_orphans(fs, shared, found.queues)
    shared.parts.clear()
    shared.acked.clear()
    shared.marked.clear()
    found.report = RecoveryReport(
        clean=clean,
        queues=len(found.queues),
        messages=sum([queue.ready for queue in found.queues]),
        journal_bytes=sum([read.scan.end for read in reads]),
        files_scanned=scanned,
        messages_dropped=len(found.dropped),
        truncated_bytes=cut,
        damaged_segments=found.damaged,
    )
    return found
