"""A group that moves only when told: for scripts of what happens in a figure, and for tests of single steps.

Disks finish at once unless told otherwise (`disk NODE slow`). Every message waits on its link until it is delivered,
dropped, or the link is cut. Script commands and their trace: see the files in `scripts`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from random import Random

from stratamq.replication.core import RaftCore
from stratamq.replication.members import Config, Configs, Epochs, Member, initial_config
from stratamq.replication.messages import Append, AppendReply, RaftMessage, TimeoutNow, VoteReply, VoteRequest
from stratamq.replication.ports import HardState, RaftTimes
from stratamq.replication.state import Member0, SafetyViolation
from tests.simulation.disk import SimDisk
from tests.simulation.ghost import Ghost, Rec

TIMES = RaftTimes(heartbeat_ms=100, election_min_ms=1_000, election_max_ms=1_500, retry_ms=100_000)


class Deck:
    """See the module's text."""

    def __init__(self, names: list[str], core_class: type[RaftCore] = RaftCore) -> None:
        self.names = names
        self.core_class = core_class
        self.ghost = Ghost()
        self.disks = {name: SimDisk(name, self.ghost, Random(0), at + 1) for at, name in enumerate(names)}
        self.cores: dict[str, RaftCore] = {}
        self.links: dict[tuple[str, str], deque[RaftMessage]] = defaultdict(deque)
        self.cut: set[tuple[str, str]] = set()
        self.slow: set[str] = set()
        self.unsaved: dict[str, tuple[int, HardState]] = {}
        self.trace: list[str] = []
        self.values: dict[int, str] = {}
        for name in names:
            self.start(name)

    # --- what a script can say ---

    def start(self, name: str) -> None:
        """Recovery and a new core."""
        disk = self.disks[name]
        controls = disk.log.controls()
        begin = Member0(
            name,
            disk.hard,
            Epochs((control.term, control.start) for control in controls if control.term),
            Configs(initial_config(self.names), ((c.end, c.config) for c in controls if c.config is not None)),
        )
        disk.log.synced_end = disk.log.end
        self.cores[name] = self.core_class(begin, disk.log, TIMES, Random(0), 10_000)
        disk.log.core = self.cores[name]
        self._after(name)

    def crash(self, name: str) -> None:
        """Only what was synced survives; what is on the way to others still comes."""
        disk = self.disks[name]
        del self.cores[name]
        self.unsaved.pop(name, None)
        disk.log.core = None
        disk.log._cut(disk.log._at(disk.log.synced_end))

    def expire(self, name: str) -> None:
        """The member's election timeout passes, and the other followers have heard no leader for as long."""
        self._pass(name, TIMES.election_max_ms)
        for other in self.cores.values():
            if not other.is_leader:
                other._heard_ms = -TIMES.election_max_ms

    def beat(self, name: str) -> None:
        """A heartbeat's time passes for one member."""
        self._pass(name, TIMES.heartbeat_ms)

    def _pass(self, name: str, duration_ms: int) -> None:
        core = self.cores[name]
        for _ in range(duration_ms // 100):
            core.tick(core.now_ms + 100)
        self._after(name)

    def put(self, name: str, text: str) -> None:
        """A client's record, at the leader."""
        core = self.cores[name]
        before = core.log.end
        value = len(self.values) + 1
        self.values[value] = text
        self.disks[name].log.append(core.term, 10, value)
        core.appended(before)
        core.pump()
        self._after(name)

    def finish(self, name: str) -> None:
        """What the disk was asked for is done."""
        core, disk = self.cores[name], self.disks[name]
        while True:
            if name in self.unsaved:
                number, disk.hard = self.unsaved.pop(name)
                core.hard_state_saved(number)
            elif disk.log.synced_end < disk.log.end:
                disk.log.synced_end = disk.log.end
                core.synced(disk.log.end, core.generation)
            else:
                break
            self._collect(name)

    def deliver(self, *links: tuple[str, str]) -> None:
        """Deliver what waits, on the links named or on all, until nothing waits there any more."""
        count = 0
        while True:
            chosen = [link for link in (links or sorted(self.links)) if self.links[link]]
            if not chosen:
                return
            self.step(chosen[0])
            count += 1
            assert count < 1_000, "messages without end"

    def step(self, link: tuple[str, str]) -> None:
        """Deliver the first message on one link."""
        assert self.links[link], f"nothing is on its way on {link}"
        message = self.links[link].popleft()
        sender, to = link
        if to in self.cores and link not in self.cut:
            self.trace.append(f"{sender}>{to} {show(message)}")
            self.cores[to].receive(message)
            self.cores[to].pump()
            self._after(to)

    def drop(self, *links: tuple[str, str]) -> None:
        """Lose what waits."""
        for link in links or tuple(self.links):
            self.links[link].clear()

    # --- inside ---

    def _after(self, name: str) -> None:
        self._collect(name)
        if name not in self.slow:
            self.finish(name)
        core, log = self.cores[name], self.disks[name].log
        self.ghost.decides(name, log.recs, log.ends, 0, core.commit)

    def _collect(self, name: str) -> None:
        core = self.cores[name]
        output = core.take()
        if output.hard_state is not None:
            self.unsaved[name] = (output.hard_state_number, output.hard_state)
        for to, message in output.messages:
            self.links[name, to].append(message)

    def show_logs(self) -> list[str]:
        """One line a member: role, term, decided, and its log as TERM:record, control records as *."""
        lines = []
        for name in self.names:
            log = self.disks[name].log
            recs = " ".join(f"{rec.term}:{self._name(rec)}" for rec in log.recs)
            core = self.cores.get(name)
            if core is None:
                lines.append(f"{name} down        | {recs}")
                continue
            decided = sum(end <= core.commit for end in log.ends)
            lines.append(f"{name} {core.role.value} t{core.term} decided {decided} | {recs}")
        return lines

    def _name(self, rec: Rec) -> str:
        return self.values[rec.value] if rec.value else "*"


def show(message: RaftMessage) -> str:
    """A message in a few words."""
    if isinstance(message, VoteRequest):
        return f"{'prevote' if message.is_pre else 'vote'} t{message.term}? log {message.last_term}@{message.end}"
    if isinstance(message, VoteReply):
        return f"{'pre' if message.is_pre else ''}vote t{message.asked_term} {'yes' if message.is_granted else 'no'}"
    if isinstance(message, Append):
        return f"append t{message.term} {message.prev_term}@{message.prev}+{len(message.body)} decided {message.commit}"
    if isinstance(message, AppendReply):
        if message.is_accepted:
            return f"has {message.durable} durable, {message.received} received"
        return f"refuses {message.prev}, hint {message.hint_term}@{message.hint_end}"
    assert isinstance(message, TimeoutNow)
    return f"stand now t{message.term}"


def perform(text: str, core_class: type[RaftCore] = RaftCore) -> str:
    """Run a script: lines `> COMMAND` are kept, the trace between them is written anew; so are comments."""
    out: list[str] = []
    deck: Deck | None = None
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            out.append(line)
            continue
        if not line.startswith("> "):
            continue
        out.append(line)
        words = line[2:].split()
        if words[0] == "group":
            deck = Deck(words[1:], core_class)
            continue
        assert deck is not None, "a script begins with its group"
        out += [f"  {entry}" for entry in _obey(deck, words)]
    return "\n".join(out) + "\n"


def _obey(deck: Deck, words: list[str]) -> list[str]:
    command, rest = words[0], words[1:]
    links = [tuple(word.split(">")) for word in rest]
    try:
        if command in ("start", "crash", "expire", "beat", "finish"):
            getattr(deck, command)(rest[0])
        elif command == "put":
            deck.put(rest[0], rest[1])
        elif command == "disk":
            deck.slow.add(rest[0]) if rest[1] == "slow" else deck.slow.discard(rest[0])
        elif command == "deliver":
            deck.deliver(*links)  # type: ignore[arg-type]
        elif command == "step":
            for link in links:
                deck.step(link)  # type: ignore[arg-type]
        elif command == "drop":
            deck.drop(*links)  # type: ignore[arg-type]
        elif command == "isolate":
            deck.cut |= {link for name in rest for other in deck.names for link in ((name, other), (other, name))}
        elif command == "heal":
            deck.cut.clear()
        elif command == "elect":
            if deck.cores[rest[0]].is_leader:
                deck.crash(rest[0])
                deck.start(rest[0])
            deck.expire(rest[0])
            deck.deliver()
            deck.trace.clear()
            assert deck.cores[rest[0]].is_leader
        elif command == "logs":
            return deck.show_logs()
        elif command == "transfer":
            deck.cores[rest[0]].transfer(rest[1])
            deck._after(rest[0])
        else:
            raise ValueError(f"no command {command}")
    except SafetyViolation as error:
        return [f"SAFETY: {error}"]
    trace, deck.trace = deck.trace, []
    return trace


def settled(names: list[str]) -> Config:
    """The configuration of a deck once its first leader has led."""
    return Config(tuple(Member(name, at + 1) for at, name in enumerate(names)))
