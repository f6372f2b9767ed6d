"""The page for people who would rather look: one HTML text, no scripts, made from what `views` says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from stratamq.units import format_bytes

_FILES_SHOWN = 20
"""Commit-log files on the page, the oldest first; the JSON has more."""
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem; color: #1c2733; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .3rem .6rem; }
th { border-bottom: 2px solid #c8d2dc; font-weight: 600; } td { border-bottom: 1px solid #e6ebf0; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.bad { color: #b3261e; font-weight: 600; } .muted { color: #64748b; }
"""


def render_page(
    overview: dict[str, Any],
    topics: Sequence[dict[str, Any]],
    groups: Sequence[dict[str, Any]],
    retention: dict[str, Any] | None = None,
) -> str:
    """The whole page. Everything that clients chose (names) is escaped."""
    store = overview["store"]
    failure = f'<p class="bad">{escape(store["failure"])}</p>' if store["failure"] else ""
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8><meta http-equiv=refresh content=10>"
        f"<title>StrataMQ {escape(overview['broker'])}</title><style>{_STYLE}</style></head><body>"
        f"<h1>StrataMQ <span class=muted>{escape(overview['broker'])} in {escape(overview['cluster'])}, "
        f"{escape(overview['address'])}, version {escape(overview['version'])}</span></h1>{failure}"
        f"{_store(overview)}{_topics(topics)}{_groups(groups)}{_retention(retention)}"
        "<p class=muted>The same as JSON: /api/v1/overview, /api/v1/topics, /api/v1/groups, /api/v1/retention. "
        "Metrics: /metrics. Refreshes every 10 s.</p></body></html>"
    )


def _store(overview: dict[str, Any]) -> str:
    store = overview["store"]
    size = store["max_physical_offset"] - store["min_physical_offset"]
    unsynced = store["max_physical_offset"] - store["flushed_physical_offset"]
    rows = [
        ("Commit log", f"{format_bytes(size)} in {store['commit_log_files']} files"),
        ("Positions", f"{store['min_physical_offset']} to {store['max_physical_offset']}"),
        ("Written, not yet synced", format_bytes(unsynced)),
        ("Takes messages", "yes" if store["is_writable"] and overview["is_accepting"] else "no"),
        ("Messages in / out since start", f"{overview['messages_put']} / {overview['messages_got']}"),
        ("Waiting pulls", str(overview["waiting_pulls"])),
        ("Connections", ", ".join(f"{name}: {count}" for name, count in overview["connections"].items())),
        ("Running for", f"{overview['uptime_ms'] // 1000} s"),
    ]
    return "<h2>Store</h2><table>" + "".join(_row([name, value]) for name, value in rows) + "</table>"


def _topics(topics: Sequence[dict[str, Any]]) -> str:
    if not topics:
        return "<h2>Topics</h2><p class=muted>None yet: the first message makes one.</p>"
    rows = []
    for topic in topics:
        held = sum(queue["max_offset"] - queue["min_offset"] for queue in topic["queues"])
        total = sum(queue["max_offset"] for queue in topic["queues"])
        cells = [topic["topic"], topic["kind"], topic["write_queues"], held, total]
        rows.append(_row(cells, numbers=(2, 3, 4)))
    head = _row(["Topic", "Kind", "Queues", "Messages held", "Ever sent"], numbers=(2, 3, 4), cell="th")
    return f"<h2>Topics</h2><table>{head}{''.join(rows)}</table>"


def _groups(groups: Sequence[dict[str, Any]]) -> str:
    if not groups:
        return "<h2>Consumer groups</h2><p class=muted>None yet.</p>"
    rows = []
    for group in groups:
        for number, topic in enumerate(group["topics"] or [{"topic": "", "lag": ""}]):
            first = number == 0
            cells = [
                group["group"] if first else "",
                group["members"] if first else "",
                (group["message_model"] or "").lower() if first else "",
                topic["topic"],
                topic["lag"],
            ]
            rows.append(_row(cells, numbers=(1, 4)))
    head = _row(["Group", "Members", "Model", "Topic", "Lag"], numbers=(1, 4), cell="th")
    return f"<h2>Consumer groups</h2><table>{head}{''.join(rows)}</table>"


def _retention(view: dict[str, Any] | None) -> str:
    if view is None:
        return ""
    gone = ", ".join(f"{row['files']} {name}" for name, row in view["deleted"].items())
    disks = ", ".join(f"{disk['path']} {disk['percent']} %" for disk in view["disks"])
    rows = [("Disks", disks), ("Next round", view["trigger"]), ("Deleted since start", gone)]
    text = "<h2>Retention</h2>"
    if view["is_blocked"]:
        text += '<p class="bad">The disk is too full: no messages are taken.</p>'
    text += "<table>" + "".join(_row(row) for row in rows) + "</table>"
    files = [("goes", row) for row in view["goes"]] + [("stays", row) for row in view["stays"]]
    cells = [_row([row["file"].rpartition("/")[2], what, row["reason"]]) for what, row in files[:_FILES_SHOWN]]
    lost = [_row([row["group"] or "(nobody)", row["topic"], row["messages"]], numbers=(2,)) for row in view["losses"]]
    if cells:
        text += f"<table>{_row(['File', '', 'Why'], cell='th')}{''.join(cells)}</table>"
    if lost:
        head = _row(["Group that loses", "Topic", "Messages"], numbers=(2,), cell="th")
        text += f"<table>{head}{''.join(lost)}</table>"
    return text


def _row(cells: Iterable[object], *, numbers: Sequence[int] = (), cell: str = "td") -> str:
    parts = [
        f"<{cell}{' class=n' if number in numbers else ''}>{escape(str(text))}</{cell}>"
        for number, text in enumerate(cells)
    ]
    return "<tr>" + "".join(parts) + "</tr>"
