"""Definitions: all that is declared as one JSON object, out and in; and parameters, of which there are none."""

from __future__ import annotations

from typing import Any, Final

from stratamq.broker.amqp.definitions import definitions_of, load_definitions
from stratamq.server.management import objects
from stratamq.server.management.access import ADMINISTRATOR
from stratamq.server.management.app import Call, Reply, Routes
from stratamq.server.management.status import empty_list

_IN_VHOST: Final = ("policies", "queues", "exchanges", "bindings")


def export(call: Call) -> Any:
    """GET /definitions"""
    call.caller.need(ADMINISTRATOR)
    found = definitions_of(call.broker)
    policies = found.pop("policies")
    return {
        "rabbit_version": objects.RABBITMQ_VERSION,
        "rabbitmq_version": objects.RABBITMQ_VERSION,
        "product_version": objects.RABBITMQ_VERSION,
        **found,
        "parameters": [],
        "global_parameters": [{"name": "cluster_name", "value": objects.node_name()}],
        "policies": [{key: value for key, value in row.items() if key != "operator"} for row in _own(policies)],
    }


def _own(policies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in policies if not row.get("operator")]


def export_vhost(call: Call) -> Any:
    """GET /definitions/VHOST: names without the virtual host, so that they fit into any"""
    call.caller.need(ADMINISTRATOR)
    name = call.vhost().name
    found = definitions_of(call.broker)
    return {
        "rabbit_version": objects.RABBITMQ_VERSION,
        "parameters": [],
        **{
            part: [
                {key: value for key, value in row.items() if key not in ("vhost", "operator")}
                for row in (_own(found[part]) if part == "policies" else found[part])
                if row["vhost"] == name
            ]
            for part in _IN_VHOST
        },
    }


def load(call: Call) -> Any:
    """POST /definitions"""
    call.caller.need(ADMINISTRATOR)
    load_definitions(call.broker, call.body)
    call.broker.changed(durable=True)
    return Reply(204)


def load_vhost(call: Call) -> Any:
    """POST /definitions/VHOST"""
    call.caller.need(ADMINISTRATOR)
    name = call.vhost().name
    value = {part: [{**row, "vhost": name} for row in call.body.get(part, ())] for part in _IN_VHOST}
    load_definitions(call.broker, value)
    call.broker.changed(durable=True)
    return Reply(204)


ROUTES: Routes = [
    ("GET", "/definitions", export),
    ("POST", "/definitions", load),
    ("GET", "/definitions/{vhost}", export_vhost),
    ("POST", "/definitions/{vhost}", load_vhost),
    ("GET", "/parameters", empty_list),
    ("GET", "/parameters/{component}", empty_list),
    ("GET", "/parameters/{component}/{vhost}", empty_list),
    ("GET", "/global-parameters", empty_list),
    ("GET", "/vhost-limits", empty_list),
    ("GET", "/vhost-limits/{vhost}", empty_list),
    ("GET", "/user-limits", empty_list),
    ("GET", "/user-limits/{user}", empty_list),
]
