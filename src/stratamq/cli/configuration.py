"""Prints docs/configuration.md: ``python -m stratamq.cli.configuration > docs/configuration.md``."""

from __future__ import annotations

import sys

from stratamq.server.broker_conf import render_settings


def main() -> None:
    """Print the page."""
    sys.stdout.write(render_settings())


if __name__ == "__main__":
    main()
