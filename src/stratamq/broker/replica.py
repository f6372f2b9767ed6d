"""What a broker is to the others of its name, as far as its requests need to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Replica:
    """A master without slaves, unless whoever runs the broker says otherwise."""

    is_slave: bool = False
    """Whether a master's log is copied here: nothing is delivered, checked or counted down then."""
    refuses_reads: bool = False
    """Whether pulls are refused: on a slave without `slaveReadEnable`."""
    far_behind_bytes: int = 0
    """Who reads further behind the log's end than this is sent to a slave; 0: nobody is."""
    facts: Callable[[], dict[str, Any]] = dict
    """What operators are shown of replication, by name."""
