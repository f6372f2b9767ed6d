"""``stratamq nameserver``: a name server alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from stratamq.cli.serve import failed, process_options, set_up_logging
from stratamq.config import ServerConfig, TlsConfig
from stratamq.errors import ConfigError, StrataError
from stratamq.server.broker_conf import build, read_broker_conf
from stratamq.server.namesrv_process import serve_names


@click.command()
@process_options
@click.option("--port", "namesrv_port", type=click.IntRange(0, 65535), help="0 picks a free one.  [default: 9876]")
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path, dir_okay=False), help="RocketMQ's namesrv.conf."
)
def nameserver(
    data_dir: Path | None, ready_file: Path | None, config_file: Path | None, log_level: str, **flags: Any
) -> None:
    """Run a name server until SIGTERM or Ctrl-C.

    Brokers register with every name server, which know nothing of each other: run two or three for safety. The data
    directory keeps the key-value settings; routes are told again by the brokers.
    """
    set_up_logging(log_level)
    try:
        found = read_broker_conf(config_file).values if config_file is not None else {}
        values, tls = found.get(ServerConfig, {}), build(TlsConfig, found.get(TlsConfig, {}))
        if "broker_port" in values:  # listenPort: in a namesrv.conf it is the name server's
            values["namesrv_port"] = values.pop("broker_port")
        if data_dir is None:
            raise ConfigError("--data-dir", "", "a directory for the key-value settings")
        asyncio.run(serve_names(build(ServerConfig, values, flags), data_dir, tls=tls, ready_file=ready_file))
    except StrataError as error:
        raise SystemExit(failed("nameserver", str(error), error.exit_code)) from error
    except OSError as error:
        raise SystemExit(failed("nameserver", f"{error.filename}: {error.strerror or error}", 1)) from error
