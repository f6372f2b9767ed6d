"""Values that cross the log store's border: what is put, what comes back, how reads end."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from stratamq.units import Buffer


class Message(msgspec.Struct, kw_only=True, gc=False):
    """One message to be stored, as the broker hands it over. The store assigns offsets, store time and CRC.

    ``topic`` and ``properties`` are text; hosts are in the record's own form (`formats.message.encode_host`).
    ``wait_for_sync`` is RocketMQ's property WAIT: false means answer without waiting for the sync.

    A msgspec struct because one is made for every send: it costs a third of what a dataclass does.
    """

    topic: str
    queue_id: int
    body: Buffer
    properties: str
    born_timestamp: int
    born_host: bytes
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    wait_for_sync: bool = True


class PutStatus(enum.Enum):
    """How a put ended. The first four mean stored; RocketMQ's names."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    IN_SYNC_REPLICAS_NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    OS_PAGE_CACHE_BUSY = "OS_PAGE_CACHE_BUSY"
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = "LMQ_CONSUME_QUEUE_NUM_EXCEEDED"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


class Appended(NamedTuple):
    """Where one message went."""

    physical_offset: int
    size: int
    queue_offset: int
    store_timestamp: int


class AppendedMany(NamedTuple):
    """Where many messages of one queue went: they follow each other in the queue, from these offsets on."""

    physical_offset: int
    queue_offset: int
    message_count: int
    store_timestamp: int


class PutResult(NamedTuple):
    """Answer to one put (one message or one batch). ``appended`` is empty when nothing was stored."""

    status: PutStatus
    appended: Sequence[Appended] = ()
    remark: str = ""


PutDone = Callable[[PutResult], None]
"""Called once, on the loop's thread, when a put may be answered."""


class GetStatus(enum.Enum):
    """How a read of a queue ended; RocketMQ's names."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_RESET = "OFFSET_RESET"
    """The store never says this: an operator has set the offset (RocketMQ's name all the same)."""


class GetResult(NamedTuple):
    """What one read of a queue found.

    ``records`` are views of whole commit-log records, adjacent ones joined into one view; ``message_count`` counts the
    records in them. The views stay usable as long as they are held; hold them briefly.
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: Sequence[memoryview] = ()
    message_count: int = 0
    total_bytes: int = 0
    suggest_slave: bool = False


class RecordFilter(Protocol):
    """Decides by a message's properties whether it is wanted."""

    @property
    def cost(self) -> int:
        """How long one decision takes, in parts of some tenths of a microsecond; reads look at fewer records then."""
        ...

    def matches(self, properties: str) -> bool:
        """Whether the message with this property string is wanted. Never fails."""
        ...


class QueueKey(NamedTuple):
    """Names one queue."""

    topic: str
    queue_id: int


class Arrival(NamedTuple):
    """Tells who waits for messages that a queue can now be read up to ``max_offset``; tags codes of what came."""

    queue: QueueKey
    max_offset: int
    tags_codes: Sequence[int]


class QueryResult(NamedTuple):
    """Records found by key, in the order of the log, and how far the index goes."""

    records: Sequence[memoryview]
    index_last_update_timestamp: int
    index_last_update_physical_offset: int


class StoreStatus(NamedTuple):
    """The store's positions and state at one moment.

    ``min_physical_offset`` <= ``flushed_physical_offset`` <= ``max_physical_offset``; what is appended but not
    committed is ``pending_bytes`` more. ``failure`` is empty while the store takes writes, else it says why not.
    ``index_behind`` tells that keys of the newest records are missing from the index until the disk has room again.
    """

    min_physical_offset: int
    max_physical_offset: int
    flushed_physical_offset: int
    pending_bytes: int
    commit_log_files: int
    queues: int
    last_store_timestamp: int
    is_writable: bool
    index_behind: bool
    failure: str = ""


Progress = Callable[[str, int, int], None]
"""Called now and then during long work: what is being done, done so far, total (same unit)."""
