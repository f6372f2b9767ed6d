"""`stratamq store clean --broker`: what a running broker would delete, and asking it to, by its HTTP port."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, Final

import click

from stratamq.cli.clean_rows import GOES, LOSES, NOBODY, NOW, STAYS
from stratamq.cli.output import Item, Kind, Printer
from stratamq.errors import InvalidArgument, PeerRefused, PeerUnreachable

PATH: Final = "/api/v1/retention"
TIMEOUT_S: Final = 30.0
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
DISKS = (
    Item("path", "disk of"),
    Item("percent", "used now, %", Kind.COUNT),
    Item("percent_after", "then, %", Kind.COUNT),
)


def clean_broker(address: str, printer: Printer, *, dry_run: bool, yes: bool) -> None:
    """Show what a request would delete and, unless ``dry_run``, ask and then request it.

    Raises:
        InvalidArgument: ``address`` is not HOST:PORT.
        PeerUnreachable: Nothing answers there.
        PeerRefused: What answers is no such broker, or does not allow it.
    """
    view = _ask(address, "GET", f"{PATH}?requested=1")
    try:
        _show(view, printer)
        count = len(view["goes"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PeerRefused(address, PATH, 200, f"not a broker's plan: {error!r}") from None
    if dry_run:
        return
    if not count:
        printer.remark("Nothing to delete.")
        return
    if not yes:
        click.confirm(f"Let the broker delete {count} commit-log files?", abort=True, err=True)
    answer = _ask(address, "POST", PATH)
    rounds, interval_ms = answer.get("rounds"), answer.get("interval_ms")
    if type(rounds) is not int or type(interval_ms) is not int:
        raise PeerRefused(address, PATH, 202, "not a broker's answer")
    printer.facts("requested", "Requested", [(Item("rounds", "rounds", Kind.COUNT), rounds)])
    printer.remark(f"The broker deletes them in its next {rounds} rounds, one every {interval_ms // 1000} s.")


def _show(view: Mapping[str, Any], printer: Printer) -> None:
    going = [(row["file"], NOW, row["frees_bytes"], row["reason"]) for row in view["goes"]]
    printer.blocks("goes", f"{len(going)} files go", GOES, going)
    staying = [(row["file"], row["cause"], row["due_ms"], row["reason"]) for row in view["stays"]]
    printer.blocks("stays", f"{len(staying)} commit-log files stay", STAYS, staying)
    rows = [(row["group"] or NOBODY, *(row[item.key] for item in LOSES[1:])) for row in view["losses"]]
    printer.table("losses", "What consumer groups lose", LOSES, rows)
    if not rows:
        printer.remark("No consumer group loses messages that it has not read.")
    printer.table("disks", "Disks", DISKS, [tuple(row[item.key] for item in DISKS) for row in view["disks"]])
    facts = [
        (Item("frees_bytes", "frees", Kind.BYTES), view["frees_bytes"]),
        (Item("min_offset_after", "log begins at"), view["min_offset_after"]),
        (Item("is_live", "a broker is running on it"), True),
    ]
    printer.facts("disk", "Afterwards", facts)
    if view["warning"]:
        printer.remark(f"{view['warning']}.")


def _ask(address: str, method: str, path: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidArgument(f"--broker {address}: the broker's HTTP address is needed, as HOST:PORT")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S)
    try:
        headers = {"Content-Type": "application/json"} if method == "POST" else {}
        connection.request(method, path, body=b"{}" if method == "POST" else None, headers=headers)
        answer = connection.getresponse()
        status, data = answer.status, answer.read(ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise PeerUnreachable(address, str(error) or type(error).__name__) from error
    finally:
        connection.close()
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if status >= 300 or not isinstance(value, dict):
        said = value.get("error", "") if isinstance(value, dict) else "the answer is no JSON object"
        raise PeerRefused(address, path, status, str(said))
    return value
