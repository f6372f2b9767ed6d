"""Drives the C++ client (package ``rocketmq``) in a process of its own: it keeps state for the life of a process.

Run as ``python cpp_client.py ROLE '{"namesrv": ..., ...}'``. Prints one JSON object a line; what a consumer gets is
printed as it comes. A line on stdin ends it in order; consumers then commit their offsets and leave their groups.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

_lock = threading.Lock()


def say(**fields: Any) -> None:
    """Print one line for the test."""
    with _lock:
        sys.stdout.write(json.dumps(fields) + "\n")
        sys.stdout.flush()


def message(topic: str, spec: dict[str, Any]) -> Any:
    """Make a message from a plain description."""
    from rocketmq.client import Message

    made = Message(topic)
    made.set_body(spec["body"])
    if spec.get("tags"):
        made.set_tags(spec["tags"])
    if spec.get("keys"):
        made.set_keys(spec["keys"])
    for name, value in spec.get("properties", {}).items():
        made.set_property(name, value)
    if spec.get("delay"):
        made.set_delay_time_level(spec["delay"])
    return made


def produce(options: dict[str, Any]) -> None:
    """Send messages the way ``how`` says and print what came of each."""
    from rocketmq.client import Producer

    producer = Producer(options.get("group", "producers"))
    producer.set_namesrv_addr(options["namesrv"])
    producer.set_timeout(60_000)  # 3 s, its own, is not much on a busy machine
    producer.start()
    topic, how, specs = options["topic"], options.get("how", "sync"), options["messages"]
    if how == "batch":
        result = producer.send_batch([message(topic, spec) for spec in specs])
        say(status=int(result.status), offset=result.offset)
    elif how == "async":
        left = threading.Semaphore(0)

        def succeeded(result: Any) -> None:
            say(status=int(result.status), offset=result.offset, id=result.msg_id)
            left.release()

        def failed(error: Exception) -> None:
            say(error=str(error))
            left.release()

        kept = [message(topic, spec) for spec in specs]
        for one in kept:
            producer.send_async(one, succeeded, failed)
        for _ in specs:
            if not left.acquire(timeout=150):
                say(error="no answer")
    else:
        for number, spec in enumerate(specs):
            made = message(topic, spec)
            try:
                if how == "oneway":
                    producer.send_oneway(made)
                    say(sent=number)
                    continue
                result = producer.send_orderly(made, spec["key"]) if how == "orderly" else producer.send_sync(made)
                say(status=int(result.status), offset=result.offset, id=result.msg_id)
            except Exception as error:
                say(error=str(error))
    producer.shutdown()
    say(done=True)


def stream(options: dict[str, Any]) -> None:
    """Send one message after the other until a line comes on stdin; print each that was acknowledged, and when."""
    from rocketmq.client import Producer

    producer = Producer(options.get("group", "producers"))
    producer.set_namesrv_addr(options["namesrv"])
    producer.set_timeout(1_000)
    producer.start()
    ended = threading.Event()

    def wait_for_line() -> None:
        sys.stdin.readline()
        ended.set()

    threading.Thread(target=wait_for_line, daemon=True).start()
    say(started=True)
    number = 0
    while not ended.is_set():
        number += 1
        body = f"{options.get('prefix', 'm')}-{number}"
        try:
            result = producer.send_sync(message(options["topic"], {"body": body}))
            say(acked=body, status=int(result.status), at=time.monotonic())
        except Exception as error:
            say(failed=body, error=str(error), at=time.monotonic())
        ended.wait(options.get("pause", 0.01))
    producer.shutdown()
    say(done=True)


def consume(options: dict[str, Any]) -> None:
    """Subscribe and print every message; fail those whose body is listed in ``fail`` on their first try."""
    from rocketmq.client import PushConsumer
    from rocketmq.consts import MessageProperty
    from rocketmq.ffi import MessageModel

    model = MessageModel.BROADCASTING if options.get("broadcasting") else MessageModel.CLUSTERING
    consumer = PushConsumer(options["group"], orderly=options.get("orderly", False), message_model=model)
    consumer.set_namesrv_addr(options["namesrv"])
    consumer.set_instance_name(options.get("instance", "DEFAULT"))
    to_fail = set(options.get("fail", ()))

    def arrived(got: Any) -> None:
        body = got.body.decode()
        say(
            body=body,
            queue=got.queue_id,
            offset=got.queue_offset,
            tags=(got.tags or b"").decode(),
            keys=(got.keys or b"").decode(),
            times=got.reconsume_times,
            topic=got.topic,
            custom=(got.get_property("custom") or b"").decode(),
            key=(got.get_property(MessageProperty.KEYS) or b"").decode(),
        )
        if body in to_fail and got.reconsume_times == 0:
            raise RuntimeError("as the test wants")

    consumer.subscribe(options["topic"], arrived, options.get("expression", "*"))
    consumer.start()
    say(started=True)
    sys.stdin.readline()
    consumer.shutdown()
    say(done=True)


def pull(options: dict[str, Any]) -> None:
    """Pull everything a topic holds and print it."""
    from rocketmq.client import PullConsumer

    consumer = PullConsumer(options["group"])
    consumer.set_namesrv_addr(options["namesrv"])
    consumer.start()
    for got in consumer.pull(options["topic"], options.get("expression", "*")):
        say(body=got.body.decode(), queue=got.queue_id, offset=got.queue_offset)
    consumer.shutdown()
    say(done=True)


if __name__ == "__main__":
    {"produce": produce, "stream": stream, "consume": consume, "pull": pull}[sys.argv[1]](json.loads(sys.argv[2]))
