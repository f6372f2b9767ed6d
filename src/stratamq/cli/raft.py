"""``stratamq raft``: look at a replication group's members, hand leadership over, add and remove members."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import click

from stratamq.cli.serve import failed
from stratamq.errors import ConfigError, StrataError

ASK_AGAIN = 3
_peer = click.option("--peer", required=True, metavar="HOST:PORT", help="Where any member listens for the others.")
_output = click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)


@click.group()
def raft() -> None:
    """Replication groups: status, transfer, add, remove, check."""


def _ask(address: str, **request: Any) -> dict[str, Any]:
    from stratamq.replication.transport import ask

    return asyncio.run(ask(address, request))


def _ask_leader(peer: str, **request: Any) -> dict[str, Any]:
    """Ask a member, then the leader that it names."""
    address, answer = peer, _ask(peer, **request)
    for _ in range(ASK_AGAIN):
        following = answer.get("peers", {}).get(answer.get("leader", ""), "")
        if "error" not in answer or not following or following == address:
            return answer
        address, answer = following, _ask(following, **request)
    return answer


def _all(peer: str) -> dict[str, dict[str, Any]]:
    """The status of every member, by name; what cannot be asked is only an error."""
    first = _ask(peer, do="status")
    found = {first["node"]: first}
    for node, address in sorted(first["peers"].items()):
        if node not in found:
            try:
                found[node] = _ask(address, do="status")
            except StrataError as error:
                found[node] = {"node": node, "error": str(error)}
    return found


def _guarded(call: Callable[[], int]) -> None:
    try:
        code = call()
    except StrataError as error:
        code = failed("raft", str(error), error.exit_code)
    if code:
        raise SystemExit(code)


@raft.command()
@_peer
@_output
def status(peer: str, output: str) -> None:
    """Say of every member what it is, and how far its log is."""

    def show() -> int:
        members = _all(peer)
        if output == "json":
            click.echo(json.dumps(members))
            return 0
        for node, found in sorted(members.items()):
            if "error" in found:
                click.echo(f"{node}  {found['error']}")
                continue
            kind = "voter" if node in found["voters"] else "learner" if node in found["learners"] else "no member"
            click.echo(
                f"{node}  {found['role']}{' (serves)' if found['serves'] else ''}, {kind}, term {found['term']}, "
                f"decided {found['decided']}, on disk {found['durable']}, "
                f"log {found['log_start']} to {found['log_end']}"
                f"{', its disk failed' if found['failed'] else ''}"
            )
        return 0

    _guarded(show)


@raft.command()
@_peer
@_output
def check(peer: str, output: str) -> None:
    """Say whether the group works: one leader that serves, a majority that answers, nobody far behind. 1: no."""

    def look() -> int:
        wrong = faults(_all(peer))
        click.echo(json.dumps({"faults": wrong}) if output == "json" else "\n".join(wrong) or "the group works")
        return 1 if wrong else 0

    _guarded(look)


def faults(members: dict[str, dict[str, Any]]) -> list[str]:
    """What is wrong with a group, in sentences, by what its members say."""
    wrong = [f"{node} does not answer" for node, found in sorted(members.items()) if "error" in found]
    alive = {node: found for node, found in members.items() if "error" not in found}
    wrong += [f"{node} has a failed disk: restart it" for node, found in sorted(alive.items()) if found["failed"]]
    leaders = [found for found in alive.values() if found["serves"]]
    if not leaders:
        return [*wrong, "nobody leads"]
    leader = max(leaders, key=lambda found: found["term"])
    for node in leader["learners"]:
        wrong.append(f"{node} does not vote yet: it has still to catch up")
    for node, found in sorted(alive.items()):
        known = leader["incarnations"].get(node)
        if node in leader["voters"] and known and known != found["incarnation"]:
            wrong.append(f"{node} came back on an empty disk: the group has still to take it in again")
    if not leader["members_decided"]:
        wrong.append("a change of members is not on a majority yet: stop nobody before it is")
    for node, found in sorted(leader["followers"].items()):
        if found["behind"] > 64 * 1024 * 1024:
            wrong.append(f"{node} lacks {found['behind']} bytes")
    if len([node for node in leader["voters"] if node in alive]) * 2 <= len(leader["voters"]):
        wrong.append("no majority of the voters answers")
    return wrong


@raft.command()
@_peer
@click.argument("node")
def transfer(peer: str, node: str) -> None:
    """Let NODE lead from now on."""
    _guarded(lambda: _done(_ask_leader(peer, do="transfer", node=node), f"{node} is asked to lead"))


@raft.command()
@_peer
@click.argument("member", metavar="NODE=HOST:PORT")
def add(peer: str, member: str) -> None:
    """Take a running, empty node in: it learns the log, then votes. Start it with the same --group and all --peers."""
    node, _, address = member.partition("=")

    def join() -> int:
        if not node or ":" not in address:
            raise ConfigError("MEMBER", member, "a node and its address: n4=host:port")
        return _done(_ask_leader(peer, do="add", node=node, address=address), f"{node} is sent the log")

    _guarded(join)


@raft.command()
@_peer
@click.argument("node")
def remove(peer: str, node: str) -> None:
    """Take a node out of the group; stop it afterwards."""
    _guarded(lambda: _done(_ask_leader(peer, do="remove", node=node), f"{node} is no member any more"))


def _done(answer: dict[str, Any], text: str) -> int:
    if "error" in answer:
        return failed("raft", answer["error"], 1)
    click.echo(text)
    return 0
