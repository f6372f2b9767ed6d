"""The file to give to ``spark-submit``: ``spark-submit .../stratamq/cli/submit.py verify --store DIR``.

The arguments are those of `stratamq pipeline`; master, packages and settings are those of ``spark-submit``.
"""

from __future__ import annotations

import sys

from stratamq.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["pipeline", *sys.argv[1:]]))
