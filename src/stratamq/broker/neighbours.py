"""Other brokers, as far as this one asks them: the leader of a static topic's queue answers for its older parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from stratamq.protocols.remoting.codes import ResponseCode


class NeighbourAnswer(NamedTuple):
    """What another broker answered. Whoever could not be asked counts as answering SYSTEM_ERROR."""

    code: int
    remark: str | None
    ext: Mapping[str, str]
    body: bytes


Answered = Callable[[NeighbourAnswer], None]


class Neighbours(Protocol):
    """Asks other brokers."""

    def ask(self, broker_name: str, code: int, ext: Mapping[str, str], answered: Answered) -> None:
        """Send a request to a broker's master. ``answered`` is called exactly once; it must not raise."""
        ...


class NoNeighbours:
    """For a broker that knows no other."""

    def ask(self, broker_name: str, code: int, ext: Mapping[str, str], answered: Answered) -> None:
        """Answer that nobody could be asked."""
        remark = f"broker {broker_name} is not known here"
        answered(NeighbourAnswer(ResponseCode.SYSTEM_ERROR, remark, {}, b""))
