"""Benchmarks: each runs us and a named peer in turn in one run and prints the ratio.

Absolute figures drift from machine to machine and from hour to hour; ratios of interleaved pairs are what is kept.
Run all with ``./dev bench`` or one with ``./dev bench NAME``. Nothing here is a test.
"""
