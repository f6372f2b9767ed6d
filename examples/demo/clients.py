"""The demo's clients: the C++ client in the PyPI package `rocketmq`, unmodified, in processes of their own.

The C++ library keeps state for the whole process, and its callbacks come on its own threads; so one process sends, or
one consumes, and it reports to the demo over a pipe: one JSON object a line, ``{"done": N}`` now and then.

    python -m examples.demo.clients send    --namesrv HOST:PORT --events N --sender S --senders K --report-fd FD
    python -m examples.demo.clients consume --namesrv HOST:PORT --events N --out FILE --report-fd FD
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from examples.demo import orders

GROUP = "demo-orders"
QUIET_SECONDS_MAX = 60.0
"""Longest silence of the broker before a client gives up."""
LISTEN_ON_SECONDS = 2.0
"""How long the consumer goes on listening when it has everything: what comes then came twice."""
_EVENT = re.compile(rb'"event":(\d+)')


class Report:
    """The pipe to the demo."""

    def __init__(self, descriptor: int) -> None:
        self._pipe: io.TextIOWrapper = os.fdopen(descriptor, "w", encoding="utf-8")

    def put(self, **values: object) -> None:
        """Send one object."""
        self._pipe.write(json.dumps(values) + "\n")
        self._pipe.flush()


def send(options: argparse.Namespace, report: Report) -> int:
    """Send one sender's share of the events, each answered before the next one goes. Returns the exit code.

    One thread only: several that share this client fight over its lock on the connection, and some give up at once.
    """
    from rocketmq.client import Message, Producer, SendStatus

    producer = Producer(f"{GROUP}-producer")
    producer.set_namesrv_addr(options.namesrv)
    producer.start()
    report.put(ready=True)
    began = said = time.monotonic()
    sent = 0
    for event in orders.events(options.events, start=options.sender, step=options.senders):
        message = Message(event.topic)
        message.set_keys(event.keys)
        message.set_tags(event.tag)
        message.set_body(event.body)
        status = producer.send_sync(message).status
        if status != SendStatus.OK:
            report.put(error=f"the broker answered {status.name} to event {event.number}")
            return 1
        sent += 1
        if time.monotonic() - said > 0.1:
            said = time.monotonic()
            report.put(done=sent)
    report.put(done=sent, seconds=time.monotonic() - began)
    producer.shutdown()
    return 0


def consume(options: argparse.Namespace, report: Report) -> int:
    """Consume until every event was seen and nothing more comes; writes one line a message. Returns the exit code."""
    from rocketmq.client import PushConsumer

    rows: list[tuple[str, int, int, int, str]] = []
    last_at = [time.monotonic()]

    def take(message: Any) -> None:
        topic, body = message.topic, message.body
        content = orders.digest(topic, message.tags.decode(), message.keys.decode(), body)
        found = _EVENT.search(body)
        number = int(found[1]) if found else -1
        rows.append((topic, message.queue_id, message.queue_offset, number, content.hex()))
        last_at[0] = time.monotonic()

    consumer = PushConsumer(GROUP)
    consumer.set_namesrv_addr(options.namesrv)
    for topic in orders.TOPICS:
        consumer.subscribe(topic, take)
    consumer.start()
    report.put(ready=True)
    began = time.monotonic()
    while len(rows) < options.events and time.monotonic() - last_at[0] < QUIET_SECONDS_MAX:
        time.sleep(0.1)
        report.put(done=len(rows))
    finished = last_at[0]
    time.sleep(LISTEN_ON_SECONDS)
    consumer.shutdown()
    with Path(options.out).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    report.put(done=len(rows), seconds=finished - began)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["send", "consume"])
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--sender", type=int, default=0, help="which sender this is")
    parser.add_argument("--senders", type=int, default=1, help="how many there are")
    parser.add_argument("--out", default="received.jsonl")
    parser.add_argument("--report-fd", type=int, required=True)
    options = parser.parse_args(arguments)
    code = (send if options.what == "send" else consume)(options, Report(options.report_fd))
    sys.stdout.flush()
    os._exit(code)  # the C++ library's threads do not end by themselves


if __name__ == "__main__":
    main()
