"""Settings of the queue store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stratamq.config.declare import Section, setting
from stratamq.units import GiB, KiB, MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStoreConfig(Section):
    """The queue store, which holds AMQP's durable queues. Where RabbitMQ has the same setting it has the same name."""

    TITLE: ClassVar[str] = "AMQP queues"
    PREFIX: ClassVar[str] = "amqp_"

    queue_index_embed_msgs_below: int = setting(
        4 * KiB,
        at_least=0,
        at_most=MiB,
        doc="Messages of fewer bytes (body, properties and headers) are kept in the queue index, others in the message "
        "store; 0 sends all to the store.",
    )
    queue_index_segment_entry_count: int = setting(
        16_384, at_least=2, at_most=1 << 20, doc="Entries of one index segment. Fixed for the life of a store."
    )
    queue_index_journal_bytes_max: int = setting(
        64 * MiB,
        at_least=4 * KiB,
        doc="Length of the journal above which what it holds is moved into the segments; bounds recovery.",
    )
    journal_file_bytes: int = setting(
        16 * MiB, at_least=KiB, at_most=GiB, doc="Length of one journal file above which the next is begun."
    )
    msg_store_file_size_limit: int = setting(
        16 * MiB, at_least=KiB, at_most=2 * GiB, doc="Length of a message file above which the next is begun."
    )
    write_buffer_bytes: int = setting(
        MiB, at_least=KiB, at_most=256 * MiB, doc="Bytes of large messages that are gathered before they are written."
    )
    sync_interval_ms: int = setting(
        25, at_least=1, at_most=10_000, doc="Longest time that something written waits for its sync."
    )
    message_bytes_max: int = setting(
        128 * MiB, at_least=KiB, at_most=GiB, doc="Longest message (body and properties) that is taken."
    )
    recent_bytes_max: int = setting(
        64 * MiB,
        at_least=4 * KiB,
        doc="Memory for messages that are in the journal but not yet in a segment, transient ones included. Above it "
        "they are moved to their segments.",
    )
    index_cache_bytes_max: int = setting(
        32 * MiB, at_least=4 * KiB, doc="Memory for index entries read back from segments."
    )
    body_cache_bytes_max: int = setting(
        16 * MiB, at_least=0, doc="Memory for large bodies written or read lately; they are on disk as well."
    )
    gc_garbage_percent: int = setting(
        50, at_least=1, at_most=99, doc="Share of garbage in the message files above which they are collected."
    )
    gc_files_min: int = setting(3, at_least=1, doc="Message files below which nothing is collected.")
    maintenance_bytes: int = setting(
        MiB, at_least=KiB, at_most=GiB, doc="Bytes that one step of collection or of a journal flush may move."
    )
    vm_memory_high_watermark_percent: int = setting(
        60, at_least=1, at_most=100, doc="Share of the machine's memory above which publishers are blocked."
    )
    definitions_journal_bytes_max: int = setting(
        MiB,
        at_least=KiB,
        at_most=GiB,
        doc="Length of the journal of declared things above which definitions.json is written anew.",
    )
    disk_free_limit_bytes: int = setting(
        50_000_000, at_least=0, doc="Free space of the data disk below which publishers are blocked."
    )
