"""Where Spark finds the source `stratamq`: it imports every top-level module called ``pyspark_*`` and takes this.

Spark imports this at the first use of any source in a session, so it stays light.
"""

from stratamq.pipeline.datasource import StrataDataSource as DefaultSource

__all__ = ["DefaultSource"]
