"""A client without sockets: what it sends goes straight into a session, what comes back are method values."""

from __future__ import annotations

import itertools
from typing import Any

from stratamq.broker.amqp.broker import AmqpBroker
from stratamq.broker.amqp.connection import Session
from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.connection import Limits
from stratamq.protocols.amqp.frames import PROTOCOL_HEADER, method_frame
from stratamq.protocols.amqp.properties import decode_properties
from tests.unit.protocols.amqp import peers

NOW_MS = 1_600_000_000_000
_TOKENS = itertools.count()


def new_broker(storage: Any = None) -> AmqpBroker:
    broker = AmqpBroker(storage, now_ms=NOW_MS)
    broker.add_defaults()
    return broker


def turn(broker: AmqpBroker, *, later_ms: int = 0) -> None:
    """Let time pass, then end the turn, as the shell does."""
    broker.now_ms += later_ms
    broker.tick()
    broker.end_turn()
    for session in broker.unsent:
        session.unsent_bytes = 0
    broker.unsent.clear()


class Client:
    """One connection with channel 1 open."""

    def __init__(
        self,
        broker: AmqpBroker,
        *,
        user: str = "guest",
        password: str = "guest",
        vhost: str = "/",
        capabilities: dict | None = None,
        body_bytes_max: int = 1_000_000,
    ) -> None:
        self.broker = broker
        self.session = Session(
            broker,
            limits=Limits(body_bytes_max=body_bytes_max),
            server_properties={},
            make_token=lambda: f"token{next(_TOKENS)}",
        )
        response = f"\0{user}\0{password}".encode()
        self.session.receive(PROTOCOL_HEADER + peers.start_ok(response=response, capabilities=capabilities))
        self.session.receive(
            method_frame(0, methods.ConnectionTuneOk(2047, 131_072, 0)) + method_frame(0, methods.ConnectionOpen(vhost))
        )
        self.opened = self.take()
        self.send(methods.ChannelOpen())

    def take(self) -> list[Any]:
        """What the broker sent since the last call: methods of channel 1 as values, contents as (properties, body)."""
        frames = peers.frames_of(b"".join(self.session.outgoing))
        self.session.outgoing.clear()
        self.session.unsent_bytes = 0
        found: list[Any] = []
        for kind, _, payload in frames:
            if kind == 1:
                found.append(peers.decode_method(payload))
            elif kind == 2:
                found.append((decode_properties(payload[12:]), b""))
            elif kind == 3:
                properties, body = found[-1]
                found[-1] = (properties, body + payload)
        return found

    def raw(self, data: bytes) -> list[Any]:
        self.session.receive(data)
        turn(self.broker)
        return self.take()

    def send(self, *arguments: Any, channel: int = 1) -> list[Any]:
        """Send methods in one piece; what comes back once the turn has ended."""
        return self.raw(b"".join(method_frame(channel, one) for one in arguments))

    def call(self, arguments: Any) -> Any:
        """Send one method; the one answer."""
        (answer,) = self.send(arguments)
        return answer

    # --- what tests do often ---

    def queue(
        self, name: str = "q", *, durable: bool = False, exclusive: bool = False, auto_delete: bool = False, **kw: Any
    ) -> Any:
        arguments = {f"x-{key.replace('_', '-')}": value for key, value in kw.items()}
        return self.call(methods.QueueDeclare(name, False, durable, exclusive, auto_delete, False, arguments))

    def count(self, name: str = "q") -> int:
        """Ready messages, by a passive declare."""
        return self.call(methods.QueueDeclare(name, True, False, False, False, False, {})).message_count

    def exchange(
        self,
        name: str,
        kind: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        **kw: Any,
    ) -> Any:
        arguments = {key.replace("_", "-"): value for key, value in kw.items()}
        return self.call(methods.ExchangeDeclare(name, kind, False, durable, auto_delete, internal, False, arguments))

    def bind(self, queue: str, exchange: str, key: str = "", **arguments: Any) -> Any:
        return self.call(methods.QueueBind(queue, exchange, key, False, arguments))

    def publish(
        self, key: str, *bodies: bytes | str, exchange: str = "", mandatory: bool = False, **properties: Any
    ) -> list[Any]:
        return self.raw(
            b"".join(
                peers.publish(
                    1,
                    exchange,
                    key,
                    body if isinstance(body, bytes) else body.encode(),
                    mandatory=mandatory,
                    **properties,
                )
                for body in bodies
            )
        )

    def get(self, queue: str = "q", *, no_ack: bool = True) -> tuple[Any, dict[str, Any], bytes] | None:
        answer = self.send(methods.BasicGet(queue, no_ack))
        if isinstance(answer[0], methods.BasicGetEmpty):
            return None
        properties, body = answer[1]
        return answer[0], properties, body

    def bodies(self, queue: str = "q") -> list[str]:
        """Everything in a queue, taken out."""
        found = []
        while (got := self.get(queue)) is not None:
            found.append(got[2].decode())
        return found

    def consume(
        self, queue: str = "q", tag: str = "c", *, no_ack: bool = False, exclusive: bool = False, **arguments: Any
    ) -> list[Any]:
        return self.send(methods.BasicConsume(queue, tag, False, no_ack, exclusive, False, arguments))

    def delivered(self, answers: list[Any] | None = None) -> list[tuple[int, bool, str]]:
        """Delivery tag, redelivered and body of each delivery."""
        answers = self.take() if answers is None else answers
        return [
            (one.delivery_tag, one.redelivered, content[1].decode())
            for one, content in itertools.pairwise(answers)
            if isinstance(one, methods.BasicDeliver)
        ]

    def ack(self, tag: int, *, multiple: bool = False) -> list[Any]:
        return self.send(methods.BasicAck(tag, multiple))

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> list[Any]:
        return self.send(methods.BasicNack(tag, multiple, requeue))

    def reopen(self) -> None:
        """Answer a channel.close of the broker, and open the channel again."""
        self.send(methods.ChannelCloseOk())
        self.send(methods.ChannelOpen())

    def close(self) -> None:
        self.send(methods.ConnectionClose(200, "", 0, 0), channel=0)


def refusal(answers: Any) -> tuple[int, str]:
    """Code and text of the close that is the only answer."""
    (close,) = answers if isinstance(answers, list) else [answers]
    assert isinstance(close, methods.ChannelClose | methods.ConnectionClose), close
    return close.code, close.text
