"""Read a store with Spark: ``python examples/spark_read.py DIR [TOPIC]``.

A broker may be writing the store meanwhile. On a cluster: ``spark-submit --master ... examples/spark_read.py DIR``.
"""

from __future__ import annotations

import sys
from typing import Any

from stratamq.pipeline.frame import read_store
from stratamq.pipeline.session import session


def main(arguments: list[str]) -> int:
    """Print messages by topic and tag, and the newest messages of one topic."""
    if not 1 <= len(arguments) <= 2:
        print(__doc__)
        return 2
    spark = session("stratamq example")
    print("messages by topic and tag:")
    by_tag(spark, arguments[0]).show(truncate=False)
    if len(arguments) == 2:
        print(f"newest messages of {arguments[1]}:")
        newest(spark, arguments[0], arguments[1]).show(truncate=60)
    spark.stop()
    return 0


def by_tag(spark: Any, store: str) -> Any:
    """How many messages of each topic carry which tag; only these two columns are built."""
    return read_store(spark, store, ["topic", "tags"]).groupBy("topic", "tags").count().orderBy("topic", "tags")


def newest(spark: Any, store: str, topic: str, count: int = 5) -> Any:
    """The last messages of a topic by store time, bodies as text."""
    columns = ["queue_id", "queue_offset", "store_timestamp", "tags", "body"]
    frame = read_store(spark, store, columns, topics=topic)
    return (
        frame.orderBy(frame.store_timestamp.desc())
        .limit(count)
        .selectExpr("queue_id", "queue_offset", "store_timestamp", "tags", "cast(body AS string) AS body")
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
