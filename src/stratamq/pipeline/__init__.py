"""Bulk data work on Spark, and the Spark data source `stratamq`."""
