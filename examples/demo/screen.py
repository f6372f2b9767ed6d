"""What the demo shows: chapters, progress bars on a terminal, and a few plain lines everywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table


class Bar:
    """One piece of long work. `at` may be called as often as one likes."""

    def __init__(self, screen: Screen, text: str, total: int, progress: Progress | None) -> None:
        self._screen = screen
        self._text = text
        self._total = total
        self._progress = progress
        self._task = None if progress is None else progress.add_task(text, total=total or None)
        self._quarter = 0

    def at(self, done: int, total: int | None = None) -> None:
        """Say how much is done by now, and of how much when that became known only now."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=total or self._total or None)
        elif self._total and done * 4 // self._total > self._quarter:
            self._quarter = done * 4 // self._total
            self._screen.say(f"  {self._text}: {done:,} of {self._total:,}")


class Screen:
    """Standard output, for people."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self._chapter = 0
        self._began = time.monotonic()

    def say(self, text: str = "") -> None:
        """Print one line."""
        self.console.print(text, markup=False)

    @contextmanager
    def chapter(self, title: str) -> Iterator[None]:
        """A numbered part of the story; says how long it took when it is over."""
        self._chapter += 1
        self.console.print(f"\n[bold]{self._chapter}. {title}[/bold]")
        began = time.monotonic()
        yield
        self.console.print(f"   [dim]{time.monotonic() - began:.1f} s[/dim]")

    @contextmanager
    def bar(self, text: str, total: int) -> Iterator[Bar]:
        """A progress bar of ``total`` steps; 0 when nobody knows."""
        if not self.console.is_terminal:
            yield Bar(self, text, total, None)
            return
        columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
        with Progress(*columns, TimeElapsedColumn(), console=self.console, transient=True) as progress:
            yield Bar(self, text, total, progress)

    def table(self, rows: Sequence[tuple[str, str]]) -> None:
        """The last word: what happened, in two columns."""
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row(name, value)
        self.console.print()
        self.console.print(table)

    def seconds(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._began
