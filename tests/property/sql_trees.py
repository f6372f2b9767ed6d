"""Random SQL92 expressions that are legal, and rows of properties they may be asked about."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from stratamq.broker.sql.tree import (
    INT32,
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
    is_boolean,
)

NAMES = ("a", "b", "_c$1")
TEXTS = (
    "",
    "x",
    "abc",
    "it's",
    "5",
    "-5",
    "+5",
    "05",
    "5.0",
    " 5 ",
    ".5",
    "5.",
    "5d",
    "1e3",
    "NaN",
    "-Infinity",
    "0x1p4",
    "-0.0",
    "true",
    "TRUE",
    "false",
    "2147483647",
    "2147483648",
    "-2147483649",
    "9223372036854775807",
    "9223372036854775808",
    "1_000",
    "\u0665",
    "\U0001d7d3",
    "1e400",
    "- 5",
    "+-5",
    "d",
    "+NaN",
)

texts = st.sampled_from(TEXTS) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
wholes = st.sampled_from((0, 1, 5, 2**31 - 1, 2**31, 2**63 - 1)) | st.integers(0, 2**63 - 1)
doubles = st.sampled_from((0.5, 5.0, 1e3, 1e-7, 1.7e308)) | st.floats(1e-300, 1e300)


def _whole(number: int) -> Constant:
    return Constant(number if number in INT32 else Long(number))


numbers = wholes.map(_whole) | doubles.map(Constant)
properties = st.sampled_from(NAMES).map(Property)
strings = texts.map(Constant)
truths = st.sampled_from((True, False)).map(Constant)
rows: st.SearchStrategy[dict[str, str]] = st.dictionaries(
    st.sampled_from(NAMES), texts.filter(bool), max_size=len(NAMES)
)


def _comparable(conditions: st.SearchStrategy[Node]) -> st.SearchStrategy[Any]:
    return properties | numbers | (numbers | strings | properties | conditions).map(Negate)


def _equal(parts: tuple[Node, Node, bool]) -> bool:
    left, right, _ = parts
    both = isinstance(left, Constant) and isinstance(right, Constant)
    return not (both and is_boolean(left) and not is_boolean(right))


def _in_order(parts: tuple[Node, Node, Node, bool]) -> bool:
    _, low, high, negated = parts
    if negated or not (isinstance(low, Constant) and isinstance(high, Constant)):
        return True
    assert isinstance(low.value, int | float)
    assert isinstance(high.value, int | float)
    return float(low.value) <= float(high.value) and low.value <= high.value


def _compound(conditions: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    condition = conditions | properties
    comparable = _comparable(conditions)
    equatable = comparable | strings | truths | conditions.filter(lambda node: node != Constant(None))
    flag = st.booleans()
    return st.one_of(
        condition.map(Not),
        st.lists(condition, min_size=2, max_size=4).map(tuple).map(All),
        st.lists(condition, min_size=2, max_size=4).map(tuple).map(Either),
        st.tuples(equatable, equatable, flag).filter(_equal).map(lambda parts: Equal(*parts)),
        st.builds(IsNull, equatable | st.just(Constant(None)), flag),
        st.builds(Order, st.sampled_from((">", ">=", "<", "<=")), comparable, comparable),
        st.tuples(comparable, comparable, comparable, flag).filter(_in_order).map(lambda parts: Between(*parts)),
        st.builds(OneOf, st.sampled_from(NAMES), st.lists(texts, min_size=1, max_size=6).map(tuple), flag),
        st.builds(Part, st.sampled_from(("CONTAINS", "STARTSWITH", "ENDSWITH")), equatable, texts, flag),
    )


conditions: st.SearchStrategy[Any] = st.recursive(truths | st.just(Constant(None)), _compound, max_leaves=8)
trees: st.SearchStrategy[Any] = _compound(conditions) | properties | truths
"""Whole expressions."""
