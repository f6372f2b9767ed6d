"""Replication groups: Raft whose log is the commit log itself. Start reading at `core`; docs/design/raft.md."""
