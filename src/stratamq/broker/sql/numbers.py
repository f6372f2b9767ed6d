"""Numbers as Java reads and compares them: what decides whether a property's text is a number, and which.

Source: java.lang.Integer.valueOf, Long.valueOf, Double.valueOf, Double.compareTo.
"""

from __future__ import annotations

import math
import re
from typing import Final

from stratamq.broker.sql.tree import INT32, INT64_MAX

_WHOLE: Final = re.compile(r"[+-]?\d{1,4000}")
_DOUBLE: Final = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)", re.ASCII)
_HEX: Final = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+", re.ASCII)
_SPECIAL: Final = {"NaN": math.nan, "Infinity": math.inf}
_BLANKS: Final = "".join(map(chr, range(33)))
_INT64: Final = range(-INT64_MAX - 1, INT64_MAX + 1)


class NoNumber(Exception):
    """A text is no number of the type asked for; the whole expression then matches nothing, as in RocketMQ."""


def read_integer(text: str) -> int:
    """The number that a text is, of Java's type Integer. Raises NoNumber. Digits of any script count."""
    return _whole(text, INT32)


def read_long(text: str) -> int:
    """The number that a text is, of Java's type Long. Raises NoNumber."""
    return _whole(text, _INT64)


def _whole(text: str, bounds: range) -> int:
    if _WHOLE.fullmatch(text) and (text.isascii() or max(text) < "\U00010000"):
        digits = text.lstrip("+-").lstrip("0")
        if len(digits) < 64:
            number = int(text)
            if number in bounds:
                return number
    raise NoNumber


def read_double(text: str) -> float:
    """The number that a text is, of Java's type Double: blanks around it and a last d or f do not count.

    Raises NoNumber.
    """
    text = text.strip(_BLANKS)
    special = _SPECIAL.get(text.lstrip("+-")) if len(text) <= 9 and text[1:2] not in ("+", "-") else None
    if special is not None:
        return -special if text[0] == "-" else special
    if text[-1:] in "dDfF" and text:
        text = text[:-1]
    if _DOUBLE.fullmatch(text):
        return float(text)
    if _HEX.fullmatch(text):
        try:
            return float.fromhex(text)
        except OverflowError:
            return -math.inf if text[0] == "-" else math.inf
    raise NoNumber


def compare_doubles(left: float, right: float) -> int:
    """Java's total order: NaN is above all and equal to itself, -0.0 below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    left_key = (math.isnan(left), math.copysign(1.0, left) if left == 0.0 else 0.0)
    right_key = (math.isnan(right), math.copysign(1.0, right) if right == 0.0 else 0.0)
    return (left_key > right_key) - (left_key < right_key)
