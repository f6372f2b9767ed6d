"""``stratamq serve``: a broker with its name server and page, in one process, data under one directory."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from stratamq.config import (
    BrokerConfig,
    HaConfig,
    QueueStoreConfig,
    RetentionConfig,
    ServerConfig,
    StoreConfig,
    TieredConfig,
    TlsConfig,
)
from stratamq.errors import ConfigError, StrataError
from stratamq.server.broker_conf import BrokerConf, build, read_broker_conf
from stratamq.server.lifecycle import serve as run_server
from stratamq.server.settings import Settings

_log = logging.getLogger(__name__)
LEVELS = ("debug", "info", "warning", "error")


class LineFormatter(logging.Formatter):
    """One line a record: time, level, part, text; a traceback follows on one line too."""

    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Fold line ends, so that a record stays one line whatever a client put into it."""
        return super().format(record).replace("\r", "\\r").replace("\n", "\\n")


def set_up_logging(level: str) -> None:
    """Log to stderr from ``level`` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def read_settings(conf: BrokerConf | None, *, data_dir: Path | None, flags: dict[str, Any]) -> Settings:
    """Put defaults, file and flags together. Raises ConfigError."""
    values = conf.values if conf is not None else {}
    directory = data_dir or (Path(conf.data_dir) if conf is not None and conf.data_dir else None)
    if directory is None:
        raise ConfigError("--data-dir", "", "a directory for the data (or storePathRootDir in --config)")
    tier = {"url": flags.pop("tier", None)}
    tls = {name: flags.pop(f"tls_{name}", None) for name in ("certificate", "key", "ca")}
    return Settings(
        data_dir=directory,
        server=build(ServerConfig, values.get(ServerConfig, {}), flags),
        broker=build(BrokerConfig, values.get(BrokerConfig, {})),
        store=build(StoreConfig, values.get(StoreConfig, {})),
        retention=build(RetentionConfig, values.get(RetentionConfig, {})),
        tiered=build(TieredConfig, values.get(TieredConfig, {}), tier),
        queues=build(QueueStoreConfig, values.get(QueueStoreConfig, {})),
        ha=build(HaConfig, values.get(HaConfig, {})),
        tls=build(TlsConfig, values.get(TlsConfig, {}), tls),
    )


def run(
    command: str, flags: dict[str, Any], *, data_dir: Path | None, ready_file: Path | None, config_file: Path | None
) -> None:
    """Run a server until it is told to stop; what goes wrong becomes one sentence and an exit code."""
    try:
        conf = read_broker_conf(config_file) if config_file is not None else None
        if conf is not None and conf.unknown:
            _log.warning("%s: keys without effect here: %s", config_file, ", ".join(conf.unknown))
        settings = read_settings(conf, data_dir=data_dir, flags=flags)
        asyncio.run(run_server(settings, ready_file=ready_file))
    except StrataError as error:
        raise SystemExit(failed(command, str(error), error.exit_code)) from error
    except OSError as error:
        raise SystemExit(failed(command, f"{error.filename or data_dir}: {error.strerror or error}", 1)) from error


def process_options(function: Callable[..., None]) -> Callable[..., None]:
    """The options of every command that runs until it is stopped."""
    for option in reversed(
        (
            click.option(
                "--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Directory for all data."
            ),
            click.option("--host", help="IPv4 address to listen on.  [default: 127.0.0.1]"),
            click.option(
                "--ready-file",
                type=click.Path(path_type=Path, dir_okay=False),
                help="Written with the addresses as JSON once clients may connect; removed at stop.",
            ),
            click.option(
                "--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="What is logged."
            ),
        )
    ):
        function = option(function)
    return function


def broker_options(function: Callable[..., None]) -> Callable[..., None]:
    """The options of every command that runs a broker."""
    port = click.IntRange(0, 65535)
    for option in reversed(
        (
            click.option("--broker-port", type=port, help="Broker; 0 picks a free one.  [default: 10911]"),
            click.option("--http-port", type=port, help="Page, API, metrics; 0: a free one.  [default: 8161]"),
            click.option(
                "--amqp-port", type=click.IntRange(-1, 65535), help="AMQP; 0: a free one, -1: none.  [default: 5672]"
            ),
            click.option("--amqps-port", type=click.IntRange(-1, 65535), help="AMQP over TLS.  [default: none]"),
            click.option("--https-port", type=click.IntRange(-1, 65535), help="HTTP over TLS.  [default: none]"),
            click.option("--tls-certificate", help="PEM file with the certificate; without one there is no TLS."),
            click.option("--tls-key", help="PEM file with its private key.  [default: the certificate's file]"),
            click.option("--tls-ca", help="PEM file with the authorities of clients' certificates."),
            click.option("--tier", help="Cold tier: file:///DIRECTORY or s3://BUCKET/PREFIX.  [default: none]"),
            click.option(
                "--config",
                "config_file",
                type=click.Path(path_type=Path, dir_okay=False),
                help="RocketMQ's broker.conf.",
            ),
        )
    ):
        function = option(function)
    return function


@click.command()
@process_options
@click.option("--namesrv-port", type=click.IntRange(0, 65535), help="Name server; 0 picks a free one.  [default: 9876]")
@broker_options
@click.option("--replicas", type=click.Choice(["3", "5"]), help="Run a group of so many brokers that elect a leader.")
def serve(
    data_dir: Path | None,
    ready_file: Path | None,
    config_file: Path | None,
    log_level: str,
    replicas: str | None,
    **flags: Any,
) -> None:
    """Run a broker with its name server until SIGTERM or Ctrl-C.

    RocketMQ clients connect to the name server's port, RabbitMQ clients to the AMQP port; everything is kept below the
    data directory.
    """
    set_up_logging(log_level)
    if replicas is not None:
        from stratamq.server.replicas import serve_replicas

        settings = read_settings(None, data_dir=data_dir, flags=flags)
        asyncio.run(serve_replicas(settings, int(replicas), ready_file=ready_file))
        return
    run("serve", flags, data_dir=data_dir, ready_file=ready_file, config_file=config_file)


def failed(command: str, text: str, exit_code: int) -> int:
    """Say in one sentence why a command ends; returns the exit code."""
    click.echo(f"stratamq {command}: {text}", err=True)
    return exit_code


if __name__ == "__main__":
    serve()
