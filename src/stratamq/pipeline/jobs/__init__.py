"""Spark jobs over the log store: each a pure function of one range of records, and a thin driver."""
