"""The shell round the core: one member of a group on an event loop, with its store, its threads and its connections.

All that the core says is done here and nothing is decided: messages are sent, the hard state is saved in one thread,
the log is synced in another, one sync at a time. Work is done once a turn of the loop, whatever came in it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, Final

from stratamq.clock import Clock
from stratamq.errors import CorruptionError, StoreError, StoreFailed
from stratamq.files.durable import replace_file
from stratamq.logstore.types import Arrival
from stratamq.replication.committer import MemberCommitter
from stratamq.replication.control import Table, encode_deletion, encode_table, encode_trim
from stratamq.replication.core import RaftCore
from stratamq.replication.hard_state import HardStateFile
from stratamq.replication.log_store import MemberStore
from stratamq.replication.members import Control, initial_config
from stratamq.replication.messages import RaftMessage
from stratamq.replication.ports import HardState, RaftTimes
from stratamq.replication.snapshot import (
    SNAPSHOT_BYTES_MAX,
    Snapshot,
    begin,
    encode_snapshot,
    load_snapshot,
    path_of,
    queue_ends,
)
from stratamq.replication.state import Member0
from stratamq.replication.store_log import StoreLog, load_tables
from stratamq.replication.transport import Transport
from stratamq.replication.trimming import Trimming

_logger = logging.getLogger(__name__)
TICK_S: Final = 0.02
CHECKPOINT_S: Final = 1.0
HARD_STATE_FILE: Final = "raft.state"
PEERS_TABLE: Final = "raft-peers"


class MemberNode:
    """One member. ``on_serving`` is told whether this member leads and may serve, and in which term."""

    def __init__(
        self,
        *,
        node: str,
        group: str,
        peers: dict[str, str],
        store: MemberStore,
        host: bytes,
        clock: Clock,
        times: RaftTimes,
        on_serving: Callable[[bool, int], None],
        on_arrivals: Callable[[Sequence[Arrival]], None],
        on_installed: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_installed``: a leader's snapshot is in place; member and store have to be closed and opened again."""
        self.store = store
        self.committer: MemberCommitter | None = None
        self._clock = clock
        self._on_serving = on_serving
        self._on_arrivals = on_arrivals
        self._on_installed = on_installed
        self._hard_file = HardStateFile(str(Path(store.directory) / HARD_STATE_FILE), node)
        hard = self._hard_file.load()
        if hard is None:
            hard = HardState(incarnation=secrets.randbits(62) + 1)
            self._hard_file.save(hard)
        snapshot = load_snapshot(store.directory)
        if snapshot is not None:
            begin(store, snapshot)
        store.trim_blank()
        store.show_up_to(max(store.min_physical_offset, min(hard.commit, store.max_physical_offset)))
        loaded = load_tables(store, initial_config(peers), snapshot)
        self.tables = loaded.tables
        self._log = StoreLog(store, node, host, clock)
        store.on_delete = self._propose_deletion
        self._log.take_snapshot = self._snapshot
        first = Member0(node, hard, loaded.epochs, loaded.configs, loaded.trims)
        self.core = RaftCore(first, self._log, times, Random(secrets.randbits(64)), clock.monotonic_ms())
        self._decided = self.core.commit
        self.trimming = Trimming(store, clock)
        self._trim_to = 0
        self._trim_task: asyncio.Task[None] | None = None
        self._trim_proposed = (0, 0)
        self.transport = Transport(node, group, peers, self.receive, self.administer, self._lost)
        if PEERS_TABLE in self.tables:
            self.transport.learn(self.tables[PEERS_TABLE][1].value)
        self._sync_thread = ThreadPoolExecutor(1, "stratamq-member-sync")
        self._hard_thread = ThreadPoolExecutor(1, "stratamq-member-state")
        self._is_syncing = False
        self._is_scheduled = False
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()
        self._serving_term = 0
        self._is_closed = False

    async def start(self, sock: Any) -> None:
        """Take part in the group, on a bound socket."""
        await self.transport.start(sock)
        for coroutine in (self._tick_forever(), self._checkpoint_forever()):
            self._tasks.append(self._loop.create_task(coroutine))
        _logger.info("member %s of %s, term %d, log up to %d", *self._who())

    def _who(self) -> tuple[object, ...]:
        return self.core.node, self.core.config.nodes, self.core.term, self.core.log.end

    # --- inputs ---

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._guard(lambda: self.core.tick(self._clock.monotonic_ms()))
            if self.committer is not None:
                self.committer.expire()

    def receive(self, message: RaftMessage) -> None:
        """A message has come."""
        self._guard(lambda: self.core.receive(message))

    def _lost(self, node: str) -> None:
        self._guard(lambda: self.core.lost(node))

    def changed(self) -> None:
        """Do what there is to do at the end of this turn."""
        if not self._is_scheduled and not self._is_closed:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def _guard(self, call: Callable[[], None]) -> None:
        """Call the core; what the disk does to it, or a leader that sends nonsense, ends the call and no more."""
        if self._is_closed:
            return
        try:
            call()
        except StoreFailed as error:
            _logger.critical("this member takes no more part in its group: %s", error)
            self.core.failed()
        except (CorruptionError, StoreError) as error:
            _logger.error("a leader's message is not taken: %s", error)
        if self._log.was_installed:
            self._log.was_installed = False
            _logger.warning("member %s lacks what its group has deleted, and begins anew", self.core.node)
            self._on_installed()
        self.changed()

    # --- the end of a turn ---

    def _turn(self) -> None:
        self._is_scheduled = False
        if self._is_closed:
            return
        self._guard_pump()
        output = self.core.take()
        if output.hard_state is not None:
            self._save(output.hard_state, output.hard_state_number)
        for to, message in output.messages:
            self.transport.send(to, message)
        self._check_role()
        self._check_decided()
        self._trim_to = max(self._trim_to, self.core.due_trim())
        self._trim()
        self._sync()

    def _guard_pump(self) -> None:
        try:
            self.core.pump()
        except StoreFailed:
            self.core.failed()

    def _save(self, state: HardState, number: int) -> None:
        def done(future: asyncio.Future[None]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is not None:
                _logger.critical("the hard state cannot be saved: %s", error)
                self.core.failed()
            elif not self._is_closed:
                self.core.hard_state_saved(number)
                self.changed()

        self._loop.run_in_executor(self._hard_thread, self._hard_file.save, state).add_done_callback(done)

    def _sync(self) -> None:
        core = self.core
        if self._is_syncing or core.durable >= core.log.end or core.is_failed:
            return
        token, generation = self.store.all_written(), core.generation
        self._is_syncing = True

        def done(future: asyncio.Future[None]) -> None:
            self._is_syncing = False
            error = None if future.cancelled() else future.exception()
            if error is not None:
                _logger.critical("this member takes no more part in its group: %s", error)
                core.failed()
            elif not self._is_closed:
                core.synced(token.end, generation)
            self.changed()

        self._loop.run_in_executor(self._sync_thread, self.store.sync, token).add_done_callback(done)

    def _check_decided(self) -> None:
        commit = self.core.commit
        if commit <= self._decided:
            return
        self._decided = commit
        arrivals = self.store.decided(commit)
        if arrivals:
            self._on_arrivals(arrivals)
        if self.committer is not None:
            self.committer.decided(commit)
        while self._log.tables and self._log.tables[0][0] <= commit:
            end, table = self._log.tables.pop(0)
            self._take_table(end, table)

    def _take_table(self, end: int, table: Table) -> None:
        self.tables[table.name] = (end, table)
        if table.name == PEERS_TABLE and isinstance(table.value, dict):
            self.transport.learn(table.value)

    def _check_role(self) -> None:
        core = self.core
        term = core.term if core.serves else 0
        if term == self._serving_term:
            return
        if self._serving_term:
            _logger.warning("member %s leads no more (term %d)", core.node, self._serving_term)
            if self.committer is not None:
                self.committer.close()
                self.committer = None
            self._on_serving(False, self._serving_term)
        self._serving_term = term
        if term:
            _logger.warning("member %s leads term %d", core.node, term)
            self.committer = MemberCommitter(self.store, core, self.changed)
            for entry in self._log.tables:  # all before the term's start is decided
                self.tables[entry[1].name] = entry
            self._log.tables.clear()
            self._on_serving(True, term)

    # --- tables, members, questions ---

    def propose_table(self, name: str, value: Any) -> None:
        """Put one of the broker's tables into the log. Nothing happens where this member does not lead."""
        try:
            end = self._propose(encode_table(name, value))
        except (StoreError, ValueError) as error:
            _logger.error("table %s is not replicated: %s", name, error)
            return
        if end:
            self._log.tables.append((end, Table(name, value)))

    def _propose_deletion(self, topic: str) -> None:
        self._propose(encode_deletion(topic))

    # --- old parts of the log ---

    def propose_trim(self, offset: int) -> None:
        """Let the group delete its log below ``offset``, where a file begins. Nothing happens where another leads."""
        core = self.core
        if core.log.start < offset <= core.commit and self._trim_proposed < (core.term, offset):
            try:
                if self._propose(encode_trim(offset), trim=offset):
                    self._trim_proposed = (core.term, offset)
            except StoreError as error:
                _logger.error("old parts of the log cannot be deleted: %s", error)

    def _trim(self) -> None:
        if self._trim_to > self.core.log.start and (self._trim_task is None or self._trim_task.done()):
            self._trim_task = self._loop.create_task(self._delete_old(self._trim_to))

    async def _delete_old(self, offset: int) -> None:
        """Save what stands for the log below ``offset``, then delete it."""
        try:
            data = self._snapshot(offset)
            path = path_of(self.store.directory)
            await self._loop.run_in_executor(self._hard_thread, lambda: replace_file(path, data))
        except OSError as error:
            _logger.error("old parts of the log are not deleted: %s", error)
            await asyncio.sleep(CHECKPOINT_S)
            return
        for step in self.trimming.delete_below(offset):
            if step.blocking is not None:
                await asyncio.to_thread(step.blocking)
            await asyncio.sleep(step.pause_ms / 1000)
        if self.core.log.start < offset:
            self._trim_to = 0 if len(self._log_files()) < 2 else offset
            await asyncio.sleep(CHECKPOINT_S)

    def _log_files(self) -> list[int]:
        log, _, _ = self.store.retained()
        return log.bases

    def _snapshot(self, start: int) -> bytes:
        """What stands for the log below ``start``."""
        core = self.core
        data = encode_snapshot(
            Snapshot(
                start,
                [entry for entry in core.epochs if entry[1] < start],
                core.configs.up_to(start),
                {name: entry for name, entry in self.tables.items() if entry[0] <= start},
                queue_ends(self.store, start),
            )
        )
        if len(data) > SNAPSHOT_BYTES_MAX:
            _logger.error("a snapshot of %d bytes is too long: members that lack the log's start stay out", len(data))
        return data

    def _propose(self, body: bytes, *, trim: int = 0) -> int:
        """Put a control record into the log; returns its end, 0 where this member does not lead. Raises StoreError."""
        if not self.core.may_append:
            return 0
        self.store.commit()
        before = self.core.log.end
        end = self._log.append_body(body)
        self.core.appended(before, Control(before, end, 0, None, trim) if trim else None)
        self.changed()
        return end

    def status(self) -> dict[str, Any]:
        """What an operator wants to know of this member."""
        core = self.core
        followers = {
            node: {"match": p.match, "behind": core.log.end - p.match, "silent_ms": core.now_ms - p.alive_ms}
            for node, p in core._progress.items()
        }
        return {
            "node": core.node,
            "role": core.role.value,
            "term": core.term,
            "leader": core.leader,
            "serves": core.serves,
            "failed": core.is_failed,
            "log_start": core.log.start,
            "log_end": core.log.end,
            "durable": core.durable,
            "decided": core.commit,
            "voters": [member.node for member in core.config.voters],
            "learners": [member.node for member in core.config.learners],
            "incarnations": {member.node: member.incarnation for member in core.config.voters + core.config.learners},
            "incarnation": core.me.incarnation,
            "members_decided": core.configs.last_end <= core.commit,
            "peers": self.transport.addresses,
            "followers": followers,
        }

    async def administer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request of the command line: ``do`` is status, transfer, add or remove."""
        core, node = self.core, str(request.get("node", ""))
        what = request.get("do")
        if what == "status":
            return self.status()
        if not core.serves:
            return {"error": f"{core.node} does not lead", "leader": core.leader, "peers": self.transport.addresses}
        if what == "transfer":
            done = core.transfer(node)
        elif what == "add":
            peers = {**self.transport.addresses, node: str(request.get("address", ""))}
            self.transport.learn(peers)
            self.propose_table(PEERS_TABLE, peers)
            core.add(node)
            done = True
        elif what == "remove":
            done = node in core.config.nodes and core.change_members(core.config.without(node))
        else:
            return {"error": f"nothing can be done called {what!r}"}
        self.changed()
        return {"done": done} if done else {"error": "not possible now: see the status; try again in a moment"}

    async def _checkpoint_forever(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            if self.core.is_failed or self._is_syncing:
                continue
            self._is_syncing = True  # a cut of the log must not meet a checkpoint half written
            try:
                token = self.store.begin_checkpoint()
                await self._loop.run_in_executor(self._sync_thread, self.store.sync_checkpoint, token)
            except StoreFailed as error:
                _logger.critical("this member takes no more part in its group: %s", error)
                self.core.failed()
            finally:
                self._is_syncing = False
            self.changed()

    async def close(self) -> None:
        """Take no more part. The store stays open."""
        if self._is_closed:
            return
        if self.committer is not None:
            self.committer.close()
        self._is_closed = True
        if self._trim_task is not None:
            self._tasks.append(self._trim_task)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.transport.close()
        await asyncio.to_thread(self._sync_thread.shutdown)
        await asyncio.to_thread(self._hard_thread.shutdown)
        self._hard_file.close()
