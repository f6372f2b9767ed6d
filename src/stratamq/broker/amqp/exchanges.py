"""Exchanges: where a message goes, by key or headers. Bindings live with the exchange that is their source.

A destination is a queue or another exchange. `Exchange.destinations` says which bindings match one message; walking
from exchange to exchange is `routing`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from stratamq.broker.amqp.topic_trie import TopicTrie
from stratamq.protocols.amqp.replies import PRECONDITION_FAILED, AmqpError
from stratamq.protocols.amqp.values import Table, encode_table, same_value, type_name

EXCHANGE_TYPES: Final = ("direct", "fanout", "topic", "headers")
PREDECLARED: Final[tuple[tuple[str, str, bool], ...]] = (
    ("", "direct", False),
    ("amq.direct", "direct", False),
    ("amq.fanout", "fanout", False),
    ("amq.topic", "topic", False),
    ("amq.headers", "headers", False),
    ("amq.match", "headers", False),
    ("amq.rabbitmq.trace", "topic", True),
)
"""Name, type and whether internal, of what every virtual host begins with."""


@dataclass(frozen=True, slots=True)
class Binding:
    """From an exchange to a queue or an exchange. Two with the same four parts are one."""

    source: str
    destination: str
    kind: Literal["queue", "exchange"]
    routing_key: str
    arguments_bytes: bytes = encode_table({})
    arguments: Table = field(default_factory=dict, compare=False)


class Matcher(Protocol):
    """What makes a type of exchange."""

    needs_headers: bool

    def add(self, binding: Binding) -> None:
        """Know a binding."""
        ...

    def remove(self, binding: Binding) -> None:
        """Forget a binding."""
        ...

    def match(self, key: str, headers: Table) -> Iterable[Binding]:
        """The bindings that match."""
        ...


class DirectMatcher:
    """The key is equal."""

    needs_headers = False

    def __init__(self) -> None:
        self._by_key: dict[str, dict[Binding, None]] = {}

    def add(self, binding: Binding) -> None:
        self._by_key.setdefault(binding.routing_key, {})[binding] = None

    def remove(self, binding: Binding) -> None:
        group = self._by_key.get(binding.routing_key, {})
        group.pop(binding, None)
        if not group:
            self._by_key.pop(binding.routing_key, None)

    def match(self, key: str, headers: Table) -> Iterable[Binding]:
        return self._by_key.get(key, ())


class FanoutMatcher:
    """Everything matches."""

    needs_headers = False

    def __init__(self) -> None:
        self._all: dict[Binding, None] = {}

    def add(self, binding: Binding) -> None:
        self._all[binding] = None

    def remove(self, binding: Binding) -> None:
        self._all.pop(binding, None)

    def match(self, key: str, headers: Table) -> Iterable[Binding]:
        return self._all


class TopicMatcher:
    """The key's words fit a pattern."""

    needs_headers = False

    def __init__(self) -> None:
        self._trie: TopicTrie[Binding] = TopicTrie()

    def add(self, binding: Binding) -> None:
        self._trie.add(binding.routing_key, binding)

    def remove(self, binding: Binding) -> None:
        self._trie.remove(binding.routing_key, binding)

    def match(self, key: str, headers: Table) -> Iterable[Binding]:
        return self._trie.match(key)


class HeadersMatcher:
    """The message's headers fit the binding's arguments."""

    needs_headers = True

    def __init__(self) -> None:
        self._all: dict[Binding, None] = {}

    def add(self, binding: Binding) -> None:
        check_headers_arguments(binding.arguments)
        self._all[binding] = None

    def remove(self, binding: Binding) -> None:
        self._all.pop(binding, None)

    def match(self, key: str, headers: Table) -> Iterable[Binding]:
        return [binding for binding in self._all if headers_match(binding.arguments, headers)]


_HEADER_MODES: Final = ("all", "any", "all-with-x", "any-with-x")


def check_headers_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse an ``x-match`` that does not exist. Raises AmqpError 406."""
    if "x-match" not in arguments:
        return
    mode = arguments["x-match"]
    if not isinstance(mode, str):
        raise AmqpError(
            PRECONDITION_FAILED, f"Invalid x-match field type {type_name(mode)} (value {mode!r}); expected longstr"
        )
    if mode not in _HEADER_MODES:
        text = f'Invalid x-match field value <<"{mode}">>; expected all, any, all-with-x, or any-with-x'
        raise AmqpError(PRECONDITION_FAILED, text)


def headers_match(arguments: Mapping[str, Any], headers: Mapping[str, Any]) -> bool:
    """Whether headers fit the arguments of a binding."""
    mode = str(arguments.get("x-match", "all"))
    with_x = mode.endswith("-with-x")
    wanted = [
        (name, value)
        for name, value in arguments.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
    ]
    fits = (name in headers and (value is None or same_value(value, headers[name])) for name, value in wanted)
    return any(fits) if mode.startswith("any") else all(fits)


_MATCHERS: Final[Mapping[str, Callable[[], Matcher]]] = {
    "direct": DirectMatcher,
    "fanout": FanoutMatcher,
    "topic": TopicMatcher,
    "headers": HeadersMatcher,
}


class Exchange:
    """One exchange and the bindings that leave it."""

    __slots__ = (
        "_matcher",
        "alternate",
        "arguments",
        "auto_delete",
        "bindings",
        "durable",
        "internal",
        "kind",
        "name",
        "policy",
    )

    def __init__(
        self,
        name: str,
        kind: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Table | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = arguments or {}
        self.policy: dict[str, Any] = {}
        self.alternate = ""
        self.bindings: dict[Binding, None] = {}
        self._matcher = _MATCHERS[kind]()
        self.apply_policy({})

    @property
    def needs_headers(self) -> bool:
        """Whether headers decide, so that a route cannot be remembered by its key."""
        return self._matcher.needs_headers

    def apply_policy(self, definition: dict[str, Any]) -> None:
        """Take what a policy says; arguments of the declaration win."""
        self.policy = definition
        own = self.arguments.get("alternate-exchange")
        self.alternate = str(own if own is not None else definition.get("alternate-exchange", ""))

    def add(self, binding: Binding) -> bool:
        """Know a binding; False when it was there already. Raises AmqpError 406 for arguments that cannot be."""
        if binding in self.bindings:
            return False
        self._matcher.add(binding)
        self.bindings[binding] = None
        return True

    def remove(self, binding: Binding) -> bool:
        """Forget a binding; False when it was not there."""
        if binding not in self.bindings:
            return False
        del self.bindings[binding]
        self._matcher.remove(binding)
        return True

    def destinations(self, key: str, headers: Table) -> Iterator[tuple[str, str]]:
        """Kind and name of where a message goes from here. The same one may come twice."""
        for binding in self._matcher.match(key, headers):
            yield binding.kind, binding.destination
