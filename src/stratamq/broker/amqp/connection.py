"""The session of one connection: who it is, its channels, and the way from events to channels and errors to closes.

The shell hands over events of the protocol core and takes `outgoing` frames away; `Session` decides. A refusal on a
channel closes that channel, a hard one the connection, and neither is noticed by anybody else.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from stratamq.broker.amqp import consuming  # noqa: F401 (registers its handlers)
from stratamq.broker.amqp.access import Permission
from stratamq.broker.amqp.channel import Channel
from stratamq.broker.amqp.queue import Queue
from stratamq.broker.amqp.traffic import Octets
from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.codec import decode_method, spec_of
from stratamq.protocols.amqp.connection import AmqpConnection, Event, Limits
from stratamq.protocols.amqp.frames import method_frame
from stratamq.protocols.amqp.replies import (
    ACCESS_REFUSED,
    CHANNEL_ERROR,
    COMMAND_INVALID,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    SYNTAX_ERROR,
    AmqpError,
    error_to_reply,
)
from stratamq.protocols.amqp.values import decode_table_entries

if TYPE_CHECKING:
    from stratamq.broker.amqp.broker import AmqpBroker

_log = logging.getLogger(__name__)

_CHANNEL_OPEN: Final = spec_of(methods.ChannelOpen).head
_CHANNEL_CLOSE: Final = spec_of(methods.ChannelClose).head
_CHANNEL_CLOSE_OK: Final = spec_of(methods.ChannelCloseOk).head
_CONNECTION_CLOSE: Final = spec_of(methods.ConnectionClose).head
_PERMISSIONS_REMEMBERED: Final = 1024
EXTERNAL: Final = "EXTERNAL"
"""The mechanism that takes the user's name from the certificate of the peer."""

CAPABILITIES: Final[Mapping[str, bool]] = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}


