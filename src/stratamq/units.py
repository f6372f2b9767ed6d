"""Numbers with a meaning, so that mypy sees a mix-up: offsets, times, sizes."""

from __future__ import annotations

from mmap import mmap
from typing import Final, NewType, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap
"""What codecs read from. (``collections.abc.Buffer`` is only there from Python 3.12 on.)"""

PhysicalOffset = NewType("PhysicalOffset", int)
"""Byte position in the commit log as one endless stream."""

QueueOffset = NewType("QueueOffset", int)
"""Ordinal of a message in one queue of one topic."""

Millis = NewType("Millis", int)
"""Milliseconds: since the Unix epoch where it is a time, else a duration."""

KiB: Final = 1024
MiB: Final = 1024 * KiB
GiB: Final = 1024 * MiB


def format_bytes(count: int) -> str:
    """Write a byte count for people: ``1.5 GiB``; below 1 KiB the exact count."""
    if abs(count) < KiB:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if abs(value) < 1024 or unit == "TiB":
            return f"{value:.1f} {unit}"
    raise AssertionError("unreachable")
