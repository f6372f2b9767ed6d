"""Helpers for tests, ours and our users': a clock moved by hand, a filesystem that fails on demand."""
