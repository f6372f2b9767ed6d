"""`stratamq pipeline`: bulk work on a store with Spark."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click

from stratamq.pipeline.progress import TaskProgress


@click.group()
def pipeline() -> None:
    """Bulk work on a store directory, done by Spark. Needs: pip install 'stratamq[spark]'."""


@pipeline.command()
@click.option(
    "--store", required=True, type=click.Path(path_type=Path), help="Store directory; a broker may be running."
)
@click.option(
    "--out", "html", required=True, type=click.Path(path_type=Path, dir_okay=False), help="HTML file to write."
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Also write all figures here."
)
@click.option("--master", help="Spark master URL; without it that of spark-submit, else local[*].")
@click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="What stdout gets."
)
def report(store: Path, html: Path, json_file: Path | None, master: str | None, output: str) -> None:
    """Write a report on what is in a store: rates, sizes, tags, keys, balance of queues, delays.

    The store is read up to where it ends now. Progress goes to standard error; --output json prints the figures.
    """
    from stratamq.logstore.listing import require_store
    from stratamq.pipeline.jobs.report import make_report, write_report
    from stratamq.pipeline.session import session

    require_store(store)  # before seconds go by in starting a JVM
    with ExitStack() as stack:
        progress = _progress(stack)
        log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stratamq-report-")), "jvm.log")
        spark = session("stratamq pipeline report", master, jvm_log=log)
        stack.callback(spark.stop)
        made = make_report(spark, store, progress)
    write_report(made, html, json_file)
    if output == "json":
        click.echo(json.dumps(made.as_json(), ensure_ascii=False))
        return
    sizes = made.sizes.percentiles
    click.echo(f"{made.messages:,} messages in {len(made.topics)} topics and {len(made.queues)} queues")
    click.echo(f"bodies: {made.body_bytes:,} bytes; half are up to {sizes['p50']:,}, 99 % up to {sizes['p99']:,}")
    click.echo(f"report: {html}" + (f", figures: {json_file}" if json_file else ""))


def _progress(stack: ExitStack) -> TaskProgress | None:
    """A bar on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        return None
    bar = stack.enter_context(Progress(console=console, transient=True))
    task = bar.add_task("starting Spark", total=None)
    return lambda done, total: bar.update(task, description="reading the store", completed=done, total=total)