class Session:
    """One connection of a client. Also the gate of its protocol core."""

    def __init__(
        self,
        broker: AmqpBroker,
        *,
        limits: Limits,
        server_properties: Mapping[str, Any],
        is_loopback: bool = True,
        is_secure: bool = False,
        certificate_name: str | None = None,
        make_token: Callable[[], str],
        name: str = "",
    ) -> None:
        self.broker = broker
        self.name = name
        self.core = AmqpConnection(gate=self, limits=limits, server_properties=server_properties)
        if certificate_name is not None:
            self.core.offer(EXTERNAL)
        self.outgoing = self.core.outgoing
        """Frames to send; the shell empties the list and sets `unsent_bytes` back."""
        self.unsent_bytes = 0
        self.octets = Octets()
        """Counted by the shell."""
        self.make_token = make_token
        """Gives random names: of queues, consumers, replies."""
        self.channels: dict[int, Channel] = {}
        self.exclusive_queues: dict[Queue, None] = {}
        self.is_clogged = False
        """Whether the peer does not take what is sent to it; nothing is delivered meanwhile."""
        self.is_blocked = False
        """Whether an alarm holds this publisher back."""
        self.is_closed = False
        self.connected_ms = broker.now_ms
        self.mechanism = ""
        """How the user has logged in."""
        self.certificate_name = certificate_name
        """The user that the peer's certificate names: "" where it showed none, None where it is no login."""
        self.is_secure = is_secure
        """Whether the connection is encrypted."""
        self._is_loopback = is_loopback
        self._allowed: dict[tuple[str, str], bool] = {}
        self._allowed_epoch = -1
        broker.sessions[self] = None
        broker.counters.connections_opened += 1

    def push(self, frame: bytes) -> None:
        """Send a frame at the end of the turn."""
        if not self.unsent_bytes:
            self.broker.note_unsent(self)
        self.unsent_bytes += len(frame)
        self.outgoing.append(frame)

    # --- the gate ---

    def login(self, mechanism: str, response: bytes) -> str:
        if mechanism == EXTERNAL and self.certificate_name is not None:
            name = self.certificate_name
            user = self.broker.users.get(name) if name else None
        else:
            name, password = _credentials(mechanism, response)
            user = self.broker.users.authenticate(name, password)
        if user is None or (name == "guest" and not self._is_loopback):
            _log.warning("login of %r by %s from %s refused", name, mechanism, self.name)
            raise AmqpError(
                ACCESS_REFUSED,
                f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile.",
                hard=True,
            )
        self.mechanism = mechanism
        return user.name

    def open(self, virtual_host: str) -> None:
        if self.broker.failure:
            text = f"the queue store has failed: {self.broker.failure}; restart the broker"
            raise AmqpError(INTERNAL_ERROR, text, hard=True)
        if virtual_host not in self.broker.vhosts:
            raise AmqpError(NOT_ALLOWED, f"vhost {virtual_host} not found")
        user = self.broker.users.get(self.core.user)
        if user is None or user.permission(virtual_host) is None:
            raise AmqpError(NOT_ALLOWED, f"access to vhost '{virtual_host}' refused for user '{self.core.user}'")
        self.vhost = self.broker.vhosts[virtual_host]

    # --- permissions ---

    def require(self, action: str, kind: str, name: str) -> None:
        """Refuse what the user may not do. Raises AmqpError 403. Cost: a look into a dictionary."""
        if self._allowed_epoch != self.broker.epoch or len(self._allowed) > _PERMISSIONS_REMEMBERED:
            self._allowed.clear()
            self._allowed_epoch = self.broker.epoch
        shown = name if name or kind == "queue" else "amq.default"
        allowed = self._allowed.get((action, shown))
        if allowed is None:
            user = self.broker.users.get(self.core.user)
            permission = user.permission(self.vhost.name) if user is not None else None
            allowed = (permission or Permission()).allows(action, shown)
            self._allowed[action, shown] = allowed
        if not allowed:
            raise AmqpError(
                ACCESS_REFUSED,
                f"{action} access to {kind} '{shown}' in vhost '{self.vhost.name}' refused for user '{self.core.user}'",
            )

    def require_topic(self, action: str, exchange: str, key: str) -> None:
        """Refuse a key of a topic exchange that the user may not use. Raises AmqpError 403."""
        user = self.broker.users.get(self.core.user)
        permission = user.topic_permissions.get((self.vhost.name, exchange)) if user is not None else None
        if permission is None:
            return
        if not permission.allows(action, key, user=self.core.user, vhost=self.vhost.name):
            raise AmqpError(
                ACCESS_REFUSED,
                f"{action} access to topic '{key}' in exchange '{exchange}' in vhost '{self.vhost.name}' refused "
                f"for user '{self.core.user}'",
            )

    # --- events ---

    def receive(self, data: bytes) -> None:
        """Take bytes off the socket and do what they ask for."""
        core = self.core
        events = core.receive_data(data)
        if events and not self.is_closed:
            self._handle(events)
        if core.fault is not None and not self.is_closed:
            fault = core.fault
            self.shut_down()
            if not core.hang_up:
                core.close(fault, *core.fault_method)
        if self.outgoing and not self.unsent_bytes:
            self._note_core_frames()

    def _note_core_frames(self) -> None:
        """Frames that the core has queued by itself are to be written too."""
        self.unsent_bytes = max(1, sum(map(len, self.outgoing)))
        self.broker.note_unsent(self)

    def _handle(self, events: Sequence[Event]) -> None:
        channels = self.channels
        for number, payload, header, body in events:
            channel = channels.get(number)
            try:
                if channel is None:
                    self._take_unknown(number, payload)
                elif header is None:
                    channel.handle(payload)
                elif channel.is_open:
                    channel.publish(payload, header, body)
            except Exception as error:
                reply = error_to_reply(error)
                if reply.code == INTERNAL_ERROR:
                    _log.error("AMQP method %s of %s failed", payload[:4].hex(), self.name, exc_info=error)
                self._refuse(channel, payload, reply)
            if self.is_closed:
                return

    def _take_unknown(self, number: int, payload: bytes) -> None:
        """A method on a channel that is not open, or on channel 0."""
        head = payload[:4]
        if number == 0:
            arguments = decode_method(payload)
            if head == _CONNECTION_CLOSE:
                self.shut_down()
                self.core.confirm_close()
            elif isinstance(arguments, methods.ConnectionUpdateSecret):
                self.push(method_frame(0, methods.ConnectionUpdateSecretOk()))
        elif head == _CHANNEL_OPEN:
            limit = self.core.channel_max
            if limit and len(self.channels) >= limit:
                text = f"number of channels opened ({len(self.channels)}) has reached the negotiated channel_max"
                raise AmqpError(NOT_ALLOWED, f"{text} ({limit})")
            self.channels[number] = Channel(self, number)
            self.broker.counters.channels_opened += 1
            self.push(method_frame(number, methods.ChannelOpenOk()))
        elif head == _CHANNEL_CLOSE:
            self.push(method_frame(number, methods.ChannelCloseOk()))
        elif head != _CHANNEL_CLOSE_OK:
            raise AmqpError(CHANNEL_ERROR, "expected 'channel.open'")

    def _refuse(self, channel: Channel | None, payload: bytes, error: AmqpError) -> None:
        class_id, method_id = int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big")
        if channel is not None and not error.is_hard:
            channel.close_for(error, class_id, method_id)
            return
        self.shut_down()
        self.core.close(error, class_id, method_id)
        self._note_core_frames()

    # --- ends ---

    def close_for(self, error: AmqpError) -> None:
        """Close the connection from our side."""
        if not self.is_closed:
            self.shut_down()
            self.core.close(error)
            self._note_core_frames()

    def shut_down(self) -> None:
        """End everything of this connection: messages go back, consumers and exclusive queues go. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        for channel in list(self.channels.values()):
            channel.shut_down()
        self.channels.clear()
        for queue in list(self.exclusive_queues):
            self.broker.delete_queue(queue)
        self.exclusive_queues.clear()
        self.broker.sessions.pop(self, None)

    # --- flow ---

    def check_consumers(self) -> None:
        """Close channels on which a delivery has waited for its settlement for too long."""
        for channel in list(self.channels.values()):
            error = channel.overdue()
            if error is not None:
                channel.close_for(error, 0, 0)

    def set_clogged(self, clogged: bool) -> None:
        """The peer takes no more for now, or takes data again."""
        self.is_clogged = clogged
        if not clogged:
            for channel in self.channels.values():
                channel.resume()

    def note_publish(self) -> None:
        """A publisher is at work while an alarm is raised: hold it back from here on."""
        if self.is_blocked:
            return
        self.is_blocked = True
        if self.core.capability("connection.blocked"):
            reason = " & ".join(f"low on {name}" for name in self.broker.alarms)
            self.push(method_frame(0, methods.ConnectionBlocked(reason)))
        self.broker.wake_shell()

    def unblock(self) -> None:
        """The last alarm is over."""
        if not self.is_blocked:
            return
        self.is_blocked = False
        if self.core.capability("connection.blocked"):
            self.push(method_frame(0, methods.ConnectionUnblocked()))
        self.broker.wake_shell()


def _credentials(mechanism: str, response: bytes) -> tuple[str, str]:
    if mechanism == "PLAIN":
        parts = response.split(b"\0")
        if len(parts) != 3 or parts[0]:
            raise AmqpError(SYNTAX_ERROR, "response to PLAIN is malformed")
        return parts[1].decode("utf-8", "surrogateescape"), parts[2].decode("utf-8", "surrogateescape")
    if mechanism == "AMQPLAIN":
        table = decode_table_entries(response)
        login, password = table.get("LOGIN"), table.get("PASSWORD")
        if not isinstance(login, str) or not isinstance(password, str):
            raise AmqpError(SYNTAX_ERROR, "response to AMQPLAIN lacks LOGIN or PASSWORD")
        return login, password
    shown = re.sub(r"[^\x20-\x7e]", "?", mechanism)
    raise AmqpError(COMMAND_INVALID, f"unknown authentication mechanism '{shown}'")
