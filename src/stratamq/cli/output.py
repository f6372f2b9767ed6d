"""How commands speak: text for people or JSON for programs, behind one interface, and progress on stderr.

A command hands over facts, tables and sentences with plain values; how a time or a size looks is decided here. As JSON
a command's whole answer is one object: facts and tables under their names with raw values (bytes, milliseconds),
sentences under ``remarks``. `Printer.row` makes JSON lines instead, for answers of any length.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, TextIO

import click

from stratamq.logstore.types import Progress
from stratamq.logstore.words import format_ms
from stratamq.units import format_bytes

PLAIN_PROGRESS_SECONDS: Final = 5.0


class Kind(enum.Enum):
    """How a value is shown to people; in JSON it is always the raw value."""

    TEXT = "text"
    COUNT = "count"
    PLACE = "place"
    BYTES = "bytes"
    TIME = "time"


class Item(NamedTuple):
    """One fact, or one column of a table: its name in JSON, what people read, and how its values are shown."""

    key: str
    label: str
    kind: Kind = Kind.TEXT


class Printer(Protocol):
    """What a command says its answer to. Call `close` at the end."""

    def facts(self, name: str, title: str, items: Sequence[tuple[Item, Any]]) -> None:
        """Some single values under a title."""
        ...

    def table(self, name: str, title: str, columns: Sequence[Item], rows: Iterable[Sequence[Any]]) -> None:
        """Rows of values under a title; nothing for people when there are none."""
        ...

    def blocks(self, name: str, title: str, columns: Sequence[Item], rows: Iterable[Sequence[Any]]) -> None:
        """Like `table`, for rows with long texts: a block of lines each."""
        ...

    def remark(self, text: str) -> None:
        """A sentence for people."""
        ...

    def row(self, columns: Sequence[Item], values: Sequence[Any]) -> None:
        """One answer among any number of them: a block of text, or one line of JSON."""
        ...

    def close(self) -> None:
        """Say what is still to be said."""
        ...


def show(kind: Kind, value: Any) -> str:
    """A value as people read it; ``-`` for None."""
    if value is None:
        return "-"
    if kind is Kind.COUNT:
        return f"{value:,}"
    if kind is Kind.BYTES:
        return format_bytes(value)
    if kind is Kind.TIME:
        return format_ms(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


class TextPrinter:
    """For people: rich where stdout is a terminal, the same text without colours elsewhere."""

    def __init__(self, stream: TextIO | None = None) -> None:
        from rich.console import Console

        class PipeConsole(Console):
            """Leaves it to `cli.main` what happens when the reader goes away; rich would end the process with 1."""

            def on_broken_pipe(self) -> None:
                raise BrokenPipeError

        self._console = PipeConsole(file=stream, highlight=False, soft_wrap=True)
        if not self._console.is_terminal:
            self._console.width = 200
        self._started = False
        self._last = ""

    def facts(self, name: str, title: str, items: Sequence[tuple[Item, Any]]) -> None:
        self._title(title)
        width = max((len(item.label) for item, _ in items), default=0)
        for item, value in items:
            self._line(f"  {item.label.ljust(width)}  {show(item.kind, value)}")

    def table(self, name: str, title: str, columns: Sequence[Item], rows: Iterable[Sequence[Any]]) -> None:
        lines = [[show(column.kind, value) for column, value in zip(columns, row, strict=True)] for row in rows]
        if not lines:
            return
        if title:
            self._title(title)
        heads = [column.label for column in columns]
        widths = [max(map(len, cells)) for cells in zip(heads, *lines, strict=True)]
        rights = [column.kind in (Kind.COUNT, Kind.BYTES, Kind.PLACE) for column in columns]
        self._line("  " + _row(heads, widths, rights), style="dim")
        for line in lines:
            self._line("  " + _row(line, widths, rights))

    def blocks(self, name: str, title: str, columns: Sequence[Item], rows: Iterable[Sequence[Any]]) -> None:
        for number, row in enumerate(rows):
            if not number:
                self._title(title)
            self._block(columns, row, "- ")

    def remark(self, text: str) -> None:
        if self._last != "remark" and self._started:
            self._line("")
        self._started = True
        self._line(text)
        self._last = "remark"

    def row(self, columns: Sequence[Item], values: Sequence[Any]) -> None:
        self._started = True
        self._block(columns, values, "- ")

    def _block(self, columns: Sequence[Item], values: Sequence[Any], mark: str) -> None:
        pairs = [(column, value) for column, value in zip(columns, values, strict=True) if value not in (None, "")]
        width = max((len(column.label) for column, _ in pairs), default=0)
        for number, (column, value) in enumerate(pairs):
            self._line(f"{' ' * len(mark) if number else mark}{column.label.ljust(width)}  {show(column.kind, value)}")

    def close(self) -> None:
        pass

    def _title(self, title: str) -> None:
        if self._started:
            self._line("")
        self._started = True
        self._last = "title"
        if title:
            self._line(title, style="bold")

    def _line(self, text: str, style: str | None = None) -> None:
        self._console.print(printable(text), style=style, markup=False)


def _row(cells: Sequence[str], widths: Sequence[int], rights: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, rights, strict=True)
    ]
    return "  ".join(padded).rstrip()


def printable(text: str) -> str:
    """Text that cannot steer a terminal: control characters are shown as escapes. Stored data is anybody's data."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in text
    )


