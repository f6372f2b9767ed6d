"""Questions about queues of static topics: offsets by time and end, and consumer groups' offsets.

A question is put to the item that knows: the first for the begin, the last for the end, each in turn for a time or a
group. Where that lies with another broker it is asked, with physical numbers and ``lo=false``, so that it does not
translate them again. A group's offset is kept by the broker of the item it lies in, as an offset of that queue.

Source: apache/rocketmq broker/.../AdminBrokerProcessor.java, ConsumerManageProcessor.java:
rewriteRequestForStaticTopic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from stratamq.broker.broker import Broker
from stratamq.broker.neighbours import NeighbourAnswer
from stratamq.broker.static_topics import MappingItem, Place
from stratamq.errors import NothingFound, ReadPending
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.headers import QueryOffsetHeader, SearchOffsetHeader, UpdateOffsetHeader
from stratamq.protocols.remoting.replies import encode_response, response_to_error
from stratamq.server.requests.base import Peer


class _Asker(NamedTuple):
    """Who asked, and in what place."""

    peer: Peer
    header: CommandHeader
    place: Place

    def answer(self, name: str, value: int) -> None:
        """Answer with a number."""
        self.peer.write(encode_response(self.header, ResponseCode.SUCCESS, ext={name: str(value)}))

    def end(self, code: int, remark: str | None) -> None:
        """Answer with a code alone: what was asked for is done, or why it is not."""
        if not self.header.is_one_way:
            self.peer.write(encode_response(self.header, code, remark=remark))


class StaticQueues:
    """Answers for logical queues that this broker leads."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def max_offset(self, peer: Peer, header: CommandHeader, place: Place) -> None:
        """Answer with the offset behind the last message that may be read."""
        item = place.readable[0]
        self._tell(_Asker(peer, header, place), item, "offset", item.to_logical)

    def min_offset(self, peer: Peer, header: CommandHeader, place: Place) -> None:
        """Answer with the first offset."""
        item = place.earliest
        self._tell(_Asker(peer, header, place), item, "offset", item.to_logical)

    def earliest_time(self, peer: Peer, header: CommandHeader, place: Place) -> None:
        """Answer with the store time of the first message."""
        self._tell(_Asker(peer, header, place), place.earliest, "timestamp", int)

    def _tell(self, asker: _Asker, item: MappingItem, name: str, told: Callable[[int], int]) -> None:
        self._value(asker, item, RequestCode(asker.header.code), {}, lambda value: asker.answer(name, told(value)))

    # --- by time ---

    def search(self, peer: Peer, header: CommandHeader, place: Place, fields: SearchOffsetHeader) -> None:
        """Answer with the offset for a time: from the last item that was begun by then, else from the first."""
        self._search(_Asker(peer, header, place), fields, place.readable)

    def _search(self, asker: _Asker, fields: SearchOffsetHeader, items: Sequence[MappingItem]) -> None:
        item = items[0]
        if len(items) == 1:
            self._offset_in(asker, fields, item)
            return

        def begun(ms: int) -> None:
            if 0 <= ms <= fields.timestamp:
                self._offset_in(asker, fields, item)
            else:
                self._search(asker, fields, items[1:])

        self._value(asker, item, RequestCode.GET_EARLIEST_MSG_STORETIME, {}, begun)

    def _offset_in(self, asker: _Asker, fields: SearchOffsetHeader, item: MappingItem) -> None:
        extra = {"timestamp": str(fields.timestamp)}
        if fields.boundary_type is not None:
            extra["boundaryType"] = fields.boundary_type
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        self._value(asker, item, code, extra, lambda value: asker.answer("offset", item.to_logical(value)))

    # --- groups ---

    def query_offset(self, peer: Peer, header: CommandHeader, place: Place, fields: QueryOffsetHeader) -> None:
        """Answer with a group's offset: the newest item that knows the group says it. Raises NothingFound."""
        self._query(_Asker(peer, header, place), fields, place.readable)

    def _query(self, asker: _Asker, fields: QueryOffsetHeader, items: Sequence[MappingItem]) -> None:
        if not items:
            raise NothingFound(f"group {fields.consumer_group} has no offset in queue {fields.queue_id} of the topic")
        item, further = items[0], partial(self._query, asker, fields, items[1:])
        if asker.place.is_here(item):
            offset = self._broker.offsets.find(fields.consumer_group, fields.topic, item.queue_id)
            if offset is None:
                further()
            else:
                asker.answer("offset", item.to_logical(offset))
            return
        extra = {"consumerGroup": fields.consumer_group, "setZeroIfNotFound": "false"}
        code = RequestCode.QUERY_CONSUMER_OFFSET
        self._ask(asker, item, code, extra, lambda value: asker.answer("offset", item.to_logical(value)), further)

    def update_elsewhere(
        self, peer: Peer, header: CommandHeader, place: Place, item: MappingItem, fields: UpdateOffsetHeader
    ) -> None:
        """Have the broker of an item remember a group's offset; ``fields`` holds it as an offset of that queue."""
        ext = self._physical(place, item) | {
            "consumerGroup": fields.consumer_group,
            "commitOffset": str(fields.commit_offset),
        }
        asker = _Asker(peer, header, place)

        def answered(answer: NeighbourAnswer) -> None:
            peer.end_request()
            asker.end(answer.code, answer.remark)

        peer.begin_request()
        self._broker.neighbours.ask(item.bname, RequestCode.UPDATE_CONSUMER_OFFSET, ext, answered)

    # --- one item ---

    def _value(
        self,
        asker: _Asker,
        item: MappingItem,
        code: RequestCode,
        extra: Mapping[str, str],
        then: Callable[[int], None],
    ) -> None:
        """Ask one item for one number: here, or where it lies."""
        if not asker.place.is_here(item):
            self._ask(asker, item, code, extra, then, None)
            return
        store, topic, queue_id = self._broker.store, asker.place.mapping.topic, item.queue_id
        match code:
            case RequestCode.GET_MAX_OFFSET:
                then(store.max_offset(topic, queue_id))
            case RequestCode.GET_MIN_OFFSET:
                then(store.min_offset(topic, queue_id))
            case RequestCode.GET_EARLIEST_MSG_STORETIME:
                then(store.earliest_store_time(topic, queue_id))
            case _:
                upper = extra.get("boundaryType", "").upper() == "UPPER"
                then(store.offset_by_time(topic, queue_id, int(extra["timestamp"]), upper))

    def _ask(
        self,
        asker: _Asker,
        item: MappingItem,
        code: RequestCode,
        extra: Mapping[str, str],
        then: Callable[[int], None],
        missing: Callable[[], None] | None,
    ) -> None:
        """Ask another broker for one number; ``missing`` goes on when it says that there is none."""

        def answered(answer: NeighbourAnswer) -> None:
            asker.peer.end_request()
            try:
                if answer.code == ResponseCode.QUERY_NOT_FOUND and missing is not None:
                    missing()
                elif answer.code != ResponseCode.SUCCESS:
                    asker.end(answer.code, answer.remark)
                else:
                    then(int(answer.ext.get("offset") or answer.ext["timestamp"]))
            except ReadPending as pending:
                pending.when_ready(partial(answered_again, answer))
            except Exception as error:
                asker.end(*response_to_error(error))

        def answered_again(answer: NeighbourAnswer) -> None:
            asker.peer.begin_request()
            answered(answer)

        asker.peer.begin_request()
        ext = {**self._physical(asker.place, item), **extra}
        self._broker.neighbours.ask(item.bname, code, ext, answered)

    def _physical(self, place: Place, item: MappingItem) -> dict[str, str]:
        return {
            "topic": place.mapping.topic,
            "queueId": str(item.queue_id),
            "lo": "false",
            "bname": item.bname,
        }
