"""What a sink makes of rows, and what the small producer does about a peer that is not one."""

from __future__ import annotations

import socket
import threading
from collections import Counter

import pytest

from stratamq.errors import PeerUnreachable, PipelineError, RemoteProtocolError
from stratamq.formats.properties import decode_properties
from stratamq.pipeline.sending import Producer, Target

pytest.importorskip("pyspark")

from stratamq.pipeline.sink import KEY, choose_queue, message_properties, parse_write_options


def key_of(task: str = "s", seen: Counter[str] | None = None, **values: object) -> str:
    _, properties = message_properties({"body": b"x", **values}, "orders", task, Counter() if seen is None else seen)
    return decode_properties(properties)[KEY]


def test_a_key_is_that_of_the_row_and_the_task():
    assert key_of() == key_of()
    others = [key_of("t"), key_of(body=b"y"), key_of(tags="a"), key_of(keys="a"), key_of(queue_id=0)]
    assert len({key_of(), *others}) == 6
    seen: Counter[str] = Counter()
    assert key_of(seen=seen) != key_of(seen=seen), "two rows alike in one task are two messages"


def test_properties_cannot_be_smuggled():
    with pytest.raises(PipelineError, match="control character"):
        key_of(tags="a\x02KEYS\x01b")


def test_a_queue_that_is_not_there_is_named():
    queues = [Target("b:1", 0), Target("b:1", 1)]
    assert choose_queue(queues, 1, 0, "orders") == queues[1]
    assert choose_queue(queues, None, 7, "orders") == queues[1]
    with pytest.raises(PipelineError, match="orders has no queue 2"):
        choose_queue(queues, 2, 0, "orders")


@pytest.mark.parametrize(
    ("options", "columns", "text"),
    [
        ({"namesrv": "a:1", "topik": "t"}, "body binary", "no option topik"),
        ({"topic": "t"}, "body binary", "needs the option namesrv"),
        ({"namesrv": "a:1"}, "body binary", "column or the option topic"),
        ({"namesrv": "a:1", "topic": "t"}, "body string", "cannot write column body string"),
        ({"namesrv": "a:1", "topic": "t", "retries": "-1"}, "body binary", "retries"),
    ],
)
def test_options_that_cannot_work_are_refused(options, columns, text):
    from pyspark.sql.types import BinaryType, StringType, StructType

    kind = BinaryType() if columns.endswith("binary") else StringType()
    with pytest.raises(PipelineError, match=text):
        parse_write_options(options, StructType().add("body", kind))


@pytest.mark.parametrize(
    ("answer", "error"), [(b"HTTP/1.1 400 Bad\r\n\r\n", RemoteProtocolError), (b"", PeerUnreachable)]
)
def test_a_peer_that_is_no_name_server(answer, error):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            link, _ = server.accept()
            with link:
                link.recv(65536)
                link.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with Producer(f"127.0.0.1:{server.getsockname()[1]}", timeout_s=100) as producer, pytest.raises(error):
            producer.queues("orders")
        thread.join()


def test_an_address_is_checked():
    with Producer("nowhere") as producer, pytest.raises(PipelineError, match="HOST:PORT"):
        producer.queues("orders")