class JsonPrinter:
    """For programs: one object, or lines of them."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._document: dict[str, Any] = {}

    def facts(self, name: str, title: str, items: Sequence[tuple[Item, Any]]) -> None:
        self._document[name] = {item.key: value for item, value in items}

    def table(self, name: str, title: str, columns: Sequence[Item], rows: Iterable[Sequence[Any]]) -> None:
        keys = [column.key for column in columns]
        self._document[name] = [dict(zip(keys, row, strict=True)) for row in rows]

    def blocks(self, name: str, title: str, columns: Sequence[Item], rows: Iterable[Sequence[Any]]) -> None:
        self.table(name, title, columns, rows)

    def remark(self, text: str) -> None:
        self._document.setdefault("remarks", []).append(text)

    def row(self, columns: Sequence[Item], values: Sequence[Any]) -> None:
        self._write({column.key: value for column, value in zip(columns, values, strict=True)})

    def close(self) -> None:
        if self._document:
            self._write(self._document)
            self._document = {}

    def _write(self, value: Any) -> None:
        self._stream.write(json.dumps(value, ensure_ascii=False) + "\n")


def make_printer(output: str) -> Printer:
    """The printer for the value of ``--output``."""
    return JsonPrinter() if output == "json" else TextPrinter()


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--output`` and ``--quiet``; it gets a ``printer``, closed when it returns, and ``quiet``."""

    @click.option(
        "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="What stdout gets."
    )
    @click.option("--quiet", is_flag=True, help="No progress on stderr.")
    @functools.wraps(command)
    def wrapped(*arguments: Any, output: str, **options: Any) -> Any:
        printer = make_printer(output)
        try:
            return command(*arguments, printer=printer, **options)
        finally:
            printer.close()

    return wrapped


@contextlib.contextmanager
def progress_shown(*, quiet: bool) -> Iterator[Progress | None]:
    """A callback that shows progress: a bar where stderr is a terminal, else a line every 5 s, nothing when quiet."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        yield _PlainProgress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=None)
        yield lambda what, done, total: bars.update(task, description=what, completed=done, total=total or None)


class _PlainProgress:
    """Progress as lines, not more often than every few seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + PLAIN_PROGRESS_SECONDS

    def __call__(self, what: str, done: int, total: int) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + PLAIN_PROGRESS_SECONDS
        share = f" ({100 * done // total} %)" if total else ""
        click.echo(f"{what}: {format_bytes(done)} of {format_bytes(total)}{share}", err=True)
