"""From a tree to a function over a message's properties.

A part is TRUE, FALSE or NULL (``None``). NULL comes from absent properties and spreads by three-valued logic: NULL AND
FALSE is FALSE, NULL OR TRUE is TRUE, NOT NULL is NULL. A message is taken when the whole is TRUE.

A text that is compared with a number is read as a number of that number's type; one that is none raises `NoNumber`
through the whole expression, which then takes no message, whatever its other parts say. That is RocketMQ's behaviour,
and AND and OR look at their parts from left to right, only as far as needed.

Source: apache/rocketmq filter/.../ComparisonExpression.java, LogicExpression.java, UnaryExpression.java.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from stratamq.broker.sql.numbers import NoNumber, compare_doubles, read_double, read_integer, read_long
from stratamq.broker.sql.tree import (
    All,
    Between,
    Constant,
    Either,
    Equal,
    IsNull,
    Long,
    Negate,
    Node,
    Not,
    OneOf,
    Order,
    Part,
    Property,
    Value,
)

Evaluate: TypeAlias = Callable[[Mapping[str, str]], Value]

_ORDERS: Final[Mapping[str, frozenset[int]]] = {
    ">": frozenset((1,)),
    ">=": frozenset((0, 1)),
    "<": frozenset((-1,)),
    "<=": frozenset((-1, 0)),
}
"""Which results of a comparison make an order true."""


def compile_tree(node: Node) -> Evaluate:
    """The function of a whole expression. A property that stands for a condition is FALSE, or NULL when absent."""
    return _condition(node)


def names_of(node: Node) -> frozenset[str]:
    """The properties that an expression looks at."""
    match node:
        case Constant():
            return frozenset()
        case Property(name) | OneOf(name):
            return frozenset((name,))
        case Negate(operand) | Not(operand) | IsNull(operand) | Part(_, operand):
            return names_of(operand)
        case Equal(left, right) | Order(_, left, right):
            return names_of(left) | names_of(right)
        case Between(operand, low, high):
            return names_of(operand) | names_of(low) | names_of(high)
        case All(operands) | Either(operands):
            return frozenset[str]().union(*map(names_of, operands))


def _condition(node: Node) -> Evaluate:
    if not isinstance(node, Property):
        return _value(node)
    name = node.name
    return lambda values: None if values.get(name) is None else False


def _value(node: Node) -> Evaluate:
    match node:
        case Constant(value):
            return lambda values: value
        case Property(name):
            return lambda values: values.get(name)
        case Negate(operand):
            return _negate(operand)
        case Not(operand):
            return _not(_condition(operand))
        case All(operands):
            return _all(tuple(map(_condition, operands)))
        case Either(operands):
            return _either(tuple(map(_condition, operands)))
        case Equal(left, right, negated):
            equal = _equal(left, right)
            return _not(equal) if negated else equal
        case IsNull(operand, negated):
            inner = _value(operand)
            return (lambda values: inner(values) is not None) if negated else (lambda values: inner(values) is None)
        case Order(symbol, left, right):
            return _order(symbol, left, right)
        case Between(operand, low, high, negated):
            if negated:
                return _either((_order("<", operand, low), _order(">", operand, high)))
            return _all((_order(">=", operand, low), _order("<=", operand, high)))
        case OneOf(name, texts, negated):
            return _one_of(name, frozenset(texts), negated=negated)
        case Part():
            return _part(node)


# --- logic ---


def _all(parts: tuple[Evaluate, ...]) -> Evaluate:
    def evaluate(values: Mapping[str, str]) -> Value:
        found: Value = True
        for part in parts:
            value = part(values)
            if value is False:
                return False
            if value is None:
                found = None
        return found

    return evaluate


def _either(parts: tuple[Evaluate, ...]) -> Evaluate:
    def evaluate(values: Mapping[str, str]) -> Value:
        found: Value = False
        for part in parts:
            value = part(values)
            if value is True:
                return True
            if value is None:
                found = None
        return found

    return evaluate


def _not(part: Evaluate) -> Evaluate:
    def evaluate(values: Mapping[str, str]) -> Value:
        value = part(values)
        return None if value is None else not value

    return evaluate


def _negate(operand: Node) -> Evaluate:
    inner = _value(operand)

    def evaluate(values: Mapping[str, str]) -> Value:
        value = inner(values)
        if value is None or isinstance(value, str | bool):
            return None
        return Long(-value) if isinstance(value, Long) else -value

    return evaluate


# --- comparisons ---


def _equal(left: Node, right: Node) -> Evaluate:
    if isinstance(left, Property) and isinstance(right, Constant) and isinstance(right.value, str):
        name, text = left.name, right.value

        def evaluate_text(values: Mapping[str, str]) -> Value:
            value = values.get(name)
            return None if value is None else value == text

        return evaluate_text
    left_value, right_value = _value(left), _value(right)

    def evaluate(values: Mapping[str, str]) -> Value:
        first, second = left_value(values), right_value(values)
        if first is None:
            return True if second is None else None
        return second is not None and compare(first, second) == 0

    return evaluate


def _order(symbol: str, left: Node, right: Node) -> Evaluate:
    wanted = _ORDERS[symbol]
    left_value, right_value = _value(left), _value(right)

    def evaluate(values: Mapping[str, str]) -> Value:
        first = left_value(values)
        if first is None:
            return None
        second = right_value(values)
        if second is None:
            return None
        if isinstance(first, str) and isinstance(second, str):
            return compare_doubles(read_double(first), read_double(second)) in wanted
        return compare(first, second) in wanted

    return evaluate


def compare(left: str | bool | int | float, right: str | bool | int | float) -> int:
    """-1, 0 or 1. What cannot be compared is -1. Raises NoNumber, also for a condition before a text.

    Texts are only told apart here, not ordered.
    """
    if isinstance(left, str):
        if isinstance(right, str):
            return 0 if left == right else -1
        if isinstance(right, bool):
            return _sign(left.lower() == "true", right)
        return _compare_numbers(_read_as(right, left), right)
    if isinstance(left, bool):
        if isinstance(right, str):
            raise NoNumber  # RocketMQ fails on a cast here
        return _sign(left, right) if isinstance(right, bool) else -1
    if isinstance(right, bool):
        return -1
    return _compare_numbers(left, _read_as(left, right) if isinstance(right, str) else right)


def _sign(left: int, right: int) -> int:
    return (left > right) - (left < right)


def _read_as(number: int | float, text: str) -> int | float:
    """A text as a number of another one's type."""
    if isinstance(number, float):
        return read_double(text)
    return read_long(text) if isinstance(number, Long) else read_integer(text)


def _compare_numbers(left: int | float, right: int | float) -> int:
    if isinstance(left, float) or isinstance(right, float):
        return compare_doubles(float(left), float(right))
    return _sign(left, right)


# --- texts ---


def _one_of(name: str, texts: frozenset[str], *, negated: bool) -> Evaluate:
    def evaluate(values: Mapping[str, str]) -> Value:
        value = values.get(name)
        return None if value is None else (value in texts) is not negated

    return evaluate


def _part(node: Part) -> Evaluate:
    """FALSE, with NOT as well, where there is no text to look into or nothing to look for."""
    inner, text, negated = _value(node.operand), node.text, node.negated
    if not text:
        return lambda values: False  # and the operand is not looked at
    found: Callable[[str, str], bool] = {
        "CONTAINS": str.__contains__,
        "STARTSWITH": str.startswith,
        "ENDSWITH": str.endswith,
    }[node.keyword]

    def evaluate(values: Mapping[str, str]) -> Value:
        value = inner(values)
        if not isinstance(value, str):
            return False
        return found(value, text) is not negated

    return evaluate
