"""The core's log over the files of a store, and what is read from them when a member starts."""

from __future__ import annotations

from collections.abc import Sequence, Sized

from stratamq.clock import Clock
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
from stratamq.replication.log_store import Added, MemberStore
from stratamq.replication.members import Config, Configs, Control, Epochs


class StoreLog:
    """Fills `ports.Log`. ``tables`` collects tables among the records that came: (end of the record, table)."""

    def __init__(self, store: MemberStore, node: str, host: bytes, clock: Clock) -> None:
        self._store = store
        self._node = node
        self._host = host
        self._clock = clock
        self.tables: list[tuple[int, Table]] = []
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


def load_tables(store: MemberStore, initial: Config) -> tuple[Epochs, Configs, dict[str, tuple[int, Table]]]:
    """Terms, members and the newest tables (with the end of their records), read from the control records."""
    epochs, configs = Epochs(), Configs(initial)
    tables: dict[str, tuple[int, Table]] = {}
    for view in store.controls(CONTROL_TOPIC):
        record = decode_record(view)
        start = record.physical_offset
        found = decode_control(record.body, start, start + record.size, store.directory)
        if isinstance(found, Table):
            tables[found.name] = (start + record.size, found)
            continue
        if isinstance(found, Deletion):
            continue
        if found.term:
            epochs.add(found.term, found.start)
        if found.config is not None:
            configs.add(found.end, found.config)
    return epochs, configs, tables
