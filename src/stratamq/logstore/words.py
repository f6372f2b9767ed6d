"""Numbers of a store in words: times, flags."""

from __future__ import annotations

from datetime import UTC, datetime

from stratamq.formats.message import (
    SYS_BORN_HOST_V6,
    SYS_COMPRESSED,
    SYS_COMPRESSION_MASK,
    SYS_INNER_BATCH,
    SYS_MULTI_TAGS,
    SYS_NEED_UNWRAP,
    SYS_STORE_HOST_V6,
    SYS_TRANSACTION_MASK,
)

TRANSACTION_STATES = {
    0x0: "",
    0x4: "prepared transaction",
    0x8: "committed transaction",
    0xC: "rolled back transaction",
}
COMPRESSIONS = {0x000: "zlib (old clients)", 0x100: "LZ4", 0x200: "Zstandard", 0x300: "zlib"}


def format_ms(ms: int) -> str:
    """Milliseconds since the epoch as UTC time; the number itself when that is no time; ``never`` for 0."""
    if ms <= 0:
        return "never"
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def describe_sys_flag(flag: int) -> str:
    """The meaning of the bits of a record's sys flag."""
    found = []
    if flag & SYS_COMPRESSED:
        found.append(f"body compressed with {COMPRESSIONS.get(flag & SYS_COMPRESSION_MASK, 'an unknown method')}")
    elif flag & SYS_COMPRESSION_MASK:
        found.append(f"compression bits {flag & SYS_COMPRESSION_MASK:#x}, but the body is not compressed")
    names = (
        (SYS_MULTI_TAGS, "topic with several tags"),
        (SYS_BORN_HOST_V6, "born host is IPv6"),
        (SYS_STORE_HOST_V6, "store host is IPv6"),
        (SYS_NEED_UNWRAP, "needs unwrapping"),
        (SYS_INNER_BATCH, "several messages in one body"),
    )
    found.extend(text for bit, text in names if flag & bit)
    state = TRANSACTION_STATES[flag & SYS_TRANSACTION_MASK]
    if state:
        found.append(state)
    if flag & ~0x7FF:
        found.append(f"unknown bits {flag & 0xFFFFF800:#x}")
    return ", ".join(found) or "nothing special"
