"""Control records: ordinary records of a system topic, whose body is JSON. Byte table: docs/formats/raft.md.

Kinds: ``term`` starts a leader's term and names the members, ``members`` changes them, ``table`` holds one of the
broker's tables (what else would be a file in ``config``), ``delete`` removes a topic's queues, ``trim`` the log's
oldest files, on every member.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from stratamq.errors import CorruptionError
from stratamq.logstore.types import Message
from stratamq.replication.members import Config, Control, Member

CONTROL_TOPIC: Final = "rmq_sys_STRATAMQ_RAFT"
BODY_BYTES_MAX: Final = 3 * 1024 * 1024


class Table(NamedTuple):
    """One of the broker's tables as a control record holds it."""

    name: str
    value: Any


class Deletion(NamedTuple):
    """The queues of a topic go, on every member at this place of the log."""

    topic: str


def encode_deletion(topic: str) -> bytes:
    """Body of a record that deletes a topic's queues."""
    return _encode({"kind": "delete", "topic": topic})


def encode_trim(offset: int) -> bytes:
    """Body of a record by which all members delete what lies below ``offset``."""
    return _encode({"kind": "trim", "offset": offset})


def encode_members(term: int, leader: str, config: Config, start: int, *, starts_term: bool) -> bytes:
    """Body of a record that starts a term or changes the members.

    ``start`` is where the term's bytes begin: at the record, or at the blank before it that ended a file.
    """
    return _encode(
        {
            "kind": "term" if starts_term else "members",
            "term": term,
            "start": start,
            "leader": leader,
            "voters": [list(member) for member in config.voters],
            "learners": [list(member) for member in config.learners],
        }
    )


def encode_table(name: str, value: Any) -> bytes:
    """Body of a record that holds a table. Raises ValueError when it is longer than a record may be."""
    body = _encode({"kind": "table", "name": name, "value": value})
    if len(body) > BODY_BYTES_MAX:
        raise ValueError(f"table {name} takes {len(body)} bytes, at most {BODY_BYTES_MAX} can be replicated")
    return body


def _encode(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def decode_control(body: bytes | memoryview, start: int, end: int, where: str) -> Control | Table | Deletion:
    """What a control record says. Raises CorruptionError when it says nothing that can be understood."""
    try:
        value = json.loads(bytes(body))
        kind = value["kind"]
        if kind == "table":
            return Table(str(value["name"]), value["value"])
        if kind == "delete":
            return Deletion(str(value["topic"]))
        if kind == "trim":
            if not 0 < int(value["offset"]) <= start:
                raise ValueError(value["offset"])
            return Control(start, end, 0, None, int(value["offset"]))
        if kind not in ("term", "members"):
            raise ValueError(kind)
        config = Config(_members(value["voters"]), _members(value["learners"]))
        term, begin = int(value["term"]), int(value["start"])
        if not config.voters or term <= 0 or not 0 <= begin <= start:
            raise ValueError(term)
        return Control(begin, end, term if kind == "term" else 0, config)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(where, start, "a control record", repr(bytes(body[:60]))) from error


def _members(value: Any) -> tuple[Member, ...]:
    return tuple(sorted(Member(str(node), int(incarnation)) for node, incarnation in value))


def control_message(body: bytes, host: bytes, now_ms: int) -> Message:
    """The message that carries a control record."""
    return Message(topic=CONTROL_TOPIC, queue_id=0, body=body, properties="", born_timestamp=now_ms, born_host=host)
