"""Lists as the management API gives them: columns, sorting, name filters, pages. Pure.

Source: rabbitmq/rabbitmq-server deps/rabbitmq_management/priv/www/doc/stats.html, api/index.html.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stratamq.errors import InvalidArgument

PAGE_SIZE: Final = 100
PAGE_SIZE_MAX: Final = 500
_PATTERN_CHARACTERS_MAX: Final = 1000
Row = dict[str, Any]


def arrange(rows: Sequence[Row], query: Mapping[str, str]) -> Any:
    """Rows as a query wants them: a list, or an object with one page of it. Raises InvalidArgument."""
    page = query.get("page")
    kept = list(rows)
    if query.get("name"):
        kept = [row for row in kept if _name_test(query)(str(row.get("name", "")))]
    key = query.get("sort")
    if key:
        kept.sort(key=lambda row: _order(look_up(row, key)), reverse=query.get("sort_reverse") == "true")
    if page is None:
        return [pick(row, query.get("columns")) for row in kept]
    number = _number("page", page, 1, 1_000_000)
    size = _number("page_size", query.get("page_size", str(PAGE_SIZE)), 1, PAGE_SIZE_MAX)
    pages = max(1, -(-len(kept) // size))
    if number > pages:
        raise InvalidArgument(f"page_out_of_range: page {number} of {pages}")
    items = kept[(number - 1) * size : number * size]
    return {
        "filtered_count": len(kept),
        "item_count": len(items),
        "items": [pick(row, query.get("columns")) for row in items],
        "page": number,
        "page_count": pages,
        "page_size": size,
        "total_count": len(rows),
    }


def _name_test(query: Mapping[str, str]) -> Any:
    wanted = query["name"]
    if query.get("use_regex") != "true":
        return lambda name: wanted.lower() in name.lower()
    if len(wanted) > _PATTERN_CHARACTERS_MAX:
        raise InvalidArgument(f"a pattern of {len(wanted)} characters")
    try:
        pattern = re.compile(wanted, re.IGNORECASE)
    except re.error as error:
        raise InvalidArgument(f"{wanted!r} is no regular expression: {error}") from None
    return pattern.search


def _number(name: str, text: str, low: int, high: int) -> int:
    if not text.isdecimal() or len(text) > 9 or not low <= int(text) <= high:
        raise InvalidArgument(f"{name} is {text!r}; allowed: {low} to {high}")
    return int(text)


def look_up(row: Mapping[str, Any], path: str) -> Any:
    """The value under a dotted path, such as ``message_stats.publish_details.rate``; None when there is none."""
    value: Any = row
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def _order(value: Any) -> tuple[int, Any]:
    """Values of any kind side by side: nothing first, then numbers, then text."""
    if value is None:
        return (0, 0)
    if isinstance(value, bool | int | float):
        return (1, value)
    return (2, str(value))


def pick(row: Row, columns: str | None) -> Row:
    """The columns asked for, joined by commas; dotted ones keep their place inside."""
    if not columns:
        return row
    found: Row = {}
    for path in columns.split(","):
        value = look_up(row, path)
        if value is None and "." in path:
            continue
        if "." not in path:
            if path in row:
                found[path] = value
            continue
        place = found
        *outer, last = path.split(".")
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = value
    return found
