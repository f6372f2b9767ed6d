"""TLS with unmodified clients: pika and py-amqp on the AMQPS port, RocketMQ's Java client, HTTPS."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import amqp
import pika
import pika.exceptions
import pytest

from tests.certificates import Authority
from tests.interop.broker_process import BrokerProcess
from tests.interop.rocketmq_java.runner import CallFailed
from tests.interop.rocketmq_java.targets import ClientKind

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
USER = "CN=worker,O=Example"


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory, authority) -> Iterator[BrokerProcess]:
    """A broker whose remoting ports take TLS alone."""
    folder = tmp_path_factory.mktemp("broker")
    certificate, key = authority.issue("server")
    conf = folder / "broker.conf"
    conf.write_text(
        f"tls.server.certPath={certificate}\ntls.server.keyPath={key}\ntls.server.trustCertPath={authority.path}\n"
        "tls.server.mode=enforcing\ntls.server.need.client.auth=optional\nssl_cert_login_from=distinguished_name\n"
    )
    ports = ("--amqp-port=-1", "--amqps-port=0", "--https-port=0")
    with BrokerProcess(folder, *ports, f"--config={conf}") as process:
        yield process


@pytest.fixture(scope="module")
def worker(broker, authority) -> tuple[Path, Path]:
    """A client's certificate whose name is a user."""
    put(broker, authority, f"users/{USER}", {"password": "never used", "tags": ""})
    put(broker, authority, f"permissions/%2F/{USER}", {"configure": ".*", "write": ".*", "read": ".*"})
    return authority.issue("worker", organization="Example")


def port_of(broker: BrokerProcess) -> int:
    return int(broker.addresses["amqps"].rpartition(":")[2])


def put(broker: BrokerProcess, authority: Authority, path: str, value: object) -> None:
    """Change something through the management API, over HTTPS."""
    headers = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q=", "Content-Type": "application/json"}
    url = f"https://{broker.addresses['https']}/api/{path}"
    request = urllib.request.Request(url, json.dumps(value).encode(), headers, method="PUT")
    with urllib.request.urlopen(request, context=authority.client_context(), timeout=60) as answer:
        assert answer.status in (201, 204)


def parameters(broker: BrokerProcess, context: ssl.SSLContext, **more) -> pika.ConnectionParameters:
    options = pika.SSLOptions(context, "127.0.0.1")
    return pika.ConnectionParameters("127.0.0.1", port_of(broker), ssl_options=options, **more)


def test_pika_publishes_and_gets_over_tls(broker, authority):
    connection = pika.BlockingConnection(parameters(broker, authority.client_context()))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("tls", durable=True)
    body = bytes(range(256)) * 4_000
    channel.basic_publish("", "tls", body, pika.BasicProperties(delivery_mode=2), mandatory=True)
    assert channel.basic_get("tls", auto_ack=True)[2] == body
    connection.close()


def test_pika_logs_in_with_its_certificate(broker, authority, worker):
    credentials = pika.credentials.ExternalCredentials()
    known = parameters(broker, authority.client_context(worker), credentials=credentials)
    connection = pika.BlockingConnection(known)
    assert connection.channel().queue_declare("", exclusive=True).method.message_count == 0
    connection.close()
    unknown = parameters(broker, authority.client_context(), credentials=credentials)
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="EXTERNAL"):
        pika.BlockingConnection(unknown)


def test_py_amqp_speaks_tls_and_external(broker, authority, worker):
    options = {"ca_certs": str(authority.path), "certfile": str(worker[0]), "keyfile": str(worker[1])}
    host = f"localhost:{port_of(broker)}"
    with amqp.Connection(host, ssl=options, login_method="EXTERNAL") as connection:
        channel = connection.channel()
        name = channel.queue_declare(exclusive=True).queue
        channel.basic_publish(amqp.Message("over TLS"), routing_key=name)
        message = channel.basic_get(name, no_ack=True)
        assert (message.body, "EXTERNAL" in str(connection.mechanisms)) == ("over TLS", True)


def test_a_client_that_does_not_know_the_authority_gives_up(broker, tmp_path):
    stranger = Authority(tmp_path, "stranger")
    with pytest.raises((pika.exceptions.AMQPConnectionError, ssl.SSLCertVerificationError)):
        pika.BlockingConnection(parameters(broker, stranger.client_context()))
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(
            f"https://{broker.addresses['https']}/healthz", context=stranger.client_context(), timeout=60
        )


@pytest.mark.parametrize("kind", [ClientKind("5.5.0"), ClientKind("4.9.7")], ids=lambda kind: kind.label)
def test_rocketmq_java_clients_use_tls_and_are_refused_without(broker, tmp_path, kind):
    namesrv = broker.addresses["namesrv"]
    topic = f"over-tls-{kind.version.replace('.', '-')}"
    with kind.launch(tmp_path) as java:
        java.producer(namesrv, id="p", tls=True)
        java.push(namesrv, topic, id="c", group=f"readers-{kind.version[0]}", tls=True)
        rows = java.send([{"topic": topic, "text": f"{number}"} for number in range(20)])
        assert [row.get("status") for row in rows] == ["SEND_OK"] * 20, rows
        found: set[str] = set()
        while len(found) < 20:
            found |= {row["msgId"] for row in java.poll("c", timeout_s=150)}
        java.producer(namesrv, id="plain", group="plain", retries=0)
        try:
            refused = java.send([{"topic": topic, "text": "no"}], id="plain")[0]
            assert "exception" in refused, refused
        except CallFailed:
            pass
