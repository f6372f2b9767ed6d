"""The cold tier in a running broker: the timer and the threads that `tiered.service` does not have.

Once a second the service is asked for work; what of it blocks runs in threads of its own, apart from those that read
for consumers, so that uploads never make a consumer wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from stratamq.broker.topics import TopicConfig
from stratamq.clock import Clock
from stratamq.config import BrokerConfig, TieredConfig, TieredLevel
from stratamq.logstore.store import LogStore
from stratamq.server.settings import Settings
from stratamq.tiered.local import LogQueues
from stratamq.tiered.offline import FOLDER
from stratamq.tiered.owner import Work
from stratamq.tiered.service import TierService, open_tier
from stratamq.tiered.store import TieredStore

LOOK_S: Final = 1.0
_log = logging.getLogger(__name__)


class Tiering:
    """The cold tier of one broker, from opening to closing."""

    def __init__(
        self,
        store: LogStore,
        policy: TieredConfig,
        broker: BrokerConfig,
        data_dir: Path,
        clock: Clock,
        *,
        find_topic: Callable[[str], TopicConfig | None],
    ) -> None:
        """Open it. Blocks, without a catalogue for as long as the backend takes to list its manifests.

        Raises BackendError, ConfigError, TierError.
        """
        local = LogQueues(store)
        opened = open_tier(policy, str(data_dir / FOLDER), broker.broker_name, clock)
        self.service = TierService(
            opened,
            local,
            policy,
            clock,
            is_topic=lambda topic: _may_be_copied(find_topic(topic)),
            reserve_time=lambda topic: _reserve_time(find_topic(topic)),
            own_names={broker.cluster_name, broker.broker_name},
        )
        for (topic, queue_id), manifest in self.service.manifests.items():
            if manifest.end and local.begin_at((topic, queue_id), manifest.end):
                _log.warning("queue %s/%d has no local files: it goes on at %d", topic, queue_id, manifest.end)
        self._uploads = ThreadPoolExecutor(policy.uploads_max, thread_name_prefix="tier-upload")
        self._reads = ThreadPoolExecutor(policy.fetches_max, thread_name_prefix="tier-read")
        self._rounds: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._is_closing = False
        self.store = TieredStore(store, self.service, policy, self._spawn)

    def keeps(self, topic: str) -> bool:
        """Whether consumers find a topic's messages in the tier when local files are gone."""
        return self.store.policy.level is not TieredLevel.DISABLE and self.service.is_tiered(topic)

    async def run(self) -> None:
        """Look for work each second, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self.look()
            except Exception:
                _log.exception("looking for what the cold tier has to do failed")

    def look(self, *, again: bool = False) -> int:
        """Begin what is due; returns how much is under way. ``again``: some work has ended, and others wait for it."""
        for work in self.service.due(running=len(self._rounds), look=not again):
            task = self._loop.create_task(self._drive(work))
            self._rounds.add(task)
            task.add_done_callback(self._ended)
        return len(self._rounds)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._rounds.discard(task)
        if not self._is_closing:
            self.look(again=True)

    async def _drive(self, work: Work[None]) -> None:
        try:
            call = next(work)
            while True:
                try:
                    answer = await self._loop.run_in_executor(self._uploads, call)
                except Exception as error:
                    call = work.throw(error)
                else:
                    call = work.send(answer)
        except StopIteration:
            return
        except Exception:
            _log.exception("a round of the cold tier failed; it is tried again")
        finally:
            work.close()

    def _spawn(self, work: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        def finished(future: Future[Any]) -> None:
            if not self._is_closing:
                self._loop.call_soon_threadsafe(tell, future)

        def tell(future: Future[Any]) -> None:
            error = future.exception()
            if error is None:
                done(future.result(), None)
            else:
                done(None, error if isinstance(error, Exception) else RuntimeError(str(error)))

        self._reads.submit(work).add_done_callback(finished)

    async def close(self) -> None:
        """Stop: what a thread is doing is waited for, and what it did is not lost; the next start looks for it."""
        self._is_closing = True
        for task in self._rounds:
            task.cancel()
        await asyncio.gather(*self._rounds, return_exceptions=True)
        for pool in (self._uploads, self._reads):
            await asyncio.to_thread(pool.shutdown, True, cancel_futures=True)
        self.service.close()


def tiering_of(
    store: object, settings: Settings, clock: Clock, find_topic: Callable[[str], TopicConfig | None]
) -> Tiering | None:
    """The cold tier behind a broker's store; None without an address, on a slave, and for a store without files.

    Raises what `Tiering` raises.
    """
    if not settings.tiered.address or not isinstance(store, LogStore) or settings.ha.is_slave:
        return None
    return Tiering(store, settings.tiered, settings.broker, settings.data_dir, clock, find_topic=find_topic)


def _reserve_time(topic: TopicConfig | None) -> str | None:
    return None if topic is None else topic.attributes.get("reserve.time")


def _may_be_copied(topic: TopicConfig | None) -> bool:
    """Whether a topic exists and each of its records is one message: what the tier counts offsets by."""
    return topic is not None and not topic.is_batch
