"""SQL92 filters: what is decided, what is refused and where, and that nothing can exhaust the broker."""

from __future__ import annotations

import sys

import pytest

from stratamq.broker.sql import compile_filter
from stratamq.broker.sql.lexer import EXPRESSION_CHARACTERS_MAX
from stratamq.broker.sql.parser import DEPTH_MAX, NODES_MAX
from stratamq.errors import SubscriptionIllegal
from stratamq.formats.properties import encode_properties


def matches(expression: str, **properties: str) -> bool:
    return compile_filter(expression).matches(encode_properties(properties))


@pytest.mark.parametrize(
    ("expression", "wanted", "unwanted"),
    [
        ("price > 5", "6", "5"),
        ("price > 5", "+6", "6.5"),  # no Integer: the whole expression takes nothing
        ("price > 5.0", "6.5", "5"),
        ("price > 5.0", " 6d ", "6_0"),
        ("price BETWEEN 5 AND 7", "7", "8"),
        ("price NOT BETWEEN 5 AND 7", "8", "7"),
        ("price = '5'", "5", "5.0"),
        ("price <> 5", "6", "5"),
        ("price >= -5", "-5", "-6"),
        ("price = 3000000000", "3000000000", "3000000001"),
        ("price < 5", "4", "3000000000000000000000"),
        ("price IN ('a', 'it''s')", "it's", "its"),
        ("price NOT IN ('a')", "b", "a"),
        ("price IS NOT NULL AND price contains 'b'", "abc", "ac"),
        ("price STARTSWITH 'a' AND price not ENDSWITH 'c'", "ab", "abc"),
        ("price = TRUE", "True", "yes"),
        ("price /* why */ > -- so\n 5", "6", "4"),
    ],
)
def test_messages_are_taken_by_their_properties(expression, wanted, unwanted):
    assert matches(expression, price=wanted)
    assert not matches(expression, price=unwanted)


@pytest.mark.parametrize(
    ("expression", "taken"),
    [
        ("a IS NULL", True),
        ("a > 5", False),
        ("NOT (a > 5)", False),
        ("a > 5 OR b = 'x'", True),
        ("a > 5 AND b = 'x'", False),
        ("NOT (a > 5 AND b = 'y')", True),
        ("a <> 5", False),
        ("b <> a", True),
        ("a = c", True),
        ("a NOT IN ('x')", False),
        ("a NOT CONTAINS 'x'", False),
        ("b > 5 OR TRUE", False),  # x is no number
        ("TRUE OR b > 5", True),
        ("b", False),
    ],
)
def test_absent_properties_are_null(expression, taken):
    assert matches(expression, b="x") is taken


@pytest.mark.parametrize(
    ("expression", "character", "text"),
    [
        ("", 1, "found the end"),
        ("price >", 8, "found the end"),
        ("price ! 5", 7, "'!' has no meaning"),
        ("price = 'x", 9, "not closed by '"),
        ("price > /* x", 9, "not closed by"),
        ("price > 5 6", 11, "'6' stands behind the end"),
        ("price LIKE 'x'", 7, "'LIKE' stands behind the end"),
        ("(price > 5", 11, r"expected \)"),
        ("NOT price > 5", 1, "parentheses help"),
        ("price > 'x'", 9, "only numbers and properties"),
        ("price = NULL", 9, "IS NULL"),
        ("price IN (5)", 11, "expected a text"),
        ("5 IN ('x')", 1, "name of a property"),
        ("price BETWEEN 7 AND 5", 15, "smaller bound first"),
        ("price = 1 AND 5", 15, "expected a condition"),
        ("price = 9223372036854775808", 9, "greater than"),
        ("price = 1e999", 9, "too large"),
        ("price = 1e-999", 9, "too small"),
        ("price IS 5", 10, "NULL or NOT NULL"),
        ("price NOT 5", 11, "behind NOT"),
        ("TRUE = 5", 1, "conditions only"),
    ],
)
def test_errors_say_what_is_wrong_and_where(expression, character, text):
    with pytest.raises(SubscriptionIllegal, match=f"character {character}: .*{text}"):
        compile_filter(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "x" * (EXPRESSION_CHARACTERS_MAX + 1),
        "a OR " * NODES_MAX + "a",
        "(" * 5000 + "a" + ")" * 5000,
        "NOT " * 3000 + "a",
        "- " * 5000 + "5 = 5",
        "a IS NULL" + " IS NULL" * 1000,
        "a = b" + " = b" * 200,
    ],
    ids=["long", "many", "parentheses", "not", "minus", "postfix", "chain"],
)
def test_expressions_that_would_cost_too_much_are_refused(expression):
    with pytest.raises(SubscriptionIllegal, match=r"at most|more than"):
        compile_filter(expression)


def test_what_is_allowed_needs_little_of_the_stack():
    nested = "NOT (" * (DEPTH_MAX - 2) + "a = 5" + ")" * (DEPTH_MAX - 2)
    wide = " OR ".join(["a = 5"] * (NODES_MAX // 3 - 1))
    depth, frame = 0, sys._getframe()
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    kept = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 12 * DEPTH_MAX)
    try:
        assert compile_filter(nested).matches("a\x015\x02") is True
        assert compile_filter(wide).matches("a\x015\x02") is True
        with pytest.raises(SubscriptionIllegal):
            compile_filter("(" * (DEPTH_MAX + 1) + "a" + ")" * (DEPTH_MAX + 1))
    finally:
        sys.setrecursionlimit(kept)


def test_long_lists_and_many_names_are_served():
    names = " AND ".join(f"p{number} = '{number}'" for number in range(100))
    row = {f"p{number}": str(number) for number in range(100)}
    assert matches(names, **row)
    assert not matches(names, **(row | {"p50": "x"}))
    listed = ", ".join(f"'{number}'" for number in range(1000))
    assert matches(f"p IN ({listed})", p="999")
    assert not matches(f"p IN ({listed})", p="1000")


def test_an_expression_is_compiled_once():
    assert compile_filter("once = 1") is compile_filter("once = 1")
