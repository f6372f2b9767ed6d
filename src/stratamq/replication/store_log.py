"""The core's log over the files of a store, and what is read from them when a member starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import NamedTuple

from stratamq.clock import Clock
from stratamq.files.durable import replace_file
from stratamq.formats.message import decode_record
from stratamq.logstore.types import Message
from stratamq.replication.control import (
    CONTROL_TOPIC,
    Deletion,
    Table,
    control_message,
    decode_control,
    encode_members,
)
from stratamq.replication.log_store import Added, BadFrame, MemberStore
from stratamq.replication.members import Config, Configs, Control, Epochs
from stratamq.replication.snapshot import Snapshot, decode_snapshot, encode_snapshot, path_of


class StoreLog:
    """Fills `ports.Log`. ``tables`` collects tables among the records that came: (end of the record, table)."""

    def __init__(self, store: MemberStore, node: str, host: bytes, clock: Clock) -> None:
        self._store = store
        self._node = node
        self._host = host
        self._clock = clock
        self.tables: list[tuple[int, Table]] = []
        self.take_snapshot: Callable[[int], bytes] = lambda start: b""
        """Gives what stands for the log below a position."""
        self.was_installed = False
        """A leader's snapshot is in place: the store must be opened anew."""
        store.deleted_topic = self._deleted_topic

    @property
    def start(self) -> int:
        """See `ports.Log`."""
        return self._store.min_physical_offset

    @property
    def end(self) -> int:
        """See `ports.Log`."""
        return self._store.max_physical_offset

    def read(self, start: int, limit: int, bytes_max: int) -> Sized:
        """See `ports.Log`."""
        return self._store.read_records(start, limit, bytes_max)

    def write(self, body: Sized) -> Sequence[Control]:
        """See `ports.Log`. Raises BadFrame too."""
        assert isinstance(body, bytes | memoryview)
        controls = []
        for scanned, record in self._store.write_records(memoryview(body)):
            if scanned.topic == CONTROL_TOPIC:
                end = scanned.physical_offset + scanned.size
                found = decode_control(decode_record(record).body, scanned.physical_offset, end, self._store.directory)
                if isinstance(found, Table):
                    self.tables.append((end, found))
                elif isinstance(found, Control):
                    controls.append(found)
        return controls

    def _deleted_topic(self, added: Added) -> str:
        scanned = added.scanned
        if scanned.topic != CONTROL_TOPIC:
            return ""
        start = scanned.physical_offset
        found = decode_control(decode_record(added.record).body, start, start + scanned.size, self._store.directory)
        return found.topic if isinstance(found, Deletion) else ""

    def truncate(self, offset: int) -> None:
        """See `ports.Log`."""
        self._store.drop_batch()
        self._store.truncate(offset)
        self.tables = [entry for entry in self.tables if entry[0] <= offset]

    def snapshot(self) -> Sized:
        """See `ports.Log`."""
        return self.take_snapshot(self.start)

    def install(self, start: int, snapshot: Sized) -> None:
        """See `ports.Log`. Raises CorruptionError for what is no snapshot."""
        assert isinstance(snapshot, bytes | memoryview)
        where = path_of(self._store.directory)
        found = decode_snapshot(bytes(snapshot), where)
        if found.start != start or start % self._store.config.commit_log_file_bytes:
            raise BadFrame(where, start, "a snapshot of where a file begins", found.start)
        replace_file(where, encode_snapshot(found._replace(is_install=True)))
        self.was_installed = True

    def append_control(self, term: int, config: Config, *, starts_term: bool) -> Control:
        """See `ports.Log`."""
        self._store.commit()
        begin = self.end
        body = encode_members(term, self._node, config, begin, starts_term=starts_term)
        self.append_body(body)
        return Control(begin, self.end, term if starts_term else 0, config)

    def append_body(self, body: bytes) -> int:
        """Add a control record at once. Returns its end. Raises StoreFull, StoreFailed."""
        self._store.append([self._message(body)])
        self._store.commit()
        return self.end

    def _message(self, body: bytes) -> Message:
        return control_message(body, self._host, self._clock.wall_ms())


class Loaded(NamedTuple):
    """What a member finds in its log and in the snapshot before it."""

    epochs: Epochs
    configs: Configs
    tables: dict[str, tuple[int, Table]]
    """The newest of each name, with the end of its record."""
    trims: list[tuple[int, int]]
    """(end of the record, position) of every trim."""


def load_tables(store: MemberStore, initial: Config, snapshot: Snapshot | None = None) -> Loaded:
    """Terms, members, the newest tables and trims, read from the snapshot and the control records behind it."""
    found = Loaded(Epochs(), Configs(initial), {}, [])
    begin = 0
    if snapshot is not None:
        begin = snapshot.start
        found.tables.update(snapshot.tables)
        for term, start in snapshot.epochs:
            found.epochs.add(term, start)
        if snapshot.members is not None:
            found.configs.add(*snapshot.members)
    for view in store.controls(CONTROL_TOPIC):
        record = decode_record(view)
        start = record.physical_offset
        if start < begin:
            continue
        control = decode_control(record.body, start, start + record.size, store.directory)
        if isinstance(control, Table):
            found.tables[control.name] = (start + record.size, control)
        elif isinstance(control, Control):
            _load_control(found, control, begin)
    return found


def _load_control(found: Loaded, control: Control, begin: int) -> None:
    if control.term and control.start >= begin:  # else the snapshot has it: a blank began the term
        found.epochs.add(control.term, control.start)
    if control.config is not None:
        found.configs.add(control.end, control.config)
    if control.trim:
        found.trims.append((control.end, control.trim))
