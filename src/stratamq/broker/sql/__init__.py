"""SQL92 filters: an expression over a message's properties, parsed, checked and compiled as RocketMQ does it.

Pure: text in, a function out. What calls it over stored records is `logstore.filtered_read`.

Source: docs/protocols/sql92.md; apache/rocketmq filter/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from stratamq.broker.sql.compiler import Evaluate, compile_tree, names_of
from stratamq.broker.sql.numbers import NoNumber
from stratamq.broker.sql.parser import parse
from stratamq.broker.sql.tree import Value
from stratamq.formats.properties import decode_properties, find_property

CACHED_EXPRESSIONS_MAX: Final = 128
"""Compiled expressions kept besides those in use; the largest take 280 KiB each."""
_SEARCHED_NAMES_MAX: Final = 4
"""Up to so many names are looked for one by one; beyond, all properties are decoded."""


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A compiled expression. ``cost`` is the number of its parts."""

    expression: str
    cost: int
    names: tuple[str, ...]
    _evaluate: Evaluate = field(repr=False, compare=False)

    def evaluate(self, values: Mapping[str, str]) -> Value:
        """TRUE, FALSE or NULL for properties. Raises NoNumber where RocketMQ's evaluation fails."""
        return self._evaluate(values)

    def matches(self, properties: str) -> bool:
        """Whether the message with this property text is wanted. Never fails. Cost: some microseconds."""
        names = self.names
        if len(names) <= _SEARCHED_NAMES_MAX:
            found = {name: find_property(properties, name) for name in names}
            values = {name: value for name, value in found.items() if value is not None}
        else:
            values = decode_properties(properties)
        try:
            return self._evaluate(values) is True
        except NoNumber:
            return False


@lru_cache(maxsize=CACHED_EXPRESSIONS_MAX)
def compile_filter(expression: str) -> SqlFilter:
    """Parse, check and compile. Raises SubscriptionIllegal, which says what is wrong at which character."""
    node, cost = parse(expression)
    return SqlFilter(expression, cost, tuple(sorted(names_of(node))), compile_tree(node))
