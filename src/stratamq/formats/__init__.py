"""Bytes <-> values of every file that the store writes: pure functions, no files, no clock."""
