"""A parsed SQL92 expression, and its text.

``text_of`` writes what the parser reads back to the same tree: every part stands in parentheses.

Values have Java's types, because RocketMQ reads a property's text as the type of what it is compared with: an ``int``
is an Integer, a `Long` a Long, a ``float`` a Double.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

INT32: Final = range(-(2**31), 2**31)
INT64_MAX: Final = 2**63 - 1


class Long(int):
    """A whole number of Java's type Long; plain ``int`` stands for Integer."""


Value: TypeAlias = "str | bool | int | float | None"


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal: text, number, TRUE, FALSE or NULL."""

    value: Value


@dataclass(frozen=True, slots=True)
class Property:
    """A property of the message, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Negate:
    """``-operand``: a number's negative; NULL for all else, properties included."""

    operand: Node


@dataclass(frozen=True, slots=True)
class Not:
    """``NOT operand``."""

    operand: Node


@dataclass(frozen=True, slots=True)
class All:
    """``a AND b AND ...``."""

    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """``a OR b OR ...``."""

    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Equal:
    """``left = right``, or with ``negated`` ``left <> right``."""

    left: Node
    right: Node
    negated: bool = False


@dataclass(frozen=True, slots=True)
class IsNull:
    """``operand IS NULL``, or with ``negated`` ``operand IS NOT NULL``."""

    operand: Node
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """``left > right`` and the like; ``symbol`` is one of ``> >= < <=``."""

    symbol: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Between:
    """``operand BETWEEN low AND high``, or with ``negated`` NOT BETWEEN."""

    operand: Node
    low: Node
    high: Node
    negated: bool = False


@dataclass(frozen=True, slots=True)
class OneOf:
    """``name IN ('a', 'b')``, or with ``negated`` NOT IN."""

    name: str
    texts: tuple[str, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """``operand CONTAINS 'text'``; ``keyword`` is CONTAINS, STARTSWITH or ENDSWITH."""

    keyword: str
    operand: Node
    text: str
    negated: bool = False


Node: TypeAlias = "Constant|Property|Negate|Not|All|Either|Equal|IsNull|Order|Between|OneOf|Part"


def is_boolean(node: Node) -> bool:
    """Whether a part is TRUE, FALSE or NULL by its form; TRUE, FALSE and NULL themselves are."""
    if isinstance(node, Constant):
        return node.value is None or isinstance(node.value, bool)
    return not isinstance(node, Property | Negate)


def text_of(node: Node) -> str:
    """The expression as text, every compound part in parentheses."""
    match node:
        case Constant(value):
            return _literal(value)
        case Property(name):
            return name
        case Negate(operand):
            return f"- {_inner(operand)}"
        case Not(operand):
            return f"NOT {_inner(operand)}"
        case All(operands):
            return " AND ".join(map(_inner, operands))
        case Either(operands):
            return " OR ".join(map(_inner, operands))
        case Equal(left, right, negated):
            return f"{_inner(left)} {'<>' if negated else '='} {_inner(right)}"
        case IsNull(operand, negated):
            return f"{_inner(operand)} IS {'NOT ' if negated else ''}NULL"
        case Order(symbol, left, right):
            return f"{_inner(left)} {symbol} {_inner(right)}"
        case Between(operand, low, high, negated):
            return f"{_inner(operand)} {'NOT ' if negated else ''}BETWEEN {_inner(low)} AND {_inner(high)}"
        case OneOf(name, texts, negated):
            return f"{name} {'NOT ' if negated else ''}IN ({', '.join(map(_literal, texts))})"
        case Part(keyword, operand, text, negated):
            return f"{_inner(operand)} {'NOT ' if negated else ''}{keyword} {_literal(text)}"


def _inner(node: Node) -> str:
    return text_of(node) if isinstance(node, Constant | Property) else f"({text_of(node)})"


def _literal(value: Value) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(float(value)) if isinstance(value, float) else str(int(value))
