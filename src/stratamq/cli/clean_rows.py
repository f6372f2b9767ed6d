"""The rows that `stratamq store clean` prints, for a directory and for a running broker alike."""

from __future__ import annotations

from stratamq.cli.output import Item, Kind

GOES = (
    Item("file", "file"),
    Item("when", "when"),
    Item("frees_bytes", "frees", Kind.BYTES),
    Item("reason", "why"),
)
STAYS = (
    Item("file", "file"),
    Item("cause", "stays"),
    Item("due_ms", "expires", Kind.TIME),
    Item("reason", "why"),
)
LOSES = (
    Item("group", "group"),
    Item("topic", "topic"),
    Item("messages", "messages", Kind.COUNT),
    Item("bytes", "bytes", Kind.BYTES),
    Item("oldest_ms", "oldest", Kind.TIME),
)
NOW, AT_START = "now", "a minute after the next start"
NOBODY = "(nobody has read it)"
