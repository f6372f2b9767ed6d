"""Send and receive a few messages with RocketMQ's own C++ client (PyPI: rocketmq, Linux on x86-64).

Start a broker with ``./dev serve``, then ``python examples/produce_consume.py [HOST:PORT]`` (default 127.0.0.1:9876).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

TOPIC = "greetings"
COUNT = 10
WAIT_SECONDS = 30.0


def greetings(count: int) -> Iterator[tuple[str, str, str]]:
    """Key, tag and body of each message."""
    for number in range(count):
        yield f"greeting-{number}", "even" if number % 2 == 0 else "odd", f"hello, number {number}"


def produce(namesrv: str) -> None:
    """Send all of them; each is stored when ``send_sync`` returns."""
    from rocketmq.client import Message, Producer

    producer = Producer("example-producer")
    producer.set_namesrv_addr(namesrv)
    producer.start()
    for key, tag, body in greetings(COUNT):
        message = Message(TOPIC)
        message.set_keys(key)
        message.set_tags(tag)
        message.set_body(body)
        result = producer.send_sync(message)
        print(f"sent {key}: {result.status.name}, queue offset {result.offset}")
    producer.shutdown()


def consume(namesrv: str) -> bool:
    """Receive messages until as many came as were sent; says whether they did. Only tag "even" would be ``"even"``."""
    from rocketmq.client import PushConsumer

    came = threading.Semaphore(0)

    def take(message: object) -> None:
        print(f"received {message!r}")
        came.release()

    consumer = PushConsumer("example-consumer")
    consumer.set_namesrv_addr(namesrv)
    consumer.subscribe(TOPIC, take, "*")
    consumer.start()
    complete = all(came.acquire(timeout=WAIT_SECONDS) for _ in range(COUNT))
    consumer.shutdown()
    return complete


def main(arguments: list[str]) -> int:
    """Send, then receive."""
    namesrv = arguments[0] if arguments else "127.0.0.1:9876"
    produce(namesrv)
    return 0 if consume(namesrv) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
