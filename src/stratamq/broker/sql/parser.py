"""From a SQL92 expression's text to its tree, with RocketMQ's grammar and RocketMQ's checks.

::

    or         = and { OR and }
    and        = equality { AND equality }
    equality   = comparison { ("=" | "<>") comparison | IS [NOT] NULL }
    comparison = unary { (">" | ">=" | "<" | "<=") unary
                       | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) text
                       | [NOT] BETWEEN unary AND unary
                       | [NOT] IN "(" text { "," text } ")" }
    unary      = { "+" | "-" | NOT } primary
    primary    = text | number | TRUE | FALSE | NULL | name | "(" or ")"

NOT binds tighter than a comparison: ``NOT a > 5`` is refused, ``NOT (a > 5)`` is meant.

Bounds: `lexer.EXPRESSION_CHARACTERS_MAX`, `NODES_MAX` parts, `DEPTH_MAX` nested ones, so that neither parsing nor
evaluation can exhaust the stack.

Source: apache/rocketmq filter/.../SelectorParser.jj, ComparisonExpression.java (checks), ConstantExpression.java.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from stratamq.broker.sql.lexer import DECIMAL, END, FLOATING, NAME, STRING, Token, illegal, tokens_of
from stratamq.broker.sql.tree import (
    INT32,
    INT64_MAX,
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
from stratamq.errors import SubscriptionIllegal

NODES_MAX: Final = 1024
"""Most parts of one expression: operators, names and literals."""
DEPTH_MAX: Final = 48
"""Most parts inside one another, and most parentheses and signs around one."""

_ORDERS: Final = (">", ">=", "<", "<=")
_PARTS: Final = ("CONTAINS", "STARTSWITH", "ENDSWITH")
_CONSTANTS: Final = {"TRUE": Constant(True), "FALSE": Constant(False), "NULL": Constant(None)}


def parse(expression: str) -> tuple[Node, int]:
    """The tree of an expression and the number of its parts. Raises SubscriptionIllegal, which says where."""
    return _Parser(expression).whole()


class _Parser:
    """Recursive descent; each method reads one rule of the grammar."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = tokens_of(expression)
        self._at = 0
        self._nodes = 0
        self._nesting = 0
        self._depths: dict[int, int] = {}
        self._kept: list[Node] = []

    def whole(self) -> tuple[Node, int]:
        start = self._token
        node = self._boolean(self._or(), start)
        if self._token.kind != END:
            raise self._error(f"{self._token.text!r} stands behind the end of the expression")
        return node, self._nodes

    # --- tokens ---

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _takes(self, *kinds: str) -> bool:
        """Step over these tokens when they are next."""
        follow = self._tokens[self._at : self._at + len(kinds)]
        if tuple(token.kind for token in follow) != kinds:
            return False
        self._at += len(kinds)
        return True

    def _need(self, kind: str) -> Token:
        if self._token.kind != kind:
            raise self._error(f"expected {kind}, found {self._token.text or END}")
        return self._next()

    def _error(self, text: str, token: Token | None = None) -> SubscriptionIllegal:
        return illegal(text, (token or self._token).at, self._expression)

    # --- bounds ---

    def _made(self, node: Node, *parts: Node) -> Node:
        """Count a part and how deep it is."""
        self._nodes += 1
        depth = 1 + max((self._depths[id(part)] for part in parts), default=0)
        if self._nodes > NODES_MAX:
            raise self._error(f"more than {NODES_MAX} parts")
        if depth > DEPTH_MAX:
            raise self._error(f"more than {DEPTH_MAX} parts inside one another")
        self._depths[id(node)] = depth
        self._kept.append(node)  # while it lives, nothing else has its id
        return node

    # --- rules ---

    def _or(self) -> Node:
        return self._chain("OR", self._and, Either)

    def _and(self) -> Node:
        return self._chain("AND", self._equality, All)

    def _chain(
        self, keyword: str, operand: Callable[[], Node], kind: Callable[[tuple[Node, ...]], All | Either]
    ) -> Node:
        start = self._token
        first = operand()
        if self._token.kind != keyword:
            return first
        operands = [self._boolean(first, start)]
        while self._takes(keyword):
            start = self._token
            operands.append(self._boolean(operand(), start))
        return self._made(kind(tuple(operands)), *operands)

    def _equality(self) -> Node:
        start = self._token
        left = self._comparison()
        while True:
            token = self._token
            if token.kind in ("=", "<>"):
                self._next()
                right_start = self._token
                right = self._comparison()
                self._check_equal(left, start, right, right_start)
                left = self._made(Equal(left, right, token.kind == "<>"), left, right)
            elif self._takes("IS", "NULL"):
                left = self._made(IsNull(left), left)
            elif self._takes("IS", "NOT", "NULL"):
                left = self._made(IsNull(left, True), left)
            elif token.kind == "IS":
                self._next()
                raise self._error(f"expected NULL or NOT NULL, found {self._token.text or END}")
            else:
                return left

    def _comparison(self) -> Node:
        start = self._token
        left = self._unary()
        while True:
            token = self._token
            if token.kind in _ORDERS:
                self._next()
                right_start = self._token
                right = self._unary()
                self._check_order(left, start)
                self._check_order(right, right_start)
                left = self._made(Order(token.kind, left, right), left, right)
                continue
            negated = token.kind == "NOT"
            keyword = self._tokens[self._at + 1] if negated else token
            if keyword.kind not in (*_PARTS, "BETWEEN", "IN"):
                if negated:
                    raise self._error(f"expected BETWEEN, IN, {', '.join(_PARTS)} behind NOT", keyword)
                return left
            self._at += 2 if negated else 1
            if keyword.kind == "BETWEEN":
                left = self._between(left, start, negated=negated)
            elif keyword.kind == "IN":
                left = self._one_of(left, start, negated=negated)
            else:
                left = self._made(Part(keyword.kind, left, self._text(), negated), left)

    def _between(self, operand: Node, start: Token, *, negated: bool) -> Node:
        low_start = self._token
        low = self._unary()
        self._need("AND")
        high_start = self._token
        high = self._unary()
        self._check_order(operand, start)
        self._check_order(low, low_start)
        self._check_order(high, high_start)
        if not negated and isinstance(low, Constant) and isinstance(high, Constant):
            assert isinstance(low.value, int | float)
            assert isinstance(high.value, int | float)
            if high.value < low.value:
                raise self._error("BETWEEN needs its smaller bound first", low_start)
        return self._made(Between(operand, low, high, negated), operand, low, high)

    def _one_of(self, operand: Node, start: Token, *, negated: bool) -> Node:
        if not isinstance(operand, Property):
            raise self._error("IN needs the name of a property before it", start)
        self._need("(")
        texts = [self._text()]
        while self._takes(","):
            texts.append(self._text())
        self._need(")")
        return self._made(OneOf(operand.name, tuple(texts), negated))

    def _unary(self) -> Node:
        signs: list[Token] = []
        while self._token.kind in ("+", "-", "NOT"):
            signs.append(self._next())
            if len(signs) > DEPTH_MAX:
                raise self._error(f"more than {DEPTH_MAX} parts inside one another")
        start = self._token
        node = self._primary()
        for sign in reversed(signs):
            if sign.kind == "-":
                node = self._made(Negate(node), node)
            elif sign.kind == "NOT":
                node = self._made(Not(self._boolean(node, start)), node)
        return node

    def _primary(self) -> Node:
        token = self._next()
        if token.kind == "(":
            self._nesting += 1
            if self._nesting > DEPTH_MAX:
                raise self._error(f"more than {DEPTH_MAX} parts inside one another", token)
            node = self._or()
            self._need(")")
            self._nesting -= 1
            return node
        if token.kind in _CONSTANTS:
            return self._made(Constant(_CONSTANTS[token.kind].value))
        if token.kind == NAME:
            return self._made(Property(token.text))
        if token.kind == STRING:
            self._at -= 1
            return self._made(Constant(self._text()))
        if token.kind == DECIMAL:
            return self._made(Constant(self._whole_number(token)))
        if token.kind == FLOATING:
            return self._made(Constant(self._number(token)))
        raise self._error(f"expected a value, a name or (, found {token.text or END}", token)

    # --- literals ---

    def _text(self) -> str:
        return self._need(STRING).text[1:-1].replace("''", "'")

    def _whole_number(self, token: Token) -> int:
        digits = token.text.rstrip("lL")
        if len(digits) > 19 or int(digits) > INT64_MAX:
            raise self._error(f"{digits[:40]} is greater than {INT64_MAX}", token)
        number = int(digits)
        return number if number in INT32 else Long(number)

    def _number(self, token: Token) -> float:
        number = float(token.text)
        if math.isinf(number):
            raise self._error("the number is too large for a double", token)
        if number == 0.0 and token.text.lower().partition("e")[0].strip("0.") != "":
            raise self._error("the number is too small for a double", token)
        return number

    # --- checks ---

    def _boolean(self, node: Node, start: Token) -> Node:
        if is_boolean(node) or isinstance(node, Property):
            return node
        raise self._error("expected a condition, found a value", start)

    def _check_order(self, node: Node, start: Token) -> None:
        if isinstance(node, Constant) and (isinstance(node.value, str | bool) or node.value is None):
            raise self._error("only numbers and properties are compared by >, >=, <, <= and BETWEEN", start)
        if is_boolean(node):
            raise self._error("a condition cannot be compared by >, >=, <, <= or BETWEEN; parentheses help", start)

    def _check_equal(self, left: Node, left_start: Token, right: Node, right_start: Token) -> None:
        for node, start in ((left, left_start), (right, right_start)):
            if isinstance(node, Constant) and node.value is None:
                raise self._error("NULL is not compared by = or <>; IS NULL and IS NOT NULL are meant for it", start)
        if isinstance(left, Constant) and isinstance(right, Constant) and is_boolean(left) and not is_boolean(right):
            raise self._error("TRUE and FALSE are compared with conditions only", left_start)
