"""SQL92 filters for any expression: text goes round, the compiled form and a plain model agree, garbage is refused."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratamq.broker.sql import compile_filter
from stratamq.broker.sql.compiler import compile_tree
from stratamq.broker.sql.numbers import NoNumber, read_double, read_integer, read_long
from stratamq.broker.sql.parser import parse
from stratamq.broker.sql.tree import Long, text_of
from stratamq.errors import SubscriptionIllegal
from stratamq.formats.properties import decode_properties, encode_properties
from tests.property.sql_trees import rows, texts, trees

THROWN = "thrown"
"""What the model says where RocketMQ's evaluation fails; no message is taken then."""

AND = {
    (True, True): True,
    (True, False): False,
    (True, None): None,
    (False, True): False,
    (False, False): False,
    (False, None): False,
    (None, True): None,
    (None, False): False,
    (None, None): None,
}
NOT = {True: False, False: True, None: None}


def model(node: Any, row: dict[str, str]) -> Any:
    """The value of a part, said as plainly as possible: two operands at a time, one truth table, no shortcuts but one.

    The one: what stands behind a FALSE of AND or a TRUE of OR is not looked at, so it cannot fail.
    """
    kind = type(node).__name__
    if kind == "Constant":
        return node.value
    if kind == "Property":
        return row.get(node.name)
    if kind in ("All", "Either"):
        stop = kind == "Either"
        found = condition(node.operands[0], row)
        for operand in node.operands[1:]:
            if found is stop or found is THROWN:
                return found
            other = condition(operand, row)
            if other is THROWN:
                return THROWN
            found = NOT[AND[NOT[found], NOT[other]]] if stop else AND[found, other]
        return found
    if kind == "OneOf":
        value = row.get(node.name)
        return None if value is None else (value in node.texts) ^ node.negated
    if kind == "Not":
        value = condition(node.operand, row)
        return value if value is THROWN else NOT[value]
    if kind in ("Between", "Order", "Equal"):
        return compared(node, kind, row)
    if kind == "Part" and node.text == "":
        return False
    value = model(node.operand, row)
    if value is THROWN:
        return THROWN
    if kind == "IsNull":
        return (value is None) ^ node.negated
    if kind == "Negate":
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return type(value)(-value) if is_number else None
    assert kind == "Part"
    if not isinstance(value, str):
        return False
    place = {"CONTAINS": node.text in value}
    place["STARTSWITH"] = value[: len(node.text)] == node.text
    place["ENDSWITH"] = value[-len(node.text) :] == node.text
    return place[node.keyword] ^ node.negated


def condition(node: Any, row: dict[str, str]) -> Any:
    value = model(node, row)
    return False if isinstance(value, str) and value is not THROWN else value


def compared(node: Any, kind: str, row: dict[str, str]) -> Any:
    if kind == "Between":
        first, second = ("<", ">") if node.negated else (">=", "<=")
        low = ordered(first, node.operand, node.low, row)
        if low is THROWN or low is node.negated:
            return low
        high = ordered(second, node.operand, node.high, row)
        if high is THROWN:
            return THROWN
        return NOT[AND[NOT[low], NOT[high]]] if node.negated else AND[low, high]
    if kind == "Order":
        return ordered(node.symbol, node.left, node.right, row)
    left, right = model(node.left, row), model(node.right, row)
    if THROWN in (left, right) and (left is THROWN or right is THROWN):
        return THROWN
    if left is None:
        found: Any = True if right is None else None
    elif right is None:
        found = False
    else:
        order = order_of(left, right)
        if order is THROWN:
            return THROWN
        found = order == 0
    return NOT[found] if node.negated else found


def ordered(symbol: str, left_node: Any, right_node: Any, row: dict[str, str]) -> Any:
    left = model(left_node, row)
    if left is None or left is THROWN:
        return left
    right = model(right_node, row)
    if right is None or right is THROWN:
        return right
    if isinstance(left, str) and isinstance(right, str):
        left = read(read_double, left)
        right = read(read_double, right)
        if THROWN in (left, right):
            return THROWN
    order = order_of(left, right)
    if order is THROWN:
        return THROWN
    return {">": order > 0, ">=": order >= 0, "<": order < 0, "<=": order <= 0}[symbol]


def read(reader: Any, text: str) -> Any:
    try:
        return reader(text)
    except NoNumber:
        return THROWN


def order_of(left: Any, right: Any) -> Any:
    def java(value: Any) -> str:
        names = {str: "String", bool: "Boolean", int: "Integer", Long: "Long", float: "Double"}
        return names[type(value)]

    readers = {"Integer": read_integer, "Long": read_long, "Double": read_double}
    pair = java(left), java(right)
    if pair[0] == "String" and pair[1] in readers:
        left = read(readers[pair[1]], left)
    elif pair[1] == "String" and pair[0] in readers:
        right = read(readers[pair[0]], right)
    elif pair == ("String", "Boolean"):
        left = left.lower() == "true"
    elif pair == ("Boolean", "String"):
        return THROWN
    elif "Boolean" in pair and pair != ("Boolean", "Boolean"):
        return -1
    if THROWN in (left, right) and (left is THROWN or right is THROWN):
        return THROWN
    if "Double" in pair:
        left, right = double_key(float(left)), double_key(float(right))
    return -1 if left < right else 1 if left > right else 0


def double_key(number: float) -> tuple[int, float, int]:
    if math.isnan(number):
        return (1, 0.0, 0)
    return (0, number, 0 if number == 0 and math.copysign(1, number) < 0 else 1)


@given(trees)
def test_an_expression_written_and_read_is_the_same(tree):
    text = text_of(tree)
    assert parse(text)[0] == tree


@given(trees, st.lists(rows, max_size=6))
def test_the_compiled_form_agrees_with_the_plain_model(tree, asked):
    compiled = compile_tree(tree)
    whole = compile_filter(text_of(tree))
    for row in asked:
        try:
            found: Any = compiled(row)
        except NoNumber:
            found = THROWN
        expected = condition(tree, row)
        assert found is expected
        kept = decode_properties(encode_properties(row))
        if kept == row:
            assert whole.matches(encode_properties(row)) is (expected is True)


@given(st.text(max_size=60) | st.lists(st.sampled_from(
    ["a", "b", "'x'", "5", "5.0", "(", ")", ",", "=", "<>", ">", "-", "+", "NOT", "AND", "OR", "IN", "IS", "NULL",
     "BETWEEN", "CONTAINS", "TRUE", "--", "/*", "*/", "\n"]), max_size=14).map(" ".join))  # fmt: skip
def test_any_text_is_a_filter_or_a_typed_error(text):
    with contextlib.suppress(SubscriptionIllegal):
        made = compile_filter(text)
        assert made.matches("a\x015\x02") in (True, False)
        assert text_of(parse(text)[0])


@pytest.mark.parametrize("reader", [read_integer, read_long, read_double])
@given(text=texts | st.text(max_size=12))
def test_any_text_is_a_number_or_none(reader, text):
    with contextlib.suppress(NoNumber):
        assert isinstance(reader(text), int | float)
