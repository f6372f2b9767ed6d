"""A store as a DataFrame, with only the columns that are wanted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratamq.errors import PipelineError
from stratamq.pipeline.options import OPTIONS, parse_options
from stratamq.pipeline.schema import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_store(
    spark: SparkSession,
    path: str | os.PathLike[str] | None = None,
    columns: Sequence[str] | None = None,
    **options: object,
) -> DataFrame:
    """A DataFrame over the store at ``path``, or what the options name, that builds only ``columns`` (None: all).

    Spark does not tell a Python source which columns a query uses, and even a count asks for all of them. So name
    them: a query of two narrow columns runs several times as fast, and ``read_store(spark, path,
    ["queue_offset"]).count()`` does not touch the commit log at all.

    Args:
        spark: The session, best one of `pipeline.session.session`, in which filters reach the source.
        path: The store directory; None where the options name a broker (``namesrv``) or a tier (``tier``).
        columns: Names of columns, in the order wanted.
        options: Options of the source by their names, such as ``topics="orders"``, ``minPartitions=8``; a mapping is
            written as JSON, True and False as Spark does.

    Raises:
        PipelineError, ConfigError: An option or a column is not known, or a value not usable.
    """
    texts = {name: _text(name, value) for name, value in options.items()}
    if path is not None:
        texts["path"] = os.fspath(path)
    schema = spark_schema(columns if columns is not None else parse_options(texts).columns)
    parse_options(texts)
    return spark.read.format("stratamq").options(**texts).schema(schema).load()


def read_lake(spark: SparkSession, url: str) -> DataFrame:
    """The rows of a lake that the sink wrote (option ``lake``), at its newest version, read by Spark's own reader.

    The table is what its commits name; a query over it is not changed by later ones. ``file://`` anywhere; other
    addresses where Spark has their file system.

    Raises:
        PipelineError, CorruptionError: There is no such table, or it cannot be read.
    """
    import json

    from pyspark.sql.types import StructType

    from stratamq.pipeline.lake_sink import LakeOptions

    lake = LakeOptions(url, "", "", "").open()
    try:
        found = lake.snapshot()
    finally:
        lake.backend.close()
    if found.schema is None:
        raise PipelineError(f"{url} has no table")
    schema = StructType.fromJson(json.loads(found.schema))
    if not found.files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*(f"{url.rstrip('/')}/{file.name}" for file in found.files))


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        import json

        return json.dumps(value)
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, list | tuple) and all(isinstance(one, str | int) for one in value):
        return ",".join(map(str, value))
    raise PipelineError(
        f"option {name} is {value!r}; give text, a number, a list or a mapping (options: {', '.join(OPTIONS)})"
    )
