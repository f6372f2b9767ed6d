"""Sections of the report's page on what `jobs.outlook` says: topics, the disk, backlogs, dead letters, a trace."""

from __future__ import annotations

from html import escape
from typing import Final

from stratamq.pipeline.jobs.page_parts import duration_text, name_cell, table_html, time_text
from stratamq.pipeline.jobs.summary import Report
from stratamq.units import format_bytes

TOPICS_SHOWN_MAX: Final = 40
BACKLOGS_SHOWN_MAX: Final = 60
STEPS_SHOWN_MAX: Final = 200
NOTE_OF_UNDELIVERED: Final = (
    "Dead letters are messages that a group failed to consume as often as it may; they wait for a person."
)


def note_of_topics(report: Report) -> str:
    """What the table of topics shows."""
    shown = min(len(report.topic_totals), TOPICS_SHOWN_MAX)
    left = "" if shown == len(report.topic_totals) else f" The {shown} busiest of {len(report.topic_totals):,}."
    width = duration_text(report.timeline_ms)
    return f"The peak is the busiest {width}; sizes are of bodies, waits from born to stored.{left}"


def topics(report: Report) -> str:
    """Topics by their messages."""
    rows = [
        (
            name_cell(one.topic),
            f"{one.messages:,}",
            f"{100 * one.messages / report.messages:.1f} %",
            f"{one.peak_per_second:,.3g}/s",
            format_bytes(one.bytes),
            format_bytes(one.size_p50),
            format_bytes(one.size_p99),
            f"{one.latency_p50:,} ms",
            f"{one.latency_p99:,} ms",
            time_text(one.last_ms),
        )
        for one in report.topic_totals[:TOPICS_SHOWN_MAX]
    ]
    heads = ("messages", "share", "peak", "bodies", "size p50", "size p99", "wait p50", "wait p99", "last stored")
    return table_html([("topic", False), *((head, True) for head in heads)], rows) if rows else ""


def note_of_outlook(report: Report) -> str:
    """The rate that the forecast rests on."""
    one = report.outlook
    if one is None:
        return ""
    now = (
        f"The disk is {one.percent} % full: {format_bytes(one.usable_bytes)} are left, the log takes "
        f"{format_bytes(one.log_bytes)}."
    )
    if not one.bytes_an_hour:
        return f"{now} The log is too short to tell a rate: it takes two commit-log files."
    rate = f"{format_bytes(one.bytes_an_hour)} an hour, seen over {duration_text(one.span_ms)}"
    return (
        f"{now} The log grows by {rate}; messages are kept for {one.reserved_hours} hours. At this rate the fullest "
        f"within a year is {one.highest_percent} %, {time_text(one.highest_ms)}."
    )


def outlook(report: Report) -> str:
    """The marks of the disk and when they are reached."""
    one = report.outlook
    if one is None:
        return ""
    rows = [
        (
            f"{mark.percent} %",
            escape(mark.meaning),
            "not within a year" if mark.at_ms is None else _when(mark.at_ms, report),
        )
        for mark in one.marks
    ]
    return table_html([("above", True), ("then", False), ("reached", False)], rows)


def _when(at_ms: int, report: Report) -> str:
    left = at_ms - report.taken_ms
    return "now" if left <= 0 else f"{time_text(at_ms)}, in {duration_text(left)}"


def note_of_backlogs(report: Report) -> str:
    """What the table of backlogs shows."""
    shown = len(report.backlogs)
    more = f" The largest {BACKLOGS_SHOWN_MAX} of {shown:,}." if shown > BACKLOGS_SHOWN_MAX else ""
    return f"By the offsets that the broker last saved.{more}"


def backlogs(report: Report) -> str:
    """Groups and what waits for them."""
    rows = [
        (
            name_cell(one.group),
            name_cell(one.topic),
            f"{one.messages:,}",
            time_text(one.oldest_ms),
            duration_text(max(0, report.taken_ms - one.oldest_ms)) if one.oldest_ms else "-",
            f"{one.lost:,}" if one.lost else "-",
        )
        for one in report.backlogs[:BACKLOGS_SHOWN_MAX]
    ]
    headings = [("group", False), ("topic", False), ("waiting", True), ("oldest stored", False), ("age", True)]
    return table_html([*headings, ("deleted unread", True)], rows) if rows else ""


def undelivered(report: Report) -> str:
    """Groups with dead letters or retries."""
    rows = [
        (
            name_cell(one.group),
            escape(one.kind),
            f"{one.messages:,}",
            format_bytes(one.bytes),
            time_text(one.first_ms),
            time_text(one.last_ms),
        )
        for one in report.undelivered
    ]
    headings = [("group", False), ("what", False), ("messages", True), ("bodies", True)]
    return table_html([*headings, ("first", False), ("last", False)], rows) if rows else ""


def note_of_trace(report: Report) -> str:
    """Which key, and how many messages have it."""
    if not report.trace_key:
        return ""
    shown = f" The first {STEPS_SHOWN_MAX} of {len(report.trace):,}." if len(report.trace) > STEPS_SHOWN_MAX else ""
    key = f"<code>{escape(report.trace_key)}</code>"
    return f"Messages with the key, or the message id, {key}, as they were stored.{shown}"


def trace(report: Report) -> str:
    """The messages of a key across topics, in the order of store times."""
    if not report.trace_key:
        return ""
    if not report.trace:
        return "<p>There are none in the store.</p>"
    first = report.trace[0].stored_ms
    rows = [
        (
            time_text(one.stored_ms, seconds=True),
            f"+{duration_text(one.stored_ms - first)}",
            name_cell(one.topic),
            f"{one.queue_id} / {one.queue_offset:,}",
            name_cell(one.tags),
            f"{one.body_bytes:,}",
            str(one.reconsume_times),
            name_cell(one.message_id),
            name_cell(", ".join(f"{key}={value}" for key, value in one.about.items())),
        )
        for one in report.trace[:STEPS_SHOWN_MAX]
    ]
    headings = [("stored", False), ("after", True), ("topic", False), ("queue / offset", True), ("tag", False)]
    more = [("bytes", True), ("tried again", True), ("message id", False), ("about", False)]
    return table_html([*headings, *more], rows)
