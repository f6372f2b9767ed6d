"""The words of a SQL92 filter expression.

Keywords are written in any case. A comment is ``/* ... */`` or ``--`` up to the end of a line; ``--`` without a line
end behind it is two minus signs, as for RocketMQ.

Source: apache/rocketmq filter/.../SelectorParser.jj, tokens.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from stratamq.errors import SubscriptionIllegal

EXPRESSION_CHARACTERS_MAX: Final = 16 * 1024
"""Longest expression that is read."""

KEYWORDS: Final = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)

DECIMAL: Final = "a whole number"
FLOATING: Final = "a number"
STRING: Final = "a text"
NAME: Final = "a name"
END: Final = "the end"

_TOKEN: Final = re.compile(
    r"""(?P<skip>[ \t\n\r\f]+ | --[^\n\r]*(?:\r\n|\n|\r) | /\*.*?\*/)
      | (?P<floating>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+)
      | (?P<decimal>(?:[1-9][0-9]*|0)[lL]?)
      | (?P<string>'(?:[^']|'')*')
      | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<symbol><>|>=|<=|[=<>(),+-])""",
    re.VERBOSE | re.DOTALL,
)
_KINDS: Final = {"floating": FLOATING, "decimal": DECIMAL, "string": STRING, "name": NAME}


class Token(NamedTuple):
    """One word: its kind (a keyword or symbol is its own kind), its text, and where it begins."""

    kind: str
    text: str
    at: int


def illegal(text: str, at: int, expression: str) -> SubscriptionIllegal:
    """The error for an expression: what is wrong, and at which character (from 1)."""
    shown = expression if len(expression) <= 200 else expression[:200] + "..."
    return SubscriptionIllegal(f"SQL92 expression, character {at + 1}: {text}; the expression is: {shown}")


def tokens_of(expression: str) -> list[Token]:
    """Cut an expression into tokens; the last one is `END`. Raises SubscriptionIllegal. Cost: linear."""
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise illegal(f"{len(expression)} characters, at most {EXPRESSION_CHARACTERS_MAX} are taken", 0, expression)
    found: list[Token] = []
    at, end = 0, len(expression)
    while at < end:
        match = _TOKEN.match(expression, at)
        if match is None:
            raise illegal(_what(expression, at), at, expression)
        group, text = match.lastgroup, match[0]
        if group != "skip":
            kind = text if group == "symbol" else _KINDS[str(group)]
            if group == "name" and text.upper() in KEYWORDS:
                kind = text.upper()
            found.append(Token(kind, text, at))
        at = match.end()
    found.append(Token(END, "", end))
    return found


def _what(expression: str, at: int) -> str:
    if expression[at] == "'":
        return "a text is not closed by '"
    if expression.startswith("/*", at):
        return "a comment is not closed by */"
    return f"{expression[at]!r} has no meaning here"
