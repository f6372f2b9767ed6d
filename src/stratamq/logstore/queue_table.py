"""All consume queues of a store: found by (topic, queue id), written and synced a bounded number at a time.

A batch that touches a few queues writes their units at once. One that touches many leaves them in memory, where readers
find them, until the checkpoint round or until many wait: so a thousand messages for a thousand queues cost no thousand
writes. What a crash takes is made again from the log.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from stratamq.errors import StrayFile
from stratamq.files.filesystem import FileSystem
from stratamq.files.handles import HandleCache
from stratamq.formats.batch_consume_queue import BATCH_UNIT_BYTES
from stratamq.logstore import layout
from stratamq.logstore.batch_queue import BatchConsumeQueue
from stratamq.logstore.commit_log import SyncWork
from stratamq.logstore.consume_queue import QUEUE_DIRECTORY, ConsumeQueue
from stratamq.logstore.light_queues import LMQ_PREFIX, is_light_name
from stratamq.logstore.plain_queue import PlainConsumeQueue
from stratamq.logstore.types import Arrival, QueueKey

BATCH_FILE_BYTES: Final = 13_800_000
"""Length of a file of a queue of batches where no setting says another."""
SYNC_FILES_MAX: Final = 256
"""Consume-queue files synced in one round, so that a round takes a bounded time with ten thousand queues."""


_logger = logging.getLogger(__name__)


class QueueTable(dict[tuple[str, int], ConsumeQueue]):
    """Consume queues by (topic, queue id)."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        file_bytes: int,
        handles: HandleCache,
        *,
        batch_file_bytes: int = BATCH_FILE_BYTES,
        batch_topics: Iterable[str] = (),
    ) -> None:
        super().__init__()
        self.directory = directory
        self.file_bytes = file_bytes
        self.batch_directory = os.path.join(os.path.dirname(directory), layout.BATCH_CONSUME_QUEUE)
        self.batch_file_bytes = batch_file_bytes
        self.batch_topics = set(batch_topics)
        """Topics whose queues are made as queues of batches."""
        self._fs = fs
        self._handles = handles
        self.plain: dict[tuple[str, int], PlainConsumeQueue] = {}
        """The queues of which every unit is one message."""
        self.light_count = 0
        """How many of them are light queues."""
        self.waiting: dict[ConsumeQueue, tuple[int, int]] = {}
        """Queues with units in memory only, oldest first: place and store time of the first such record."""
        self.waiting_units = 0
        self._unsettled: list[ConsumeQueue] = []
        self._settled_count = 0
        self._settled_print = 0
        self.dirty: dict[str, tuple[int, int]] = {}
        """Files with unsynced units, oldest first: path -> (physical offset, store time) of the first such record."""
        self._new_directories: dict[str, None] = {}

    def load(self) -> None:
        """Find the queues on disk; their ends are not looked for yet. Raises StrayFile, BadLength."""
        if self._fs.stat(self.directory) is None:
            self._fs.make_directory(self.directory)
        self._fit_batch_files()
        batches = list(self._listed(self.batch_directory, self.batch_file_bytes, "mapperFileSizeBatchConsumeQueue"))
        plain = list(self._listed(self.directory, self.file_bytes, "mappedFileSizeConsumeQueue"))
        plain_topics = {key.topic for key, bases in plain if bases}
        for key, bases in batches:
            if bases and key.topic in plain_topics:
                path = os.path.join(self.batch_directory, key.topic)
                other = os.path.join(self.directory, key.topic)
                raise StrayFile(path, f"the topic's queues lie at {other} too; move away those that are not its type's")
            if bases:
                self.batch_topics.add(key.topic)
        self.batch_topics -= plain_topics
        for key, bases in (*plain, *batches):
            if bases or (key not in self and key.topic not in self.batch_topics):
                self._add(key, bases)

    def _fit_batch_files(self) -> None:
        """Files of batches that are there say how long such files are, whatever the setting: it is often forgotten."""
        lengths = Counter(
            found.size
            for path in self._paths_below(self.batch_directory, 3)
            if (found := self._fs.stat(path)) is not None and not found.is_directory
        )
        fitting = [size for size in lengths if size and size % BATCH_UNIT_BYTES == 0]
        if len(fitting) == 1 and fitting[0] != self.batch_file_bytes:
            _logger.warning(
                "files in %s have %d bytes, and keep that length; mapperFileSizeBatchConsumeQueue says %d",
                self.batch_directory,
                fitting[0],
                self.batch_file_bytes,
            )
            self.batch_file_bytes = fitting[0]

    def _paths_below(self, directory: str, depth: int) -> list[str]:
        found = self._fs.stat(directory)
        if not depth or found is None or not found.is_directory:
            return [directory] if found is not None and not depth else []
        names = self._fs.list(directory)
        return [path for name in names for path in self._paths_below(os.path.join(directory, name), depth - 1)]

    def _listed(self, directory: str, file_bytes: int, setting: str) -> Iterator[tuple[QueueKey, list[int]]]:
        """The queues that have a directory below ``directory``, and the bases of their files."""
        if self._fs.stat(directory) is None:
            return
        for topic in self._fs.list(directory):
            if not layout.is_topic_name(topic) and not is_light_name(topic):
                continue
            topic_directory = os.path.join(directory, topic)
            found = self._fs.stat(topic_directory)
            if found is None or not found.is_directory:
                continue
            for name in self._fs.list(topic_directory):
                if QUEUE_DIRECTORY.match(name) is not None:
                    path = os.path.join(topic_directory, name)
                    bases = layout.list_stream_files(self._fs, path, file_bytes, setting=setting, derived=True)
                    yield QueueKey(topic, int(name)), bases

    def set_kind(self, topic: str, *, is_batch: bool) -> bool:
        """Say whether the queues of a topic are queues of batches; False when it has queues of the other kind."""
        if (topic in self.batch_topics) == is_batch:
            return True
        there = [queue for queue in self.values() if queue.key.topic == topic]
        if any(queue.bases or queue.next_offset or queue.batch_start >= 0 for queue in there):
            return False
        for queue in there:
            self.remove(queue)
        if is_batch:
            self.batch_topics.add(topic)
        else:
            self.batch_topics.discard(topic)
        return True

    def open(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made in memory when it is new. The caller has checked the topic's name."""
        queue = self.get((topic, queue_id))
        return queue if queue is not None else self._add(QueueKey(topic, queue_id), [])

    def _add(self, key: QueueKey, bases: list[int]) -> ConsumeQueue:
        queue: ConsumeQueue
        names = (key.topic, str(key.queue_id))
        if key.topic in self.batch_topics:
            directory = os.path.join(self.batch_directory, *names)
            queue = BatchConsumeQueue(key, directory, self.batch_file_bytes, bases, self._fs, self._handles)
        else:
            directory = os.path.join(self.directory, *names)
            queue = self.plain[key] = PlainConsumeQueue(key, directory, self.file_bytes, bases, self._fs, self._handles)
            self.light_count += key.topic.startswith(LMQ_PREFIX)
        self[key] = queue
        self._unsettled.append(queue)
        return queue

    def commit(self, queues: Iterable[ConsumeQueue], start: int, end: int, store_timestamp: int) -> list[Arrival]:
        """A batch with messages of ``queues`` is in the log, from ``start`` to ``end``. Its units wait in memory."""
        arrivals = []
        waiting = self.waiting
        for queue in queues:
            codes = queue.end_batch(end)
            self.waiting_units += len(codes)
            if queue not in waiting:
                waiting[queue] = (start, store_timestamp)
            # The tags of a batch are those of its messages: whoever waits looks for himself.
            arrivals.append(Arrival(queue.key, queue.next_offset, () if queue.is_batch else codes))
        return arrivals

    def oldest_waiting(self, queues_max: int) -> list[ConsumeQueue]:
        """The queues whose units wait longest."""
        return list(islice(self.waiting, queues_max))

    def write_waiting(self, queues: Sequence[ConsumeQueue], *, units_left: int = -1) -> None:
        """Write the units of ``queues`` that wait; stop when only ``units_left`` units of all queues still do.

        Raises OSError at the first failure; what is not written goes on waiting.
        """
        for queue in queues:
            if self.waiting_units <= units_left:
                return
            before = queue.waiting_units
            try:
                self.write((queue,), *self.waiting[queue])
            finally:
                self.waiting_units -= before - queue.waiting_units
            del self.waiting[queue]

    def write(self, queues: Iterable[ConsumeQueue], physical_offset: int, store_timestamp: int) -> None:
        """Write the pending units of ``queues``, whose first unsynced record is at or behind the given position.

        Raises OSError at the first failure.
        """
        for queue in queues:
            files_before = len(queue.bases)
            try:
                touched = queue.write_pending()
            except OSError:
                self._note_created(queue, files_before)
                for base in queue.bases[-2:]:
                    self.dirty.setdefault(queue.path_of(base), (physical_offset, store_timestamp))
                raise
            for path in touched:
                if path not in self.dirty:
                    self.dirty[path] = (physical_offset, store_timestamp)
            if len(queue.bases) != files_before:
                self._note_created(queue, files_before)

    def _note_created(self, queue: ConsumeQueue, files_before: int) -> None:
        self._new_directories[queue.directory] = None
        if not files_before:
            topic_directory = os.path.dirname(queue.directory)
            self._new_directories[topic_directory] = None
            self._new_directories[os.path.dirname(topic_directory)] = None
            if queue.is_batch:
                self._new_directories[os.path.dirname(self.batch_directory)] = None

    def note_changed(self, queue: ConsumeQueue) -> None:
        """Recovery changed the files of ``queue`` in another way than by `write`: they must be synced too."""
        for base in queue.bases:
            self.dirty.setdefault(queue.path_of(base), (0, 0))
        self._new_directories[queue.directory] = None

    def detach_oldest(self, queue: ConsumeQueue) -> str:
        """Let a queue begin one file later; returns the path, which the caller deletes."""
        path = queue.detach_oldest()
        self.dirty.pop(path, None)
        return path

    def remove(self, queue: ConsumeQueue) -> ConsumeQueue | None:
        """Remove a queue from table and disk; the newest file goes first, so that the rest is a queue at any moment.

        Messages of it that wait for their commit outlive it: they begin a new queue, which is returned.
        Raises OSError; the queue then is out of the table, and what is left of its files is on the disk.
        """
        del self[queue.key]
        if self.plain.pop(queue.key, None) is not None:
            self.light_count -= queue.key.topic.startswith(LMQ_PREFIX)
        if self.waiting.pop(queue, None) is not None:
            self.waiting_units -= queue.waiting_units
        if queue in self._unsettled:
            self._unsettled.remove(queue)
        else:
            self._settled_count -= 1
            self._settled_print -= name_print(queue)
        for base in queue.bases:
            self.dirty.pop(queue.path_of(base), None)
        while queue.bases:
            path = queue.path_of(queue.bases.pop())
            self._handles.forget(path)
            self._fs.remove(path)
        following = None
        if queue.batch_start >= 0:
            following = self.open(*queue.key)
            following.take_batch(queue)
        queue.destroy()
        self._new_directories.pop(queue.directory, None)
        return following

    def take_sync_work(self, *, everything: bool = False) -> SyncWork:
        """The oldest dirty files (`SYNC_FILES_MAX` at most, or all of them) to be synced now; they count as clean from
        here on, so a failure of that sync must fail the store."""
        paths = list(self.dirty) if everything else list(self.dirty)[:SYNC_FILES_MAX]
        for path in paths:
            del self.dirty[path]
        directories = list(self._new_directories)
        self._new_directories.clear()
        return SyncWork(paths, directories)

    def settle(self, physical_offset: int) -> tuple[int, int]:
        """How many queues hold units of records below ``physical_offset``, and a number that stands for which.

        The offset must not go back from call to call. Cost: nothing for queues that were counted before.
        """
        if self._unsettled:
            waiting = []
            for queue in self._unsettled:
                if queue.first_physical_offset < physical_offset:
                    self._settled_count += 1
                    self._settled_print += name_print(queue)
                else:
                    waiting.append(queue)
            self._unsettled = waiting
        return self._settled_count, self._settled_print & 0xFFFFFFFF

    def prints_with_ends(self) -> tuple[int, int]:
        """Like `settle` for all queues, and taking in where each begins and ends: what a clean stop leaves behind."""
        filled = [queue for queue in self.values() if queue.bases]
        return len(filled), sum(name_print(queue, with_ends=True) for queue in filled) & 0xFFFFFFFF


def name_print(queue: ConsumeQueue, *, with_ends: bool = False) -> int:
    """A number that stands for a queue's name, or for its name, begin and end; of many they are added up."""
    text = f"{queue.key.topic}/{queue.key.queue_id}"
    if with_ends:
        text += f" {queue.bases[0]} {queue.filed_offset}"
    return zlib.crc32(text.encode())
