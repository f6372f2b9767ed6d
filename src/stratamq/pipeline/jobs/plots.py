"""The report's plots: small SVG pictures that take the page's own text colour, so they fit a light and a dark page.

Matplotlib draws without a screen. Text stays text, in the page's font; what Matplotlib drew in the stand-in colours
below becomes ``currentColor`` or a CSS variable of the page.
"""

from __future__ import annotations

import datetime
import functools
import io
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Final, ParamSpec

import numpy as np

from stratamq.pipeline.jobs.facts import value_of
from stratamq.pipeline.jobs.summary import Bucket, Distribution, KeyTotal, QueueTotal

P = ParamSpec("P")

PALETTE: Final = ("#3b7dd8", "#e0803a", "#3fa66b", "#a86bd1", "#c94f6d", "#2f9fb3", "#b59a2b", "#7d8591")
OTHER: Final = "#9aa2ad"
TOPICS_DRAWN_MAX: Final = 7
QUEUES_DRAWN_MAX: Final = 48

_TIME_FORMATS: Final = ["%Y", "%b", "%d", "%H:%M", "%H:%M", "%H:%M:%S"]
_INK: Final = "#010203"
_FAINT: Final = "#040506"
_STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "stratamq",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": _FAINT,
    "grid.linewidth": 0.6,
    "grid.alpha": 0.5,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
}


def _styled(draw: Callable[P, str]) -> Callable[P, str]:
    """Draw with our style, whatever the process has set for itself."""

    @functools.wraps(draw)
    def inner(*args: P.args, **kwargs: P.kwargs) -> str:
        import matplotlib as mpl

        with mpl.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return inner


def topic_colours(topics: Sequence[str]) -> dict[str, str]:
    """A colour for each topic, the same in every plot; beyond the palette all share a grey."""
    return {topic: PALETTE[place] if place < TOPICS_DRAWN_MAX else OTHER for place, topic in enumerate(topics)}


@_styled
def timeline(buckets: Sequence[Bucket], width_ms: int, colours: Mapping[str, str]) -> str:
    """Messages per second over store time, topics stacked."""
    starts = sorted({one.start_ms for one in buckets})
    if not starts:
        return ""
    first, count = starts[0], (starts[-1] - starts[0]) // width_ms + 1
    series: dict[str, Any] = {}
    for one in buckets:
        series.setdefault(one.topic, np.zeros(count))[(one.start_ms - first) // width_ms] = (
            one.messages * 1000 / width_ms
        )
    edges = [
        datetime.datetime.fromtimestamp((first + place * width_ms) / 1000, datetime.UTC) for place in range(count + 1)
    ]
    figure, axes = _figure(9.2, 3.0)
    below = np.zeros(count)
    for topic in colours:
        if topic in series:
            top = below + series[topic]
            axes.fill_between(
                edges, np.append(below, below[-1]), np.append(top, top[-1]), step="post", color=colours[topic],
                linewidth=0,
            )  # fmt: skip
            below = top
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=4, maxticks=9)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=datetime.UTC, formats=_TIME_FORMATS))  # type: ignore[no-untyped-call]
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylabel("messages per second")
    axes.set_ylim(bottom=0)
    _thousands(axes.yaxis)
    _legend(axes, series, colours)
    return _svg(figure, "Messages per second over time, by topic")


@_styled
def distribution(found: Distribution, label: str, unit: str, colour: str, *, logarithmic: bool = False) -> str:
    """A histogram with its median and 99th percentile marked. ``unit`` is written behind the marks' numbers."""
    if not found.count:
        return ""
    values = np.array([value_of(bucket) for bucket in found.histogram], dtype=float)
    weights = np.array(list(found.histogram.values()), dtype=float)
    figure, axes = _figure(4.5, 2.6)
    # A few values far out would squeeze all others into one bar: the plot then ends before them, and says so.
    right = max(1.5 * found.percentiles["p99.9"], 10.0)
    is_cut = not logarithmic and values.max() > 2 * right
    if is_cut:
        weights, values = weights[values <= right], values[values <= right]
    if logarithmic and values.max() > 1000:
        values = np.maximum(values, 0.5)
        bins = np.geomspace(0.5, values.max() * 1.05 + 1, 48)
        axes.set_xscale("log")
    elif values.max() - values.min() < 60:
        bins = np.arange(values.min() - 0.5, values.max() + 1.5)
    else:
        bins = np.linspace(values.min(), values.max() + 1, 56)
    axes.hist(values, bins=bins, weights=weights, color=colour, linewidth=0)
    axes.set_xlabel(f"{label}\n(a few up to {found.high:,} not drawn)" if is_cut else label)
    axes.set_ylabel("messages")
    _thousands(axes.yaxis)
    if axes.get_xscale() == "linear":
        _thousands(axes.xaxis)
    else:
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    _mark_percentiles(axes, found, unit)
    return _svg(figure, f"Distribution of {label}")


