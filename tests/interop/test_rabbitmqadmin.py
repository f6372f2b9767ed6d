"""RabbitMQ's own rabbitmqadmin against the HTTP port, unmodified."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.broker_process import BrokerProcess

TOOL = shutil.which("rabbitmqadmin")
pytestmark = [
    pytest.mark.interop,
    pytest.mark.quick,
    pytest.mark.skipif(TOOL is None, reason="rabbitmqadmin is not installed (Debian: apt-get install rabbitmq-server)"),
]


class Admin:
    """The tool, aimed at one broker."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.host, _, self.port = broker.addresses["http"].rpartition(":")

    def run(self, *words: str, code: int = 0) -> str:
        """What it prints."""
        assert TOOL is not None
        command = [TOOL, "-H", self.host, "-P", self.port, "-f", "raw_json", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def rows(self, *words: str) -> list[dict[str, object]]:
        """What it prints, as JSON."""
        found: list[dict[str, object]] = json.loads(self.run(*words))
        return found


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    with BrokerProcess(tmp_path_factory.mktemp("management"), "--amqp-port=0") as broker:
        yield Admin(broker)


def test_declare_publish_get_and_delete(admin):
    admin.run("declare", "queue", "name=q1", "durable=true", 'arguments={"x-max-length": 10}')
    admin.run("declare", "exchange", "name=ex1", "type=topic")
    admin.run("declare", "binding", "source=ex1", "destination=q1", "routing_key=a.*")
    assert "published" in admin.run("publish", "exchange=ex1", "routing_key=a.b", "payload=hello").lower()
    (row,) = admin.rows("get", "queue=q1", "ackmode=ack_requeue_false")
    assert (row["payload"], row["routing_key"], row["exchange"]) == ("hello", "a.b", "ex1")
    (queue,) = [row for row in admin.rows("list", "queues") if row["name"] == "q1"]
    assert (queue["messages"], queue["arguments"]) == (0, {"x-max-length": 10})
    assert {row["source"] for row in admin.rows("list", "bindings") if row["destination"] == "q1"} == {"", "ex1"}
    admin.run("purge", "queue", "name=q1")
    admin.run("delete", "binding", "source=ex1", "destination_type=queue", "destination=q1", "properties_key=a.%2A")
    admin.run("delete", "queue", "name=q1")
    admin.run("delete", "exchange", "name=ex1")
    assert "q1" not in {row["name"] for row in admin.rows("list", "queues")}
    admin.run("delete", "queue", "name=q1", code=1)


def test_users_vhosts_permissions_and_policies(admin):
    admin.run("declare", "vhost", "name=other")
    admin.run("declare", "user", "name=ann", "password=secret", "tags=management")
    admin.run("declare", "permission", "vhost=other", "user=ann", "configure=.*", "write=.*", "read=.*")
    admin.run("declare", "policy", "name=short", "pattern=^s", 'definition={"max-length": 2}', "apply-to=queues")
    assert {row["user"] for row in admin.rows("list", "permissions") if row["vhost"] == "other"} == {"ann", "guest"}
    assert admin.rows("list", "policies")[0]["definition"] == {"max-length": 2}
    assert "other" in {row["name"] for row in json.loads(admin.run("-u", "ann", "-p", "secret", "list", "vhosts"))}
    admin.run("delete", "policy", "name=short")
    admin.run("delete", "user", "name=ann")
    admin.run("delete", "vhost", "name=other")


def test_show_list_export_and_import(admin, tmp_path: Path):
    (overview,) = admin.rows("show", "overview")
    assert overview["product_name"] == "StrataMQ"
    for noun in ("nodes", "connections", "channels", "consumers", "exchanges", "users", "vhosts", "parameters"):
        admin.rows("list", noun)
    admin.run("declare", "queue", "name=kept", "durable=true")
    file = tmp_path / "definitions.json"
    admin.run("export", str(file))
    admin.run("delete", "queue", "name=kept")
    admin.run("import", str(file))
    assert "kept" in {row["name"] for row in admin.rows("list", "queues")}
