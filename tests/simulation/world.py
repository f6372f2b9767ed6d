"""A group of members in one thread, with a network, disks and clocks that fail as the seed says.

The members are the production core. The world calls it as the shell does and keeps to the same contract; after each
step it asks the checker in `ghost`. A schedule has two parts: everything goes wrong for a while; then all is healed and
the group must elect a leader, decide a last record and become equal everywhere.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from random import Random

from stratamq.errors import StoreFull
from stratamq.replication.core import RaftCore
from stratamq.replication.members import Config, Configs, Epochs, Member, initial_config
from stratamq.replication.messages import RaftMessage, VoteReply
from stratamq.replication.ports import HardState, RaftTimes
from stratamq.replication.state import Member0, Role
from tests.simulation.disk import Crash, SimDisk, SimLog
from tests.simulation.faults import Faults, draw
from tests.simulation.ghost import Ghost, Violation

TIMES = RaftTimes(
    heartbeat_ms=50, election_min_ms=200, election_max_ms=400, retry_ms=200, frame_bytes_max=60, window_bytes=300
)
TICK_MS = 15
WORLD_TICK_MS = 20
EVENTS_MAX = 60_000
HEAL_MS = 15_000


class Stuck(Violation):
    """The healed group does not come back to work."""


class Node:
    """One member: its disk, which survives, and its core, which does not."""

    def __init__(self, name: str, disk: SimDisk, rate: float) -> None:
        self.name = name
        self.disk = disk
        self.rate = rate
        self.core: RaftCore | None = None
        self.life = 0
        self.paused_until = 0
        self.slow_until = 0
        self.is_syncing = False
        self.looked = 0
        self.led_term = -1
        self.waiting: list[tuple[int, int]] = []
        """(end, value) of records that clients wait for."""


class World:
    """One schedule. `run` raises what it finds."""

    def __init__(
        self, seed: int, count: int = 3, *, core_class: type[RaftCore] = RaftCore, faults: Faults | None = None
    ) -> None:
        self.random = Random(seed)
        self.faults = faults if faults is not None else draw(self.random)
        self.core_class = core_class
        self.now = 0
        self.ghost = Ghost()
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.count = 0
        self.names = [f"n{number}" for number in range(1, count + 1)]
        self.cut: set[tuple[str, str]] = set()
        self.wiped: set[str] = set()
        self.lost_disks: list[SimDisk] = []
        self.value = 0
        self.is_healed = False
        self.incarnations = 100
        self.keeps_identity = getattr(core_class, "keeps_identity", False)
        self.trusts_rot = getattr(core_class, "trusts_rot", False)
        self.nodes: dict[str, Node] = {}
        for name in self.names:
            rate = 1.0 + self.faults.skew * self.random.uniform(-1, 1)
            self.incarnations += 1
            node = Node(name, SimDisk(name, self.ghost, Random(self.random.random()), self.incarnations), rate)
            node.disk.log.crash_in_cut = self.faults.crash_in_cut
            self.nodes[name] = node
            self.start(node)
        self.at(WORLD_TICK_MS, self.meddle)

    # --- events ---

    def at(self, delay: int, call: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.queue, (self.now + max(1, delay), self.count, call))

    def run_until(self, end: int, until: Callable[[], bool] | None = None) -> bool:
        steps = 0
        while self.queue and self.queue[0][0] <= end:
            self.now, _, call = heapq.heappop(self.queue)
            call()
            steps += 1
            if steps > EVENTS_MAX:
                raise Stuck("messages multiply without end")
            if until is not None and steps % 50 == 0 and until():
                return True
        self.now = max(self.now, end)
        return until is not None and until()

    def run(self, horizon_ms: int = 4_000) -> None:
        self.run_until(horizon_ms)
        self.heal()
        if not self.run_until(self.now + HEAL_MS, self.is_equal):
            raise Stuck(f"after {HEAL_MS} ms without faults: {self.describe()}")
        for node in self.nodes.values():
            self.ghost.final(node.disk.log.recs)

    # --- a node's life ---

    def local(self, node: Node) -> int:
        return int(self.now * node.rate) + 1_000

    def start(self, node: Node) -> None:
        """Recovery, then the core."""
        log = node.disk.log
        controls = log.controls()
        begin = Member0(
            node.name,
            node.disk.hard,
            Epochs((control.term, control.start) for control in controls if control.term),
            Configs(initial_config(self.names), ((c.end, c.config) for c in controls if c.config is not None)),
            [(control.end, control.trim) for control in controls if control.trim],
        )
        log.synced_end = log.end
        node.core = self.core_class(begin, log, TIMES, Random(self.random.random()), self.local(node))
        log.core = node.core
        node.life += 1
        node.is_syncing = False
        node.looked = 0
        node.waiting = []
        node.led_term = -1
        node.paused_until = 0
        self._tick(node, node.life)

    def crash(self, node: Node) -> None:
        if node.core is None:
            return
        node.core = None
        node.life += 1
        node.disk.log.core = None
        if node.disk.saving is not None and self.random.random() < 0.5:
            node.disk.hard = node.disk.saving
        node.disk.saving = None
        node.disk.log.lose_unsynced()
        for other in self.nodes.values():
            if other is not node and self.random.random() < self.faults.breaks:
                self.at(self.random.randint(1, 30), partial(self.lose, other, node.name))

    def lose(self, node: Node, other: str) -> None:
        """A node sees that a connection has broken."""
        if self.now >= node.paused_until:
            self.feed(node, lambda core: core.lost(other))

    def _tick(self, node: Node, life: int) -> None:
        if node.life != life:
            return
        if self.now >= node.paused_until:
            self.feed(node, lambda core: core.tick(self.local(node)))
        if node.life == life:
            self.at(TICK_MS, lambda: self._tick(node, life))

    def feed(self, node: Node, call: Callable[[RaftCore], None]) -> None:
        """Give the core an input and do what it says; then look whether all still holds."""
        core = node.core
        if core is None:
            return
        before = core.config
        try:
            call(core)
            core.pump()
        except Crash:
            self.crash(node)
            if self.is_healed:
                self.at(self.random.randint(1, 40), lambda: self.revive(node))
            return
        decided = len(self.ghost.decided)
        self._watch(node, core, before)
        trim = core.due_trim()
        if trim:
            node.disk.log.trim(trim)
        if len(self.ghost.decided) > decided and self.random.random() < self.faults.crash_after_decision:
            self.crash(node)
            return
        output = core.take()
        if output.hard_state is not None:
            node.disk.saving = output.hard_state
            life, number = node.life, output.hard_state_number
            self.at(self._disk_ms(node), lambda: self._saved(node, life, number, output.hard_state))
        for context, offset in output.reads:
            assert isinstance(context, int)
            self.ghost.reads(node.name, context, offset)
        for to, message in output.messages:
            self.send(node.name, to, message)
        self._sync(node)
        voted = any(isinstance(m, VoteReply) and m.is_granted and not m.is_pre for _, m in output.messages)
        if voted and self.random.random() < self.faults.crash_after_vote:
            self.crash(node)
            self.at(self.random.randint(1, 40), lambda: self.revive(node))

    def _saved(self, node: Node, life: int, number: int, hard: HardState | None) -> None:
        if node.life != life or hard is None:
            return
        node.disk.hard = hard
        self.feed(node, lambda core: core.hard_state_saved(number))

    def _disk_ms(self, node: Node) -> int:
        slow = 50 if self.now < node.slow_until else 1
        return self.random.randint(1, self.faults.disk_ms) * slow

    def _sync(self, node: Node) -> None:
        core, log = node.core, node.disk.log
        if core is None or node.is_syncing or log.synced_end == log.end:
            return
        node.is_syncing = True
        life, end, generation = node.life, log.end, core.generation
        self.at(self._disk_ms(node), lambda: self._synced(node, life, end, generation))

    def _synced(self, node: Node, life: int, end: int, generation: int) -> None:
        core = node.core
        if node.life != life or core is None:
            return
        node.is_syncing = False
        log = node.disk.log
        if core.generation == generation:
            log.synced_end = max(log.synced_end, end)
            if self.random.random() < 0.1:
                log.checkpoint = log.synced_end
        if core.is_leader and self.random.random() < self.faults.crash_after_sync:
            self.crash(node)
            return
        self.feed(node, lambda core: core.synced(end, generation))

    # --- looking ---

    def _watch(self, node: Node, core: RaftCore, before: Config) -> None:
        log = node.disk.log
        if core.is_leader and node.led_term != core.term:
            node.led_term = core.term
            self.ghost.leads(node.name, core.term, log.recs)
        if not core.is_leader:
            node.waiting = []
        if core.commit != node.looked:
            new = self.ghost.decides(node.name, log.recs, log.ends, node.looked, core.commit)
            if new and not self._is_on_majority(before) and not self._is_on_majority(core.config):
                raise Violation(f"{node.name} decides {core.commit}, which is not on the disks of a majority")
            node.looked = core.commit
        while node.waiting and node.waiting[0][0] <= core.commit:
            end, value = node.waiting.pop(0)
            self.ghost.acknowledges(value, end)

    def _is_on_majority(self, config: Config) -> bool:
        """Whether what was just decided is on the disks of a majority, whatever they say."""
        at = len(self.ghost.decided) - 1
        rec, end = self.ghost.decided[at], self.ghost.decided_ends[at]
        disks = [node.disk for node in self.nodes.values()] + self.lost_disks
        holders = {disk.hard.incarnation for disk in disks if disk.log.holds(at, rec, end)}
        return sum(voter.incarnation in holders for voter in config.voters) >= len(config.voters) // 2 + 1

    def leader(self) -> Node | None:
        leaders = [node for node in self.nodes.values() if node.core is not None and node.core.is_leader]
        return max(leaders, key=lambda node: node.core.term if node.core else 0, default=None)

    def is_equal(self) -> bool:
        leader = self.leader()
        if leader is None or leader.core is None or leader.core.commit != leader.disk.log.end:
            return False
        if not self.ghost.acknowledged or self.ghost.acknowledged[-1] != self.value:
            return False
        if len(leader.core.config.voters) < len(self.names):
            return False
        logs = [node.disk.log for node in self.nodes.values()]
        if len({log.start for log in logs}) > 1:
            return False
        return all(log.recs == logs[0].recs for log in logs) and all(
            node.core is not None and node.core.commit == leader.core.commit for node in self.nodes.values()
        )

    def describe(self) -> str:
        return "; ".join(
            f"{node.name} down"
            if node.core is None
            else f"{node.name} {node.core.role.value} term {node.core.term} commit {node.core.commit} "
            f"end {node.disk.log.end} durable {node.core.durable} of {node.core.leader} {node.core.config}"
            for node in self.nodes.values()
        )

    # --- the network ---

    def send(self, sender: str, to: str, message: RaftMessage) -> None:
        if to not in self.nodes:
            return
        faults, random = self.faults, self.random
        if (sender, to) in self.cut or random.random() < faults.loss:
            return
        copies = 2 if random.random() < faults.duplicate else 1
        for _ in range(copies):
            delay = random.randint(1, faults.delay_ms)
            if random.random() < faults.tail:
                delay += random.randint(0, 2 * TIMES.election_max_ms)
            self.at(delay, lambda: self.deliver(to, message))

    def deliver(self, to: str, message: RaftMessage) -> None:
        node = self.nodes[to]
        if self.now >= node.paused_until:
            self.feed(node, lambda core: core.receive(message))

    # --- what goes wrong ---

    def meddle(self) -> None:
        """Once a tick of the world: clients, and faults."""
        random, faults = self.random, self.faults
        self.at(WORLD_TICK_MS, self.meddle)
        while random.random() < faults.proposals:
            self.propose(random.choice(self.names))
        if self.is_healed:
            if not self.ghost.acknowledged or self.ghost.acknowledged[-1] != self.value:
                leader = self.leader()
                if leader is not None and not leader.waiting:
                    self.propose(leader.name)
            return
        node = self.nodes[random.choice(self.names)]
        if random.random() < faults.reads:
            needed = self.ghost.acknowledged_end
            self.feed(node, lambda core: core.read_index(needed))
        if random.random() < faults.crash:
            self.crash(node)
        if node.core is None:
            if random.random() < faults.restart * len(self.names):
                self.revive(node)
        elif random.random() < faults.pause:
            node.paused_until = self.now + random.randint(10, 3 * TIMES.election_max_ms)
        if random.random() < faults.slow_disk:
            node.slow_until = self.now + random.randint(50, 1_500)
        node.disk.log.is_full = random.random() < (0.7 if node.disk.log.is_full else faults.full_disk)
        self._meddle_with_network()
        self._meddle_with_leader()

    def _meddle_with_network(self) -> None:
        random, faults = self.random, self.faults
        if self.cut and random.random() < faults.heal:
            self.cut.clear()
        if len(self.names) > 1 and random.random() < faults.partition:
            side = random.sample(self.names, random.randint(1, len(self.names) - 1))
            other = [name for name in self.names if name not in side]
            self.cut |= {(a, b) for a in side for b in other} | {(b, a) for a in side for b in other}
        if len(self.names) > 1 and random.random() < faults.one_way:
            a, b = random.sample(self.names, 2)
            self.cut.add((a, b))
        if random.random() < faults.breaks / 20:
            self.lose(self.nodes[random.choice(self.names)], random.choice(self.names))

    def _meddle_with_leader(self) -> None:
        random, faults = self.random, self.faults
        leader = self.leader()
        if leader is None:
            return
        name = random.choice(self.names)
        if random.random() < faults.transfer:
            self.feed(leader, lambda core: self._ignore(core.transfer(name)))
        if random.random() < faults.trims:
            self.feed(leader, lambda core: self._trim(core, leader.disk.log))
        if random.random() < faults.members:
            self.feed(leader, lambda core: self._change(core, name))

    def _trim(self, core: RaftCore, log: SimLog) -> None:
        """The leader puts a trim into its log, to anywhere between its records."""
        if core.may_append and log.ends[-1] > log.start:
            offset = self.random.choice([end for end in log.ends if end > log.start])
            before = log.end
            try:
                control = log.append_trim(core.term, offset)
            except StoreFull:
                return
            core.appended(before, control)

    @staticmethod
    def _ignore(_: bool) -> None:
        return

    def _change(self, core: RaftCore, node: str) -> None:
        """Make a voter a learner, unless a disk is lost too; it comes back by itself when it has caught up."""
        voters = core.config.voters
        if any(self.nodes[voter.node].disk.hard.incarnation != voter.incarnation for voter in voters):
            return
        for voter in voters:
            if voter.node == node and node != core.node:
                core.change_members(core.config.with_learner(voter))

    def propose(self, name: str) -> None:
        node = self.nodes[name]

        def put(core: RaftCore) -> None:
            if core.may_append:
                before = core.log.end
                self.value += 1
                try:
                    end = node.disk.log.append(core.term, self.random.randint(5, 40), self.value)
                except StoreFull:
                    return
                core.appended(before)
                node.waiting.append((end, self.value))

        self.feed(node, put)

    def revive(self, node: Node) -> None:
        """The machine comes back: with its disk, with an empty one, or with a damaged one."""
        if node.core is not None:
            return
        random, faults, log = self.random, self.faults, node.disk.log
        if not self.is_healed and self._may_lose(node):
            if random.random() < faults.wipe:
                self._wipe(node)
            elif log.checkpoint and random.random() < faults.rot:
                if self.trusts_rot:
                    log._cut(random.randint(log._at(log.start), max(log._at(log.start), log._at(log.checkpoint) - 1)))
                else:
                    self._wipe(node)  # recovery names the damage and refuses; the operator empties the disk
        self.start(node)

    def _may_lose(self, node: Node) -> bool:
        """Whether this disk may be lost: no member believes in so many lost disks that the rest may lack data."""
        for other in self.nodes.values():
            configs = [control.config for control in other.disk.log.controls() if control.config is not None]
            config = configs[-1] if configs else initial_config(self.names)
            gone = sum(self._is_gone(voter, node) for voter in config.voters)
            if gone > len(config.voters) - config.majority:
                return False
        return True

    def _is_gone(self, voter: Member, node: Node) -> bool:
        if voter.node == node.name or (not voter.incarnation and voter.node in self.wiped):
            return True
        return bool(voter.incarnation) and self.nodes[voter.node].disk.hard.incarnation != voter.incarnation

    def _wipe(self, node: Node) -> None:
        self.wiped.add(node.name)
        if not self.keeps_identity:
            self.incarnations += 1
        self.lost_disks.append(node.disk)
        incarnation = node.disk.hard.incarnation if self.keeps_identity else self.incarnations
        node.disk = SimDisk(node.name, self.ghost, Random(self.random.random()), incarnation)
        node.disk.log.crash_in_cut = self.faults.crash_in_cut

    def heal(self) -> None:
        """From now on everything works."""
        self.is_healed = True
        self.faults = Faults(delay_ms=5, disk_ms=4, proposals=0.0)
        self.cut.clear()
        self.value += 1  # not yet stored: the group has to store one more record
        for node in self.nodes.values():
            node.slow_until = node.paused_until = 0
            node.disk.log.is_full = False
            node.disk.log.crash_in_cut = 0.0
            if node.core is None:
                self.start(node)


def role_of(world: World, name: str) -> Role | None:
    """What a node is now; None while it is down."""
    core = world.nodes[name].core
    return None if core is None else core.role
