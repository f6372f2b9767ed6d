"""The report as one HTML file: nothing is loaded from anywhere, light and dark follow the reader's system."""

from __future__ import annotations

from html import escape
from typing import Final

from stratamq import __version__
from stratamq.pipeline.jobs import page_more, plots
from stratamq.pipeline.jobs.page_parts import duration_text, name_cell, section, table_html, time_text
from stratamq.pipeline.jobs.summary import Distribution, Report, TagMinute
from stratamq.units import format_bytes

MINUTES_SHOWN_MAX: Final = 60
TAGS_SHOWN_MAX: Final = 80
QUEUES_SHOWN_MAX: Final = 64

_CSS: Final = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --ink: #1d2733; --soft: #5b6876; --faint: #d5dae1;
  --accent: #3b7dd8; }
@media (prefers-color-scheme: dark) { :root { --page: #12161c; --card: #1b212a; --ink: #e4e9ef; --soft: #9aa6b4;
  --faint: #39424e; --accent: #6aa3f0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 32px 20px 48px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 0 0 4px; }
p { margin: 0 0 12px; } .soft, figcaption, footer { color: var(--soft); }
code { font: 13px ui-monospace, "SFMono-Regular", "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 20px 0; }
.tile, section { background: var(--card); border: 1px solid var(--faint); border-radius: 10px; }
.tile { padding: 12px 16px; } .tile b { display: block; font-size: 22px; line-height: 1.3; letter-spacing: -0.01em; }
.tile span { color: var(--soft); font-size: 13px; }
section { padding: 18px 20px; margin: 0 0 16px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(380px, 1fr)); gap: 16px; }
.pair section { margin: 0; } .pair { margin-bottom: 16px; }
svg { display: block; width: 100%; height: auto; } svg text { font-family: inherit !important; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 600; font-size: 13px; }
th, td { padding: 5px 14px 5px 0; border-bottom: 1px solid var(--faint); white-space: nowrap; }
tr:last-child td { border-bottom: 0; } .number { text-align: right; } th:last-child, td:last-child { padding-right: 0; }
.name { display: inline-block; max-width: 260px; overflow: hidden; text-overflow: ellipsis; vertical-align: bottom; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 8px; }
.bar { display: inline-block; height: 8px; border-radius: 4px; background: var(--accent); vertical-align: middle; }
.track { display: inline-block; width: 130px; }
details summary { cursor: pointer; color: var(--accent); margin: 4px 0; }
@media (max-width: 520px) { .pair { grid-template-columns: 1fr; } }
@media print { body { background: none; } section, .tile { break-inside: avoid; } }
"""


def render(report: Report) -> str:
    """The whole page. Needs Matplotlib for the plots."""
    colours = plots.topic_colours(report.topics)
    accent = plots.PALETTE[0]
    pictures = plots.unique_ids(
        [
            plots.timeline(report.timeline, report.timeline_ms, colours),
            plots.distribution(report.sizes, "body size in bytes", " B", plots.PALETTE[2]),
            plots.distribution(
                report.latency,
                "milliseconds from born to stored",
                " ms",
                plots.PALETTE[3],
                logarithmic=report.latency.high > 1000,
            ),
            plots.queue_balance(report.queues, colours),
            plots.key_bars(report.top_keys, accent),
        ]
    )
    over_time, sizes, waits, balance, keys = pictures
    empty = "" if report.messages else "<section><p>The store holds no messages.</p></section>"
    body = [
        _heading(report),
        _tiles(report),
        empty,
        section("Trace of a key", page_more.note_of_trace(report), page_more.trace(report)),
        section("Messages over time", _note_of_timeline(report), over_time),
        section("Busiest topics", page_more.note_of_topics(report), page_more.topics(report)),
        section("How long the disk lasts", page_more.note_of_outlook(report), page_more.outlook(report)),
        section("What groups have not consumed", page_more.note_of_backlogs(report), page_more.backlogs(report)),
        section("Dead letters and retries", page_more.NOTE_OF_UNDELIVERED, page_more.undelivered(report)),
        section("Topics and tags", _note_of_tags(report), _tags(report, colours)),
        _pair(
            section("Body sizes", _percentile_note(report.sizes, "bytes", "of a body as the producer wrote it"), sizes),
            section("From born to stored", _latency_note(report), waits),
        ),
        section("Balance of queues", "An even row means that producers spread their load.", balance + _queues(report)),
        section("Most frequent keys", "Exact counts; a message may carry several keys.", keys),
        section("Minute by minute", _minutes_note(report), _minutes(report)),
    ]
    title = f"StrataMQ report: {report.messages:,} messages"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + f"\n<footer>Made by StrataMQ {escape(__version__)} with Spark in {report.seconds:.1f} s. "
        "All times are UTC.</footer>\n</main>\n</body>\n</html>\n"
    )


def _heading(report: Report) -> str:
    killed = ""
    if report.was_killed:
        killed = (
            " <b>The broker was killed and has not recovered the store since:</b> messages at the end of the log that "
            "no queue knows yet are not counted."
        )
    return (
        "<header><h1>What is in the store</h1>"
        f"<p class=soft>A snapshot of <code>{escape(report.store)}</code>, taken {time_text(report.taken_ms)} UTC. "
        f"Ends were fixed when the job began: what came later is not counted.{killed}</p></header>"
    )


def _tiles(report: Report) -> str:
    span = report.last_ms - report.first_ms
    rate = report.messages * 1000 / span if span > 0 else 0.0
    tiles = [
        (f"{report.messages:,}", "messages"),
        (format_bytes(report.body_bytes), "in bodies"),
        (f"{len(report.topics)}", "topic" if len(report.topics) == 1 else "topics"),
        (f"{len(report.queues)}", "queues with messages"),
        (duration_text(span), "from first to last"),
        (f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s", "on average"),
    ]
    inner = "".join(f"<div class=tile><b>{escape(value)}</b><span>{name}</span></div>" for value, name in tiles)
    return f"<div class=tiles>{inner}</div>"


def _pair(*sections: str) -> str:
    return f"<div class=pair>{''.join(sections)}</div>" if any(sections) else ""


def _tags(report: Report, colours: dict[str, str]) -> str:
    shown = report.tag_totals
    if len(shown) > TAGS_SHOWN_MAX:
        busiest = set(sorted(shown, key=lambda one: -one.messages)[:TAGS_SHOWN_MAX])
        shown = [one for one in shown if one in busiest]
    most = max((one.messages for one in shown), default=1)
    rows = [
        (
            f'<span class=dot style="background: {colours.get(one.topic, plots.OTHER)}"></span>{name_cell(one.topic)}',
            name_cell(one.tag) or "<span class=soft>no tag</span>",
            f"{one.messages:,}",
            f"{100 * one.messages / report.messages:.1f} %",
            f'<span class=track><span class=bar style="width: {max(1, 100 * one.messages // most)}%"></span></span>',
            format_bytes(one.bytes),
            format_bytes(one.bytes // one.messages),
        )
        for one in shown
    ]
    headings = [("topic", False), ("tag", False), ("messages", True), ("share", True), ("", False), ("bodies", True)]
    return table_html([*headings, ("average", True)], rows) if rows else ""


def _queues(report: Report) -> str:
    rows = [
        (
            name_cell(one.topic),
            str(one.queue_id),
            f"{one.messages:,}",
            format_bytes(one.bytes),
            f"{one.min_offset:,}",
            f"{one.max_offset:,}",
            time_text(one.first_ms, seconds=True),
            time_text(one.last_ms, seconds=True),
        )
        for one in report.queues[:QUEUES_SHOWN_MAX]
    ]
    headings = [("topic", False), ("queue", True), ("messages", True), ("bodies", True), ("from offset", True)]
    table = table_html([*headings, ("to (exclusive)", True), ("first stored", True), ("last stored", True)], rows)
    left = len(report.queues) - len(rows)
    more = f"<p class=soft>{left:,} more queues are in the JSON.</p>" if left else ""
    return f"<details><summary>Offsets and times of each queue</summary>{table}{more}</details>"


def _busiest(report: Report) -> list[TagMinute]:
    """The minutes shown: all when they fit, else those with most messages, in order of time."""
    rows = list(report.tag_minutes)
    if len(rows) > MINUTES_SHOWN_MAX:
        rows = sorted(rows, key=lambda one: -one.messages)[:MINUTES_SHOWN_MAX]
    return sorted(rows, key=lambda one: (one.minute_ms, one.topic, one.tag))


def _minutes(report: Report) -> str:
    rows = [
        (
            time_text(one.minute_ms),
            name_cell(one.topic),
            name_cell(one.tag) or "-",
            f"{one.messages:,}",
            format_bytes(one.bytes),
        )
        for one in _busiest(report)
    ]
    headings = [("minute", False), ("topic", False), ("tag", False), ("messages", True), ("bodies", True)]
    return table_html(headings, rows) if rows else ""


def _minutes_note(report: Report) -> str:
    total = len(report.tag_minutes)
    if total <= MINUTES_SHOWN_MAX:
        return "Messages by minute of store time, topic and tag."
    return f"The {MINUTES_SHOWN_MAX} busiest of {total:,} rows (minute of store time, topic, tag); all are in the JSON."


def _note_of_timeline(report: Report) -> str:
    return f"By store time, in steps of {duration_text(report.timeline_ms)}, topics stacked."


def _note_of_tags(report: Report) -> str:
    total = len(report.tag_totals)
    if total <= TAGS_SHOWN_MAX:
        return "How many messages carry which tag."
    return f"The {TAGS_SHOWN_MAX} most frequent of {total:,} tags; all are in the JSON."


def _percentile_note(found: Distribution, unit: str, what: str) -> str:
    shown = ", ".join(f"{name} {value:,}" for name, value in found.percentiles.items())
    how = "Exact" if found.is_exact else "Up to 0.4 % low above 65,536, else exact"
    return f"{how}, in {unit} {what}: {shown}. Smallest {found.low:,}, largest {found.high:,}."


def _latency_note(report: Report) -> str:
    found = report.latency
    note = _percentile_note(found, "milliseconds", "between the producer's clock and the broker's")
    return note + " Clocks that disagree the other way count as 0."
