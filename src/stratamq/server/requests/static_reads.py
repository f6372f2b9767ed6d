"""Pulls from static topics: from a logical offset to a queue of some broker, and from its answer back.

What an answer means depends on the item that was read. Only the leader's queue grows: there, nothing found means wait.
Behind the end of any other item the next one goes on, at an offset that the client cannot know and is told to ask for.

Source: apache/rocketmq broker/.../PullMessageProcessor.java: rewriteRequestForStaticTopic,
rewriteResponseForStaticTopic.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

import msgspec

from stratamq.broker.neighbours import NeighbourAnswer, Neighbours
from stratamq.broker.static_topics import MappingItem, Place
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.headers import PULL_COMMITS, PULL_MAY_WAIT, PullHeader
from stratamq.protocols.remoting.replies import encode_pull_head, encode_response
from stratamq.server.requests.base import Peer

_OFFSETS: Final = ("nextBeginOffset", "minOffset", "maxOffset")


class Offsets(NamedTuple):
    """The offsets in a pull's answer, and its code."""

    code: int
    next_offset: int
    min_offset: int
    max_offset: int


class StaticRead(NamedTuple):
    """Reading one item of a logical queue."""

    place: Place
    item: MappingItem

    @classmethod
    def at(cls, place: Place, offset: int) -> StaticRead:
        """For a pull from a logical offset. Behind the end of an item the next one is read."""
        item = place.item_at(offset)
        if item.is_ended and offset >= item.logical_end:
            item = place.after(item) or item
        return cls(place, item)

    @property
    def is_here(self) -> bool:
        """Whether the item lies in a queue of this broker."""
        return self.place.is_here(self.item)

    @property
    def may_wait(self) -> bool:
        """Whether more may come into the item."""
        return self.item is self.place.leader

    def leading(self, fields: PullHeader) -> PullHeader:
        """The pull as if the leader's queue were read, for the checks of topic, group and queue."""
        return msgspec.structs.replace(fields, queue_id=self.place.leader.queue_id)

    def physical(self, fields: PullHeader) -> PullHeader:
        """The pull as the item's broker understands it; it reads nothing behind the item's end.

        An offset that it commits in another item is left to the group's next report of its offsets.
        """
        offset, count, flags = self.item.to_physical(fields.queue_offset), fields.max_msg_nums, fields.sys_flag
        if self.place.item_at(fields.commit_offset) is not self.item:
            flags &= ~PULL_COMMITS
        if self.item.is_ended and offset < self.item.end_offset:
            count = min(count, self.item.end_offset - max(offset, self.item.start_offset))
        return msgspec.structs.replace(
            fields,
            queue_id=self.item.queue_id,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=flags,
            commit_offset=self.item.to_physical(fields.commit_offset),
            lo=False,
        )

    def logical(self, asked: int, answer: Offsets) -> tuple[Offsets, int]:
        """An answer with logical offsets, and what clients add to the offsets in its messages.

        Args:
            asked: The physical offset that was read from.
            answer: With physical offsets.
        """
        item, found = self.item, answer
        if answer.code != ResponseCode.SUCCESS:
            item, found = self._revised(asked, answer)
        next_offset = min(found.next_offset, item.end_offset) if item.is_ended else found.next_offset
        told = Offsets(
            found.code,
            item.to_logical(next_offset),
            item.to_logical(found.min_offset),
            max(item.to_logical(found.max_offset), self.place.leader.logical_end),
        )
        return told, item.delta

    def _revised(self, asked: int, answer: Offsets) -> tuple[MappingItem, Offsets]:
        """What to tell a client that got no message, and the item its offsets belong to."""
        item = self.item
        end = min(answer.max_offset, item.end_offset) if item.is_ended else answer.max_offset
        if not self.may_wait and asked >= end:
            following = self.place.after(item)
            if following is None:
                return item, answer._replace(code=ResponseCode.PULL_NOT_FOUND)
            start = following.start_offset
            return following, Offsets(ResponseCode.PULL_RETRY_IMMEDIATELY, start, start, start)
        if asked < answer.min_offset:
            is_first = item is self.place.earliest
            code = ResponseCode.PULL_OFFSET_MOVED if is_first else ResponseCode.PULL_RETRY_IMMEDIATELY
            return item, answer._replace(code=code, next_offset=answer.min_offset)
        return item, answer


def forward(neighbours: Neighbours, peer: Peer, header: CommandHeader, static: StaticRead, fields: PullHeader) -> None:
    """Have the broker of an item answer a pull, at once; ``fields`` are physical and hold the subscription."""
    fields = msgspec.structs.replace(fields, sys_flag=fields.sys_flag & ~(PULL_COMMITS | PULL_MAY_WAIT))
    ext = {name: _text(value) for name, value in msgspec.to_builtins(fields).items() if value is not None}
    ext["bname"] = static.item.bname
    peer.begin_request()
    done = partial(_hand_back, peer, header, static, fields.queue_offset)
    neighbours.ask(static.item.bname, RequestCode.PULL_MESSAGE, ext, done)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _hand_back(peer: Peer, header: CommandHeader, static: StaticRead, asked: int, answer: NeighbourAnswer) -> None:
    """Give another broker's answer to who pulled."""
    peer.end_request()
    try:
        found = Offsets(answer.code, *(int(answer.ext[name]) for name in _OFFSETS))
    except (KeyError, ValueError):  # it refused the pull, and says why
        code = ResponseCode.SYSTEM_ERROR if answer.code == ResponseCode.SUCCESS else answer.code
        peer.write(encode_response(header, code, remark=answer.remark))
        return
    told, delta = static.logical(asked, found)
    head = encode_pull_head(
        header.serialization,
        header.opaque,
        code=told.code,
        remark=(answer.remark or "").encode("ascii", "replace"),
        next_offset=told.next_offset,
        min_offset=told.min_offset,
        max_offset=told.max_offset,
        suggested_broker=0,
        body_bytes=len(answer.body),
        offset_delta=delta,
    )
    peer.write_parts(head, [memoryview(answer.body)], len(answer.body))