def _mark_percentiles(axes: Any, found: Distribution, unit: str) -> None:
    left, right = axes.get_xlim()
    top = axes.get_ylim()[1]
    axes.set_ylim(top=top * 1.12)
    for name, height in (("p50", 1.1), ("p99", 0.98)):
        at = max(found.percentiles[name], left)
        axes.axvline(at, color=_INK, linewidth=1, linestyle=(0, (3, 2)))
        place = (
            (at - left) / (right - left) if axes.get_xscale() == "linear" else np.log(at / left) / np.log(right / left)
        )
        is_right = place > 0.65
        axes.annotate(
            f"{name} {found.percentiles[name]:,}{unit}", (at, top * height), fontsize=9,
            xytext=(-4 if is_right else 4, 0), textcoords="offset points", ha="right" if is_right else "left", va="top",
        )  # fmt: skip


@_styled
def queue_balance(queues: Sequence[QueueTotal], colours: Mapping[str, str]) -> str:
    """One bar a queue, grouped by topic: how evenly messages are spread."""
    shown = list(queues)[:QUEUES_DRAWN_MAX]
    if not shown:
        return ""
    figure, axes = _figure(9.2, 2.6)
    positions: list[float] = []
    at = 0.0
    for place, one in enumerate(shown):
        at += 1 if place == 0 or shown[place - 1].topic == one.topic else 1.8
        positions.append(at)
    counts = [one.messages for one in shown]
    axes.bar(positions, counts, color=[colours.get(one.topic, OTHER) for one in shown], width=0.78)
    axes.set_xticks(positions, [str(one.queue_id) for one in shown])
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("messages")
    axes.set_xlabel("queue")
    _thousands(axes.yaxis)
    _legend(axes, {one.topic for one in shown}, colours)
    return _svg(figure, "Messages in each queue")


@_styled
def key_bars(keys: Sequence[KeyTotal], colour: str) -> str:
    """The most frequent keys as horizontal bars, most frequent on top."""
    if not keys:
        return ""
    figure, axes = _figure(9.2, 0.6 + 0.22 * len(keys))
    axes.barh(range(len(keys)), [one.messages for one in keys], color=colour, height=0.7)
    axes.set_yticks(range(len(keys)), [_short(one.key, 40) for one in keys], fontsize=9)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.set_xlabel("messages with the key")
    _thousands(axes.xaxis)
    for place, one in enumerate(keys):
        axes.annotate(
            f"{one.messages:,}",
            (one.messages, place),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.margins(x=0.08, y=0.02)
    return _svg(figure, "Most frequent keys")


def _legend(axes: Any, shown: Container[str], colours: Mapping[str, str]) -> None:
    """A row of colours above the plot; topics beyond the palette share one entry."""
    from matplotlib.patches import Patch

    own = [topic for topic in colours if topic in shown and colours[topic] != OTHER]
    handles = [Patch(color=colours[topic], linewidth=0, label=_short(topic, 22)) for topic in own]
    if any(topic in shown and colours[topic] == OTHER for topic in colours):
        handles.append(Patch(color=OTHER, linewidth=0, label="other topics"))
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, borderaxespad=0, handlelength=1,
        handleheight=1,
    )  # fmt: skip


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _thousands(*all_axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for axis in all_axes:
        axis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _svg(figure: Any, title: str) -> str:
    """The picture as one inline ``<svg>`` element with a title for screen readers."""
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', f'role="img" aria-label="{title}"', svg, count=1)
    return svg.replace(_INK, "currentColor").replace(_FAINT, "var(--faint)")


def unique_ids(pictures: Iterable[str]) -> list[str]:
    """Make ids in several inline pictures differ, so that one page can hold them all."""
    return [re.sub(r'(id="|href="#|url\(#)', rf"\g<1>p{place}-", picture) for place, picture in enumerate(pictures)]
