"""A member of a replication group from the command line: what `broker --group` and `serve --replicas` run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from stratamq.cli.serve import failed, read_settings
from stratamq.errors import ConfigError, StrataError
from stratamq.server.broker_conf import read_broker_conf


def run_member(
    group: str | None,
    node: str | None,
    peers: str | None,
    flags: dict[str, Any],
    *,
    data_dir: Path | None,
    ready_file: Path | None,
    config_file: Path | None,
) -> None:
    """Run one member until it is told to stop; what goes wrong becomes one sentence and an exit code."""
    from stratamq.server.member import Membership, parse_peers, serve_member

    try:
        if not (group and node and peers):
            raise ConfigError("--group, --node, --peers", "", "all three together")
        conf = read_broker_conf(config_file) if config_file is not None else None
        settings = read_settings(conf, data_dir=data_dir, flags=flags)
        membership = Membership(group=group, node=node, peers=parse_peers(peers))
        asyncio.run(serve_member(settings, membership, ready_file=ready_file))
    except StrataError as error:
        raise SystemExit(failed("broker", str(error), error.exit_code)) from error
    except OSError as error:
        raise SystemExit(failed("broker", f"{error.filename or data_dir}: {error.strerror or error}", 1)) from error
