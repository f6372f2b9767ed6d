"""The source's columns as Spark types. They are derived from the Arrow schema, so the two cannot drift apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratamq.errors import PipelineError
from stratamq.formats.arrow import SCHEMA, schema_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def spark_schema(columns: Sequence[str] | None = None) -> StructType:
    """All columns, or those named, in this order. Raises PipelineError for names that are unknown or given twice."""
    if columns is not None and len(set(columns)) != len(columns):
        raise PipelineError(f"a column is named twice: {', '.join(columns)}")
    return spark_types(schema_of(columns))


def spark_types(schema: pa.Schema) -> StructType:
    """An Arrow schema as Spark types."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def check_columns(schema: StructType) -> None:
    """Make sure that a schema given by the user names columns of ours with their types.

    Raises:
        PipelineError: A column is unknown or of another type; the text names it and what there is.
    """
    if not len(schema):
        raise PipelineError(f"the schema has no column; there are {', '.join(SCHEMA.names)}")
    ours = {field.name: field.dataType for field in spark_schema()}
    for field in schema:
        if field.name not in ours:
            raise PipelineError(f"unknown column {field.name}; there are {', '.join(SCHEMA.names)}")
        if field.dataType.simpleString() != ours[field.name].simpleString():
            raise PipelineError(
                f"column {field.name} is {ours[field.name].simpleString()}, not {field.dataType.simpleString()}; "
                "read it with its own type and cast it in the query"
            )
