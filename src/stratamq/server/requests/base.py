"""What request handlers are made of: the peer they answer to, and the table of who serves what.

A handler is a method marked with `serves`. It gets the peer, the header and the body, and returns the answer as bytes,
or None when it answers later through the peer, or not at all. What it raises is answered as `replies.response_to_error`
says.
A handler runs on the loop's thread and must not wait for anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from stratamq.protocols.remoting.codes import RequestCode
from stratamq.protocols.remoting.command import CommandHeader

CALLS_MAX: Final = 1_000
"""How many requests of ours may wait for one peer's answers."""
SENDS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)
"""Requests that are refused when they have been held back too long; others are served then."""
_MARK: Final = "serves_request_codes"


Answered = Callable[[CommandHeader | None, bytes], None]
"""What is called with a client's answer to a request of ours; with None when none came in time or the client left."""


class Peer(Protocol):
    """The other end of one remoting connection."""

    born_host: bytes
    """The peer's address in the form that records hold."""
    address: str
    """The peer's address as text, ``host:port``."""
    is_closed: bool
    is_clogged: bool
    """Whether the peer does not take what was written to it."""

    def __hash__(self) -> int: ...

    def write(self, data: bytes) -> None:
        """Send a frame, together with whatever else is sent in this turn of the loop."""
        ...

    def write_parts(self, head: bytes, parts: Sequence[memoryview], parts_bytes: int) -> None:
        """Send a frame whose body lies in pieces; they are not copied before they have to be."""
        ...

    def begin_request(self) -> None:
        """Count a request that will be answered later."""
        ...

    def end_request(self) -> None:
        """The request counted before has been dealt with."""
        ...

    def notify(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        """Send a request of our own that needs no answer."""
        ...

    def call(
        self, code: int, ext: dict[str, str], body: bytes, answered: Answered, *, timeout_ms: int = 10_000
    ) -> None:
        """Send a request of our own; ``answered`` is called exactly once, with the answer or with None.

        None comes when the time is up, when the peer leaves, and at once when too many calls wait (`CALLS_MAX`).
        """
        ...

    def defer(self, work: Callable[[], None]) -> None:
        """Do something once the peer takes data again; forgotten when it goes away."""
        ...


Handler = Callable[[Peer, CommandHeader, memoryview], bytes | None]
_F = TypeVar("_F", bound=Callable[..., Any])


def serves(*codes: RequestCode) -> Callable[[_F], _F]:
    """Mark a method as the handler of request codes."""

    def mark(function: _F) -> _F:
        setattr(function, _MARK, codes)
        return function

    return mark


def collect(*families: object) -> dict[int, Handler]:
    """The handlers of some families by request code. A code served twice is our own mistake."""
    handlers: dict[int, Handler] = {}
    for family in families:
        for name in dir(type(family)):
            for code in getattr(getattr(type(family), name), _MARK, ()):
                assert int(code) not in handlers, f"two handlers for {code!r}"
                handlers[int(code)] = getattr(family, name)
    return handlers


def served_codes(family: type[object]) -> dict[RequestCode, str]:
    """The request codes that a family serves, each with the first line of its handler's docstring."""
    found: dict[RequestCode, str] = {}
    for name in dir(family):
        method = getattr(family, name)
        for code in getattr(method, _MARK, ()):
            found[code] = (method.__doc__ or "").strip().split("\n")[0]
    return found
