"""What all pipeline jobs have in common on the command line: where Spark runs, what it loads, and a bar on stderr."""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stratamq.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stratamq.pipeline.progress import TaskProgress


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes: 1048576, 64k, 128m, 1g."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it as bytes, at least 1."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([0-9]{1,15})([kmgt]?)(?:i?b)?", str(value).lower())
        size = int(found[1]) * 1024 ** " kmgt".index(found[2] or " ") if found else 0
        if not size:
            self.fail(f"{value!r} is no size; write 1048576, 64k, 128m or 1g", param, ctx)
        return size


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Where and how Spark is to run."""

    master: str | None
    config: dict[str, str]

    @contextmanager
    def session(self, job: str, doing: str, *, quiet: bool) -> Iterator[tuple[SparkSession, TaskProgress | None]]:
        """A session for as long as the block runs, and what shows its progress: ``doing`` is what the bar says."""
        from stratamq.pipeline.session import session

        with ExitStack() as stack:
            progress = None if quiet else _progress(stack, doing)
            log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"stratamq-{job}-")), "jvm.log")
            spark = session(f"stratamq pipeline {job}", self.master, config=self.config, jvm_log=log)
            stack.callback(spark.stop)
            yield spark, progress


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--master``, ``--packages`` and ``--conf``; it gets ``spark_settings``."""

    @click.option("--master", help="Spark master URL; without it that of spark-submit, else local[*].")
    @click.option("--packages", help="Maven coordinates, separated by commas, that Spark is to load.")
    @click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; may be given several times.")
    @functools.wraps(command)
    def wrapped(master: str | None, packages: str | None, conf: tuple[str, ...], **options: Any) -> Any:
        config = dict(_pair(one) for one in conf)
        if packages:
            config["spark.jars.packages"] = packages
        return command(spark_settings=SparkOptions(master, config), **options)

    return wrapped


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise ConfigError("--conf", text, "spark.SOMETHING=VALUE")
    return key, value


def _progress(stack: ExitStack, doing: str) -> TaskProgress | None:
    """A bar on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        return None
    bar = stack.enter_context(Progress(console=console, transient=True))
    task = bar.add_task("starting Spark", total=None)
    return lambda done, total: bar.update(task, description=doing, completed=done, total=total)
