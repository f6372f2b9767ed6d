"""What a check of a store finds: file, byte, expected, found and what to do; of many of a kind most are only
counted."""

from __future__ import annotations

import enum
from collections import Counter
from typing import Final, NamedTuple

from stratamq.errors import CorruptionError, StoreError

LISTED_OF_A_KIND_MAX: Final = 50
"""So many findings of one kind are kept whole; all are counted."""


class Severity(enum.Enum):
    """How bad a finding is. Only errors make a store damaged."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Finding(NamedTuple):
    """One thing that is not as it should be, or worth knowing."""

    severity: Severity
    kind: str
    path: str
    offset: int
    expected: str
    found: str
    advice: str


class Findings:
    """Collects findings, the first `LISTED_OF_A_KIND_MAX` of each kind whole and the others as a count."""

    def __init__(self) -> None:
        self.listed: list[Finding] = []
        self.counts: Counter[tuple[Severity, str]] = Counter()

    def add(
        self, severity: Severity, kind: str, path: str, offset: int, expected: object, found: object, advice: str
    ) -> None:
        """Note one finding."""
        self.counts[severity, kind] += 1
        if self.counts[severity, kind] <= LISTED_OF_A_KIND_MAX:
            self.listed.append(Finding(severity, kind, path, int(offset), str(expected), str(found), advice))

    def error(self, kind: str, path: str, offset: int, expected: object, found: object, advice: str) -> None:
        """Note damage."""
        self.add(Severity.ERROR, kind, path, offset, expected, found, advice)

    def warn(self, kind: str, path: str, offset: int, expected: object, found: object, advice: str) -> None:
        """Note what is odd but loses nothing."""
        self.add(Severity.WARNING, kind, path, offset, expected, found, advice)

    def inform(self, kind: str, path: str, offset: int, expected: object, found: object, advice: str) -> None:
        """Note what an operator may want to know."""
        self.add(Severity.INFO, kind, path, offset, expected, found, advice)

    def count_more(self, severity: Severity, kind: str, count: int) -> None:
        """Count findings that are not listed."""
        if count > 0:
            self.counts[severity, kind] += count

    def wants(self, severity: Severity, kind: str) -> int:
        """How many more findings of a kind would be listed."""
        return max(0, LISTED_OF_A_KIND_MAX - self.counts[severity, kind])

    def add_problem(self, problem: StoreError, advice: str) -> None:
        """Note a typed error about a whole file: missing, of a wrong length, or not one of the store's."""
        if isinstance(problem, CorruptionError):
            kind = "file-missing" if problem.found == "no file" else "file-length"
            self.error(kind, problem.path, problem.offset, problem.expected, problem.found, advice)
        else:
            path = str(getattr(problem, "path", ""))
            self.error("stray", path, 0, "no such file", getattr(problem, "reason", problem), advice)

    def total(self, severity: Severity) -> int:
        """How many findings of a severity there are."""
        return sum(count for (one, _), count in self.counts.items() if one is severity)
