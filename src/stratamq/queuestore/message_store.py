"""The shared message store: one body for any number of queues, in append-only files, with reference counts in memory.

There are two: the persistent one and the transient one, which is wiped at start. Ids ascend, files are in the order of
their ids, so an id is found by two binary searches and the tables need 20 bytes a message: id, offset, length, count.

Reference counts are derived: a count is the number of live index entries that name the id, and recovery counts them
anew. A message whose count falls to 0 is *dying*: its bytes become garbage only when the acknowledgement that killed it
is synced, because until then a crash may bring the index entry back. Nothing that is not garbage is ever removed.

How files are collected: `queuestore.collector`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from typing import Final

import numpy as np
import numpy.typing as npt

from stratamq.config import QueueStoreConfig
from stratamq.errors import TruncatedRecord
from stratamq.files.filesystem import FileSystem
from stratamq.files.handles import HandleCache
from stratamq.formats.queue_messages import (
    RECORD,
    MessageTable,
    decode_record,
    empty_table,
    encode_footer,
    encode_record,
    record_bytes,
)
from stratamq.queuestore import layout
from stratamq.units import Buffer

DEAD: Final = 0xFFFF_FFFF
"""Reference count of a message that is garbage for good."""


class MessageFile:
    """One file and what it holds. ``live_bytes`` is what is not garbage; ``size`` the end of the records."""

    __slots__ = ("covers", "first_id", "live_bytes", "number", "refs", "sealed", "size", "table")

    def __init__(self, number: int, first_id: int, table: MessageTable, refs: array[int], *, sealed: bool) -> None:
        self.number = number
        self.covers = number
        """Newest number of the files that this one stands for."""
        self.first_id = first_id
        """No id below it is in this file, none from it on is in an older one."""
        self.table = table
        self.refs = refs
        self.sealed = sealed
        self.size = table.offsets[-1] + record_bytes(table.lengths[-1]) if table.ids else 0
        self.live_bytes = 0
        self.count_live()

    def count_live(self) -> None:
        """Work out ``live_bytes`` from the reference counts."""
        lengths = np.frombuffer(self.table.lengths, np.uint32).astype(np.uint64)
        sizes = lengths + (RECORD.size + 7) & ~np.uint64(7)
        self.live_bytes = int(sizes[np.frombuffer(self.refs, np.uint32) != DEAD].sum())

    def index_of(self, message_id: int) -> int:
        """Row of an id in the table; -1 when it is not here."""
        at = bisect_left(self.table.ids, message_id)
        return at if at < len(self.table.ids) and self.table.ids[at] == message_id else -1


class MessageStore:
    """Bodies by id. Not thread-safe. `write` may raise OSError; the bytes then stay gathered and are written later."""

    def __init__(
        self, fs: FileSystem, directory: str, config: QueueStoreConfig, handles: HandleCache, *, durable: bool
    ) -> None:
        self.directory = directory
        self.files: list[MessageFile] = []
        self.next_id = 1
        self.next_number = 0
        self.durable = durable
        self.touched: set[str] = set()
        """Files written since they were last taken for a sync."""
        self.directory_touched = False
        self.buffered_bytes = 0
        self.batch = 1
        """The batch with whose sync what is gathered now is on the disk."""
        self.changed = False
        """Whether something became garbage since the collector last looked."""
        self.frozen = False
        """Whether references may be missing because an index segment is damaged: then nothing is collected."""
        self._fs = fs
        self._handles = handles
        self._limit = config.msg_store_file_size_limit
        self._cache_max = config.body_cache_bytes_max
        self._firsts: list[int] = []
        self._buffers: list[tuple[MessageFile, int, list[Buffer]]] = []
        self._unwritten: dict[int, bytes] = {}
        self._cache: OrderedDict[int, bytes] = OrderedDict()
        self._cache_bytes = 0
        self._dying: deque[tuple[int, int]] = deque()
        self._unfooted: deque[tuple[int, MessageFile]] = deque()
        """Sealed files without a footer, and the batch with which their records are synced."""

    # --- files ------------------------------------------------------------------------------------------------

    def path_of(self, number: int) -> str:
        """Path of a message file."""
        return layout.numbered(self.directory, number, layout.MESSAGE_SUFFIX)

    def set_files(self, files: list[MessageFile]) -> None:
        """Take these files, in the order of their ids, as all there are."""
        self.files = files
        self.changed = True
        self._firsts = [file.first_id for file in files]

    @property
    def total_bytes(self) -> int:
        """Bytes of all records, garbage included."""
        return sum([file.size for file in self.files])

    @property
    def garbage_bytes(self) -> int:
        """Bytes of records nobody needs."""
        return sum([file.size - file.live_bytes for file in self.files])

    @property
    def cache_bytes(self) -> int:
        """Memory held for bodies."""
        return self._cache_bytes + self.buffered_bytes

    @property
    def table_bytes(self) -> int:
        """Memory held for the tables."""
        return sum([20 * len(file.refs) for file in self.files])

    # --- messages ---------------------------------------------------------------------------------------------

    def add(self, content: bytes, references: int) -> int:
        """Take a body for ``references`` index entries; returns its id. Written by `write`."""
        file = self.files[-1] if self.files else None
        if file is None or file.sealed or file.size >= self._limit:
            file = self._roll(file)
        message_id = self.next_id
        self.next_id = message_id + 1
        length = len(content)
        table = file.table
        table.ids.append(message_id)
        table.offsets.append(file.size)
        table.lengths.append(length)
        file.refs.append(references)
        self._gather(file, encode_record(message_id, content))
        size = record_bytes(length)
        file.size += size
        file.live_bytes += size
        self._unwritten[message_id] = content
        return message_id

    def _gather(self, file: MessageFile, parts: tuple[Buffer, ...]) -> None:
        if not self._buffers or self._buffers[-1][0] is not file:
            self._buffers.append((file, file.size, []))
        self._buffers[-1][2].extend(parts)
        self.buffered_bytes += sum([len(part) for part in parts])

    def _roll(self, file: MessageFile | None) -> MessageFile:
        if file is not None and not file.sealed:
            self.seal(file)
        new = MessageFile(self.next_number, self.next_id, empty_table(), array("I"), sealed=False)
        self.next_number += 1
        self.files.append(new)
        self._firsts.append(new.first_id)
        return new

    def seal(self, file: MessageFile) -> None:
        """Append nothing more to a file. Its footer is written once its records are synced, so that it is true."""
        file.sealed = True
        if self.durable:
            self._unfooted.append((self.batch, file))

    def write(self) -> None:
        """Write everything gathered. Raises OSError; what was not written is still gathered then."""
        while self._buffers:
            file, offset, parts = self._buffers[0]
            path = self.path_of(file.number)
            if offset == 0 and self._fs.stat(path) is None:
                self._handles.create(path, 0)
                self.directory_touched = True
            data = b"".join(parts)
            self._fs.write(self._handles.get(path), [data], offset)
            self.touched.add(path)
            self._buffers.pop(0)
            self.buffered_bytes -= len(data)
        for message_id, content in self._unwritten.items():
            self._remember(message_id, content)
        self._unwritten.clear()

    def read(self, message_id: int) -> bytes:
        """The body of a message. Raises CorruptionError (an id that no file holds, too), OSError."""
        content = self._unwritten.get(message_id)
        if content is None:
            content = self._cache.get(message_id)
        if content is not None:
            return content
        file, at = self._find(message_id)
        if at < 0:
            path = self.path_of(file.number) if self.files else self.directory
            raise TruncatedRecord(path, 0, f"message {message_id}", "a file without it")
        offset = file.table.offsets[at]
        path = self.path_of(file.number)
        data = self._fs.read(self._handles.get(path), record_bytes(file.table.lengths[at]), offset)
        content = decode_record(data, message_id, path=path, offset=offset)
        self._remember(message_id, content)
        return content

    def has(self, message_id: int) -> bool:
        """Whether a body is there under this id."""
        return self._find(message_id)[1] >= 0

    def length_of(self, message_id: int) -> int:
        """Length of the body under this id; -1 when there is none."""
        file, at = self._find(message_id)
        return file.table.lengths[at] if at >= 0 else -1

    def _find(self, message_id: int) -> tuple[MessageFile, int]:
        if not self.files:
            return MessageFile(0, 0, empty_table(), array("I"), sealed=True), -1
        file = self.files[max(0, bisect_right(self._firsts, message_id) - 1)]
        return file, file.index_of(message_id)

    def _remember(self, message_id: int, content: bytes) -> None:
        if len(content) > self._cache_max or message_id in self._cache:
            return
        self._cache[message_id] = content
        self._cache_bytes += len(content)
        while self._cache_bytes > self._cache_max:
            self._cache_bytes -= len(self._cache.popitem(last=False)[1])

    # --- references -------------------------------------------------------------------------------------------

    def release(self, message_id: int, batch: int) -> None:
        """One index entry less names this id; ``batch`` is the one whose sync makes that true for good."""
        file, at = self._find(message_id)
        if at < 0:
            return
        count = file.refs[at]
        if count == 0 or count == DEAD:
            raise AssertionError(f"message {message_id} released more often than it was named")
        file.refs[at] = count - 1
        if count == 1:
            dropped = self._cache.pop(message_id, None)
            if dropped is not None:
                self._cache_bytes -= len(dropped)
            self._dying.append((batch, message_id))

    def refer(self, message_id: int) -> None:
        """One index entry more names this id (recovery only). Raises KeyError when it is not there."""
        file, at = self._find(message_id)
        if at < 0:
            raise KeyError(message_id)
        file.refs[at] += 1

    def bury(self) -> None:
        """All references are counted (recovery only): what nobody names is garbage."""
        self._dying.clear()
        self.changed = True
        for file in self.files:
            refs = np.frombuffer(file.refs, np.uint32).copy()
            refs[refs == 0] = DEAD
            file.refs = array("I", refs.tobytes())
            file.count_live()

    def refer_many(self, ids: npt.NDArray[np.uint64]) -> None:
        """One index entry more names each of these ids, which may repeat (recovery only). Unknown ones are left out."""
        ids = np.sort(ids)
        for file in self.files:
            lo, hi = np.searchsorted(ids, [file.first_id, (file.table.ids[-1] if file.table.ids else 0) + 1])
            if lo >= hi:
                continue
            there = np.frombuffer(file.table.ids, np.uint64)
            found, counts = np.unique(ids[lo:hi], return_counts=True)
            at = np.searchsorted(there, found)
            at_safe = np.minimum(at, len(there) - 1)
            known = there[at_safe] == found
            refs = np.frombuffer(file.refs, np.uint32).copy()
            refs[at_safe[known]] += counts[known].astype(np.uint32)
            file.refs = array("I", refs.tobytes())

    def references(self, message_id: int) -> int:
        """How many index entries name this id; 0 when it is not there or garbage."""
        file, at = self._find(message_id)
        return 0 if at < 0 or file.refs[at] == DEAD else file.refs[at]

    def settle(self, batch: int) -> None:
        """Everything up to ``batch`` is synced: what died until then is garbage."""
        while self._unfooted and self._unfooted[0][0] <= batch:
            _, file = self._unfooted.popleft()
            if file in self.files:
                self._gather(file, (encode_footer(file.table, file.covers),))
        dying = self._dying
        while dying and dying[0][0] <= batch:
            _, message_id = dying.popleft()
            file, at = self._find(message_id)
            if at >= 0 and file.refs[at] == 0:
                file.refs[at] = DEAD
                file.live_bytes -= record_bytes(file.table.lengths[at])
                self.changed = True

    def replace(self, old: list[MessageFile], new: MessageFile | None) -> None:
        """Put one file (or none) in the place of neighbours."""
        for buffer in [buffer for buffer in self._buffers if buffer[0] in old]:  # a footer that came too late
            self._buffers.remove(buffer)
            self.buffered_bytes -= sum(map(len, buffer[2]))
        start = self.files.index(old[0])
        self.files[start : start + len(old)] = [new] if new is not None else []
        self._firsts = [file.first_id for file in self.files]
