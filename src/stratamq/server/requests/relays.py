"""Questions of operators to a client: 223 (as 221), 307, 309. The broker hands them on and the answers back.

Source: apache/rocketmq broker/.../AdminBrokerProcessor.java (callConsumer), broker/.../Broker2Client.java.
"""

from __future__ import annotations

from functools import partial
from typing import Final, cast

from stratamq.broker.broker import Broker
from stratamq.broker.clients import Client
from stratamq.errors import InvalidArgument, RemoteProtocolError
from stratamq.protocols.remoting.admin_headers import ConsumerStatusHeader, RelayHeader
from stratamq.protocols.remoting.bodies import dump, member_text
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.headers import HeaderReader, text_fields
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves

ANSWER_TIMEOUT_MS: Final = 10_000
STATUS_TIMEOUT_MS: Final = 5_000
VERSION_RELAYS: Final = 62
"""V3_1_8_SNAPSHOT: the first client that answers 307 and 309."""
_read_status: Final = HeaderReader(ConsumerStatusHeader)
_read_relay: Final = HeaderReader(RelayHeader)


class RelayRequests:
    """Stands between operators and clients."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @serves(RequestCode.GET_CONSUMER_RUNNING_INFO)
    def running_info(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Have a client say how it is getting on."""
        fields = _read_relay(header)
        self._relay(peer, header, fields, text_fields(header), b"")
        return None

    @serves(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    def consume_directly(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Have a client consume one message now; it does not move the group."""
        fields = _read_relay(header)
        ext = text_fields(header)
        ext["brokerName"] = self._broker.config.broker_name
        record = self._broker.store.record_at(physical_offset_of(fields.msg_id or ""))
        if record is None:
            raise RemoteProtocolError(f"no message with id {fields.msg_id}", reply_hint=ResponseCode.SYSTEM_ERROR)
        self._relay(peer, header, fields, ext, bytes(record))
        return None

    def _relay(self, peer: Peer, header: CommandHeader, fields: RelayHeader, ext: dict[str, str], body: bytes) -> None:
        group, client_id = fields.consumer_group, fields.client_id
        members = self._broker.consumers.find(group)
        clients = members.members.values() if members is not None else ()
        client = next((client for client in clients if client.client_id == client_id), None)
        if client is None:
            raise RemoteProtocolError(
                f"The Consumer <{group}> <{client_id}> not online", reply_hint=ResponseCode.SYSTEM_ERROR
            )
        if client.version < VERSION_RELAYS:
            raise RemoteProtocolError(
                f"The Consumer <{group}> <{client_id}> Version <{client.version}> too low to finish, please upgrade it "
                "to V3_1_8_SNAPSHOT",
                reply_hint=ResponseCode.SYSTEM_ERROR,
            )
        who = f"consumer <{group}> <{client_id}>"
        connection = cast(Peer, client.connection)
        connection.call(header.code, ext, body, partial(_hand_back, peer, header, who), timeout_ms=ANSWER_TIMEOUT_MS)

    @serves(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
    def status(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Have the members of a group, or one of them, say how far they are in each queue of a topic."""
        fields = _read_status(header)
        members = self._broker.consumers.find(fields.group)
        if members is None:
            raise RemoteProtocolError(
                f"No Any Consumer online in the consumer group: [{fields.group}]", reply_hint=ResponseCode.SYSTEM_ERROR
            )
        wanted = fields.client_addr or ""
        asked = [client for client in members.members.values() if not wanted or client.client_id == wanted]
        _StatusRound(peer, header, asked).ask({"topic": fields.topic, "group": fields.group})
        return None


class _StatusRound:
    """Asks some clients the same and answers when all have answered or their time is up."""

    def __init__(self, peer: Peer, header: CommandHeader, clients: list[Client]) -> None:
        self._peer = peer
        self._header = header
        self._clients = clients
        self._waiting = len(clients)
        self._tables: list[str] = []

    def ask(self, ext: dict[str, str]) -> None:
        if not self._clients:
            self._answer()
        for client in self._clients:
            cast(Peer, client.connection).call(
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
                ext,
                b"",
                partial(self._answered, client.client_id),
                timeout_ms=STATUS_TIMEOUT_MS,
            )

    def _answered(self, client_id: str, header: CommandHeader | None, body: bytes) -> None:
        if header is not None and header.code == ResponseCode.SUCCESS:
            table = member_text(body, "messageQueueTable")
            if table is not None:
                self._tables.append(f"{dump(client_id)}:{table}")
        self._waiting -= 1
        if not self._waiting:
            self._answer()

    def _answer(self) -> None:
        text = f'{{"consumerTable":{{{",".join(self._tables)}}}}}'
        self._peer.write(encode_response(self._header, ResponseCode.SUCCESS, body=text.encode()))


def _hand_back(peer: Peer, header: CommandHeader, who: str, answer: CommandHeader | None, body: bytes) -> None:
    """Give a client's answer, or that there is none, to who asked."""
    if answer is None:
        remark = f"{who} Timeout: no answer within {ANSWER_TIMEOUT_MS} ms"
        peer.write(encode_response(header, ResponseCode.CONSUME_MSG_TIMEOUT, remark=remark))
        return
    peer.write(encode_response(header, answer.code, remark=answer.remark, body=body))


def physical_offset_of(message_id: str) -> int:
    """The physical offset in an offset message id: 32 hex digits, or 56 with an IPv6 host. Raises InvalidArgument."""
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        raw = b""
    if len(raw) not in (16, 28):
        raise InvalidArgument(f"msgId {message_id[:100]!r} is no offset message id: 32 or 56 hex digits")
    offset = int.from_bytes(raw[-8:], "big", signed=True)
    if offset < 0:
        raise InvalidArgument(f"msgId {message_id} holds a negative offset")
    return offset
