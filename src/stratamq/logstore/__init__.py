"""The log store: one commit log for all topics, consume queues and an index derived from it."""
