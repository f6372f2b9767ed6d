"""Pieces that the report's page is made of: sections, tables, names, times. Cells are HTML; names are escaped."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from html import escape


def section(title: str, note: str, inner: str) -> str:
    """A card of the page; nothing when it would be empty."""
    return f"<section><h2>{title}</h2><p class=soft>{note}</p>{inner}</section>" if inner else ""


def table_html(headings: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]]) -> str:
    """A table; headings say whether their column holds numbers. Cells are HTML already."""
    classes = [" class=number" if is_number else "" for _, is_number in headings]
    head = "".join(f"<th{look}>{escape(name)}</th>" for (name, _), look in zip(headings, classes, strict=True))
    lines = [
        "<tr>" + "".join(f"<td{look}>{cell}</td>" for cell, look in zip(row, classes, strict=True)) + "</tr>"
        for row in rows
    ]
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"


def name_cell(name: str) -> str:
    """A topic or tag; long ones are cut off and can be read by pointing at them."""
    return f'<span class=name title="{escape(name)}">{escape(name)}</span>' if name else ""


def time_text(ms: int, *, seconds: bool = False) -> str:
    """A time in UTC; a dash for none."""
    if not ms:
        return "-"
    moment = datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")


def duration_text(ms: int) -> str:
    """A length of time for people: the two largest units that are not zero."""
    if ms < 1000:
        return f"{ms} ms"
    parts = []
    left = ms // 1000
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        if left >= size:
            parts.append(f"{left // size} {name}")
        left %= size
    return " ".join(parts[:2])
