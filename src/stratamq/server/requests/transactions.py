"""END_TRANSACTION (37) and RESUME_CHECK_HALF_MESSAGE (323): how half messages end; CHECK_TRANSACTION_STATE (39) asks.

Source: apache/rocketmq broker/.../EndTransactionProcessor.java, AbstractTransactionalMessageCheckListener.java.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final, cast

from stratamq.broker.broker import Broker
from stratamq.broker.half_messages import (
    PRODUCER_GROUP,
    Half,
    committed_message,
    half_again,
    half_of,
    immunity_ms,
    question_body,
    real_place,
)
from stratamq.broker.sending import delay_level
from stratamq.broker.topics import CHECK_MAX_TOPIC, HALF_TOPIC
from stratamq.errors import InvalidArgument, RemoteProtocolError, ServiceUnavailable
from stratamq.formats.message import Record, decode_record, parse_offset_message_id
from stratamq.formats.properties import UNIQ_KEY, find_property
from stratamq.logstore.types import PutResult
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader, Int32, Int64
from stratamq.protocols.remoting.headers import ExtFields, HeaderReader
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves
from stratamq.server.requests.send import CODE_OF_PUT

_log = logging.getLogger(__name__)


class EndTransactionHeader(ExtFields):
    """The extFields of END_TRANSACTION."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool | None = None


class ResumeCheckHeader(ExtFields):
    """The extFields of RESUME_CHECK_HALF_MESSAGE."""

    msg_id: str | None = None


_read_end: Final = HeaderReader(EndTransactionHeader)
_read_resume: Final = HeaderReader(ResumeCheckHeader)
UNKNOWN: Final = 0
COMMIT: Final = 8
ROLLBACK: Final = 12
ILLEGAL_OPERATION: Final = 604


class TransactionRequests:
    """Ends half messages as their producers say, and asks the producers of those that stay open."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._turn = 0
        broker.transactions.ask = self._ask

    @serves(RequestCode.END_TRANSACTION)
    def end(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Commit a half message or roll it back; nothing happens, and nothing is answered, while it is unknown."""
        fields = _read_end(header)
        if fields.commit_or_rollback == UNKNOWN:
            return None
        if fields.commit_or_rollback not in (COMMIT, ROLLBACK):
            raise InvalidArgument(f"commitOrRollback is {fields.commit_or_rollback}, it must be 0, 8 or 12")
        broker, transactions = self._broker, self._broker.transactions
        if not broker.is_accepting:
            raise ServiceUnavailable("the broker is stopping")
        record = self._half(fields)
        transactions.check_ready()
        half = half_of(record)
        if transactions.is_finished(half):
            return encode_response(header, ResponseCode.SUCCESS, remark="this transaction has been ended already")
        place = real_place(record)
        if place is None:
            raise RemoteProtocolError(f"half message {half.offset} does not say where it belongs", reply_hint=1)
        transactions.begin_end(half)
        if fields.commit_or_rollback == ROLLBACK:
            self._ended(half, place[0], True)
            return encode_response(header, ResponseCode.SUCCESS)
        peer.begin_request()
        try:
            message = committed_message(record, *place)
            level = delay_level(message.properties)
            if level > 0:
                message = broker.delays.delayed(message, level)
            broker.committer.put((message,), partial(self._committed, peer, header, half, place[0]))
        except BaseException:
            peer.end_request()
            self._ended(half, place[0], False)
            raise
        return None

    def _half(self, fields: EndTransactionHeader) -> Record:
        """The half message that a request means, after RocketMQ's checks."""
        at = fields.commit_log_offset
        view = self._broker.store.record_at(at) if at >= 0 else None
        if view is None:
            raise RemoteProtocolError(f"no half message at physical offset {at}", reply_hint=1)
        record = decode_record(view)
        if record.topic != HALF_TOPIC or record.queue_offset != fields.tran_state_table_offset:
            raise RemoteProtocolError(
                f"the message at physical offset {at} is not half message {fields.tran_state_table_offset}",
                reply_hint=1,
            )
        if find_property(record.properties, PRODUCER_GROUP) != fields.producer_group:
            raise RemoteProtocolError(f"half message {record.queue_offset} is another producer group's", reply_hint=1)
        immunity = immunity_ms(record)
        age = self._broker.clock.wall_ms() - record.born_timestamp
        if not fields.from_transaction_check and immunity is not None and age > immunity:
            raise RemoteProtocolError(
                f"half message {record.queue_offset} is {age} ms old, its producer is being asked about it",
                reply_hint=ILLEGAL_OPERATION,
            )
        return record

    def _committed(self, peer: Peer, header: CommandHeader, half: Half, topic: str, result: PutResult) -> None:
        peer.end_request()
        self._ended(half, topic, bool(result.appended))
        self._answer(peer, header, result)

    def _ended(self, half: Half, topic: str, is_done: bool) -> None:
        transactions, now = self._broker.transactions, self._broker.clock.wall_ms()
        transactions.end(half, is_done, now)
        if is_done:
            transactions.counts.add(topic, -1, now)

    def _answer(self, peer: Peer, header: CommandHeader, result: PutResult) -> None:
        if header.is_one_way:
            return
        if result.appended:
            peer.write(encode_response(header, ResponseCode.SUCCESS))
        else:
            peer.write(encode_response(header, CODE_OF_PUT[result.status], remark=result.remark or result.status.value))

    @serves(RequestCode.RESUME_CHECK_HALF_MESSAGE)
    def resume(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Ask again about a half message that was given up after too many checks."""
        fields = _read_resume(header)
        try:
            _, at = parse_offset_message_id(fields.msg_id or "")
        except ValueError:
            raise InvalidArgument(f"{(fields.msg_id or '')[:60]!r} is not an offset message id") from None
        view = self._broker.store.record_at(at) if at >= 0 else None
        record = decode_record(view) if view is not None else None
        if record is None or record.topic != CHECK_MAX_TOPIC or real_place(record) is None:
            raise RemoteProtocolError(f"no message of {CHECK_MAX_TOPIC} at physical offset {at}", reply_hint=1)

        transactions, place = self._broker.transactions, real_place(record)
        message = half_again(record, check_times=0)

        def stored(result: PutResult) -> None:
            peer.end_request()
            if result.appended and place is not None:
                now = self._broker.clock.wall_ms()
                transactions.counts.add(place[0], 1, now)
                transactions.resumed(message, result.appended[0], now)
            self._answer(peer, header, result)

        transactions.check_ready()
        peer.begin_request()
        try:
            self._broker.committer.put((message,), stored)
        except BaseException:
            peer.end_request()
            raise
        return None

    def _ask(self, record: Record) -> None:
        """Send a check-back to one live producer of the group, each in its turn."""
        group = find_property(record.properties, PRODUCER_GROUP) or ""
        members = [cast(Peer, client.connection) for client in self._broker.producers.members(group)]
        members = [peer for peer in members if not peer.is_closed and not peer.is_clogged]
        place = real_place(record)
        if not members or place is None:
            _log.warning("no producer of group %r to ask about half message %d", group[:60], record.queue_offset)
            return
        self._turn += 1
        unique_key = find_property(record.properties, UNIQ_KEY) or ""
        ext = {
            "topic": place[0],
            "tranStateTableOffset": str(record.queue_offset),
            "commitLogOffset": str(record.physical_offset),
            "msgId": unique_key,
            "transactionId": unique_key,
            "offsetMsgId": record.message_id,
            "bname": self._broker.config.broker_name,
        }
        members[self._turn % len(members)].notify(RequestCode.CHECK_TRANSACTION_STATE, ext, question_body(record))
