"""StrataMQ: a message broker in Python whose store is a stack of strata."""

__version__ = "0.1.0"
