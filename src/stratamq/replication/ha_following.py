"""A slave's side of one connection to its master, without socket, clock or disk: frames in, whole records out.

A slave that has a log already asks for its last bytes once more and compares them with its own before it takes anything
new. The plain stream has no other way to find out that two logs went different ways: a master that lost its unsynced
end writes other records at the same offsets, and by offset alone a slave would follow without a word.

What does not belong to this slave's log ends in `LogsDiffer`, which no new connection heals. What may be better on the
next connection is a `RemoteProtocolError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stratamq.errors import LogsDiffer, RemoteProtocolError
from stratamq.formats.message import BLANK_BYTES, MAGIC_BLANK, SIZE_AND_MAGIC
from stratamq.replication.ha_wire import Frame

_HEARTBEATS_MIN: Final = 2
"""So many heartbeats in a row at an offset below our end, and the master has nothing more (RocketMQ's may send one
before its first frame)."""


class RecordCutter:
    """Collects log bytes that come in any pieces and hands out runs of whole records.

    A blank, which fills up a file, begins a run and is never its end: so a log always ends with a record.
    """

    def __init__(self, position: int, file_bytes: int, waiting_bytes_max: int) -> None:
        self.position = position
        """Log offset of the first byte that was not handed out."""
        self._file_bytes = file_bytes
        self._waiting_max = waiting_bytes_max
        self._data = bytearray()

    @property
    def received(self) -> int:
        """Log offset behind the last byte that came."""
        return self.position + len(self._data)

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes that follow; return the runs of whole records that are complete now, in order.

        Raises RemoteProtocolError when they cannot be records, or when one is longer than what may wait.
        """
        self._data += data
        runs: list[bytes] = []
        begin = at = good = 0  # where the run begins, how far we looked, where its last record ends
        while len(self._data) - at >= BLANK_BYTES:
            size, magic = SIZE_AND_MAGIC.unpack_from(self._data, at)
            offset = self.position + at
            if size < BLANK_BYTES or size > self._file_bytes - offset % self._file_bytes:
                raise RemoteProtocolError(f"the master's log has no record at offset {offset}: its size is {size}")
            if len(self._data) - at < size:
                break
            if magic == MAGIC_BLANK and good > begin:
                runs.append(bytes(self._data[begin:good]))
                begin = good
            at += size
            if magic != MAGIC_BLANK:
                good = at
        if good > begin:
            runs.append(bytes(self._data[begin:good]))
            begin = good
        del self._data[:begin]
        self.position += begin
        if len(self._data) > self._waiting_max:
            raise RemoteProtocolError(
                f"{len(self._data)} bytes at offset {self.position} are no whole record; pending_bytes_max allows "
                f"{self._waiting_max}"
            )
        return runs


class Following:
    """One connection of a slave.

    Args:
        start: Where the slave's log begins; ``end``: where it ends. Equal: it is empty.
        read: Own log bytes: at most so many from an offset on, at least one below ``end``, within one file.
        compare_bytes: How many of the last own bytes are compared.
        file_bytes: Length of a log file, which must be the master's too.
        waiting_bytes_max: Longest record that is waited for.
    """

    def __init__(
        self,
        *,
        start: int,
        end: int,
        read: Callable[[int, int], memoryview],
        compare_bytes: int,
        file_bytes: int,
        waiting_bytes_max: int,
    ) -> None:
        self._end = end
        self._read = read
        self._file_bytes = file_bytes
        self._waiting_max = waiting_bytes_max
        self._is_empty = start == end
        self._compared = max(start, end - compare_bytes, 1)
        """How far the master's log is known to be the same; never 0, which a master takes for an empty slave."""
        self._heartbeats = 0
        self._cutter: RecordCutter | None = None

    @property
    def is_compared(self) -> bool:
        """Whether the slave's last bytes are the master's."""
        return self._is_empty or self._compared >= self._end

    @property
    def begins_at(self) -> int:
        """Where the log of a slave that was empty begins; meaningful once `receive` returned runs."""
        return self._end

    def report(self, stored: int) -> int:
        """What to tell the master when the log is stored up to ``stored``: 0 for an empty slave."""
        if self._is_empty:
            return 0
        return min(self._compared, stored) if not self.is_compared else stored

    def receive(self, frame: Frame) -> list[bytes]:
        """Take a frame; return runs of whole records that follow the log, each with its place in order.

        Raises:
            LogsDiffer: The master's log is not the one that this slave has followed.
            RemoteProtocolError: The bytes cannot be records.
        """
        if self._is_empty:
            return self._begin(frame)
        expected = self._compared if self._cutter is None else self._cutter.received
        if frame.offset != expected:
            raise LogsDiffer(self._end, f"the master goes on at {frame.offset}, and {expected} was to come")
        if not frame.body:
            self._heartbeat(frame)
            return []
        self._heartbeats = 0
        body = frame.body
        if self._cutter is None:
            body = self._compare(body)
            if self._compared < self._end:
                return []
            self._cutter = RecordCutter(self._end, self._file_bytes, self._waiting_max)
        return self._cutter.feed(body)

    def _begin(self, frame: Frame) -> list[bytes]:
        """The first bytes for an empty log: it begins where the master says, which is where a file begins."""
        if not frame.body:
            return []
        if frame.offset % self._file_bytes:
            raise LogsDiffer(
                self._end,
                f"the master begins at {frame.offset}, where none of our files of {self._file_bytes} bytes begins; "
                "mappedFileSizeCommitLog must be the master's",
            )
        self._is_empty = False
        self._end = self._compared = frame.offset
        self._cutter = RecordCutter(frame.offset, self._file_bytes, self._waiting_max)
        return self._cutter.feed(frame.body)

    def _heartbeat(self, frame: Frame) -> None:
        if self.is_compared:
            return
        self._heartbeats += 1
        if self._heartbeats >= _HEARTBEATS_MIN:
            raise LogsDiffer(self._end, f"the master has nothing more than what it has given, up to {frame.offset}")

    def _compare(self, body: bytes) -> bytes:
        """Compare a master's bytes with our own; returns those behind our end."""
        while body and self._compared < self._end:
            own = self._read(self._compared, min(len(body), self._end - self._compared))
            if own != body[: len(own)]:
                place = self._compared + _first_difference(own, body)
                raise LogsDiffer(self._end, f"the bytes at {place} are not the master's")
            self._compared += len(own)
            body = body[len(own) :]
        return body


def _first_difference(own: memoryview, other: bytes) -> int:
    return next(at for at, (mine, yours) in enumerate(zip(own, other, strict=False)) if mine != yours)
