"""Policies: settings for queues and exchanges by name pattern, without touching their declarations.

Of the policies that fit an object the one with the highest priority holds, alone. Operator policies are chosen in the
same way and merged on top: of two numbers the smaller one wins, anything else is the operator's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from stratamq.errors import InvalidArgument

APPLIES_TO: Final = ("all", "queues", "exchanges", "classic_queues", "quorum_queues", "streams")
_QUEUE_KINDS: Final[Mapping[str, str]] = {
    "classic_queues": "classic",
    "quorum_queues": "quorum",
    "streams": "stream",
}


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy of a virtual host."""

    name: str
    pattern: str
    definition: Mapping[str, Any]
    apply_to: str = "all"
    priority: int = 0
    is_operator: bool = False
    regex: re.Pattern[str] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.apply_to not in APPLIES_TO:
            raise InvalidArgument(f"apply-to of policy {self.name!r} is {self.apply_to!r}; allowed: {APPLIES_TO}")
        try:
            object.__setattr__(self, "regex", re.compile(self.pattern))
        except re.error as error:
            raise InvalidArgument(f"pattern of policy {self.name!r} is no regular expression: {error}") from error

    def fits(self, kind: str, name: str, queue_type: str) -> bool:
        """Whether it holds for an object; ``kind`` is ``queues`` or ``exchanges``."""
        wanted = self.apply_to
        if wanted in _QUEUE_KINDS:
            if kind != "queues" or _QUEUE_KINDS[wanted] != queue_type:
                return False
        elif wanted not in ("all", kind):
            return False
        return self.regex.search(name) is not None


class Policies:
    """The policies of one virtual host."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, bool], Policy] = {}

    def __iter__(self) -> Iterator[Policy]:
        return iter(self._all.values())

    def set(self, policy: Policy) -> None:
        """Add a policy, or replace the one of that name."""
        self._all[policy.name, policy.is_operator] = policy

    def clear(self, name: str, *, is_operator: bool = False) -> bool:
        """Take a policy away; False when it was not there."""
        return self._all.pop((name, is_operator), None) is not None

    def definition_for(self, kind: str, name: str, *, queue_type: str = "") -> dict[str, Any]:
        """What holds for an object, merged."""
        merged = dict(self._best(kind, name, queue_type, is_operator=False))
        for key, value in self._best(kind, name, queue_type, is_operator=True).items():
            old = merged.get(key)
            both_numbers = isinstance(old, int) and isinstance(value, int)
            merged[key] = min(old, value) if both_numbers and old is not None else value
        return merged

    def _best(self, kind: str, name: str, queue_type: str, *, is_operator: bool) -> Mapping[str, Any]:
        fitting = [
            policy
            for policy in self._all.values()
            if policy.is_operator is is_operator and policy.fits(kind, name, queue_type)
        ]
        return max(fitting, key=lambda policy: policy.priority).definition if fitting else {}
