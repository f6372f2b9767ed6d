"""Users, their passwords and permissions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from stratamq.broker.amqp.access import SCRYPT, SHA256, Permission, TopicPermission, User, check_pattern, hash_password
from stratamq.errors import InvalidArgument
from stratamq.server.management import objects
from stratamq.server.management.access import ADMINISTRATOR
from stratamq.server.management.app import Call, Missing, Reply, Routes
from stratamq.server.management.objects import Row


def users(call: Call) -> Any:
    """GET /users"""
    call.caller.need(ADMINISTRATOR)
    return call.listed([objects.user_row(user) for user in call.broker.users.all()])


def users_without_permissions(call: Call) -> Any:
    """GET /users/without-permissions"""
    call.caller.need(ADMINISTRATOR)
    return [objects.user_row(user) for user in call.broker.users.all() if not user.permissions]


def _user(call: Call, part: str = "name") -> User:
    found = call.broker.users.get(call.part(part))
    if found is None:
        raise Missing
    return found


def user(call: Call) -> Any:
    """GET /users/NAME"""
    call.caller.need(ADMINISTRATOR)
    return objects.user_row(_user(call))


def _tags(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise InvalidArgument("tags must be a list of text, or text joined by commas")
    return tuple(tag.strip() for tag in value if tag.strip())


def put_user(call: Call) -> Any:
    """PUT /users/NAME with a password, a hash, or neither: then nobody can log in by password"""
    call.caller.need(ADMINISTRATOR)
    name, body = call.part("name"), call.body
    tags = _tags(body["tags"])
    old = call.broker.users.get(name)
    if body.get("password") is not None:
        hashed, algorithm = hash_password(str(body["password"])), SCRYPT
    else:
        hashed = str(body.get("password_hash") or "")
        algorithm = str(body.get("hashing_algorithm") or SHA256)
    made = User(name, hashed, algorithm, tags)
    if old is not None:
        made = replace(made, permissions=old.permissions, topic_permissions=old.topic_permissions)
    call.broker.users.put(made)
    call.broker.changed(durable=True)
    return Reply(201 if old is None else 204)


def delete_user(call: Call) -> Any:
    """DELETE /users/NAME"""
    call.caller.need(ADMINISTRATOR)
    if not call.broker.users.remove(_user(call).name):
        raise Missing
    call.broker.changed(durable=True)
    return Reply(204)


def bulk_delete(call: Call) -> Any:
    """POST /users/bulk-delete"""
    call.caller.need(ADMINISTRATOR)
    names = call.body["users"]
    if not isinstance(names, list):
        raise InvalidArgument("users must be a list of names")
    for name in names:
        call.broker.users.remove(str(name))
    call.broker.changed(durable=True)
    return Reply(204)


# --- permissions ---


def _all(call: Call, rows_of: Callable[[User], list[Row]]) -> list[Row]:
    call.caller.need(ADMINISTRATOR)
    rows = [row for user in call.broker.users.all() for row in rows_of(user)]
    if "vhost" in call.parts:
        rows = [row for row in rows if row["vhost"] == call.vhost().name]
    if "user" in call.parts:
        name = _user(call, "user").name
        rows = [row for row in rows if row["user"] == name]
    return rows


def permissions(call: Call) -> Any:
    """GET /permissions, /vhosts/VHOST/permissions, /users/USER/permissions"""
    return call.listed(_all(call, objects.permission_rows))


def permission(call: Call) -> Any:
    """GET /permissions/VHOST/USER"""
    rows = _all(call, objects.permission_rows)
    if not rows:
        raise Missing
    return rows[0]


def put_permission(call: Call) -> Any:
    """PUT /permissions/VHOST/USER"""
    call.caller.need(ADMINISTRATOR)
    vhost, name, body = call.vhost().name, _user(call, "user").name, call.body
    is_new = _user(call, "user").permission(vhost) is None
    made = Permission(str(body["configure"]), str(body["write"]), str(body["read"]))
    call.broker.users.permit(name, vhost, made)
    call.broker.changed(durable=True)
    return Reply(201 if is_new else 204)


def delete_permission(call: Call) -> Any:
    """DELETE /permissions/VHOST/USER"""
    call.caller.need(ADMINISTRATOR)
    found, vhost = _user(call, "user"), call.vhost().name
    if found.permission(vhost) is None:
        raise Missing
    left = {name: one for name, one in found.permissions.items() if name != vhost}
    call.broker.users.put(replace(found, permissions=left))
    call.broker.changed(durable=True)
    return Reply(204)


def topic_permissions(call: Call) -> Any:
    """GET /topic-permissions, /vhosts/VHOST/topic-permissions, /users/USER/topic-permissions"""
    return call.listed(_all(call, objects.topic_permission_rows))


def topic_permission(call: Call) -> Any:
    """GET /topic-permissions/VHOST/USER: a list, one row an exchange"""
    rows = _all(call, objects.topic_permission_rows)
    if not rows:
        raise Missing
    return rows


def put_topic_permission(call: Call) -> Any:
    """PUT /topic-permissions/VHOST/USER"""
    call.caller.need(ADMINISTRATOR)
    found, vhost, body = _user(call, "user"), call.vhost().name, call.body
    write, read = str(body["write"]), str(body["read"])
    for pattern in (write, read):
        check_pattern(pattern)
    key = (vhost, str(body["exchange"]))
    is_new = key not in found.topic_permissions
    topics = {**found.topic_permissions, key: TopicPermission(write, read)}
    call.broker.users.put(replace(found, topic_permissions=topics))
    call.broker.changed(durable=True)
    return Reply(201 if is_new else 204)


def delete_topic_permission(call: Call) -> Any:
    """DELETE /topic-permissions/VHOST/USER, all of them or those of one exchange"""
    call.caller.need(ADMINISTRATOR)
    found, vhost = _user(call, "user"), call.vhost().name
    exchange = call.parts.get("exchange")
    left = {
        key: one for key, one in found.topic_permissions.items() if key[0] != vhost or exchange not in (None, key[1])
    }
    if len(left) == len(found.topic_permissions):
        raise Missing
    call.broker.users.put(replace(found, topic_permissions=left))
    call.broker.changed(durable=True)
    return Reply(204)


ROUTES: Routes = [
    ("GET", "/users", users),
    ("GET", "/users/without-permissions", users_without_permissions),
    ("POST", "/users/bulk-delete", bulk_delete),
    ("GET", "/users/{name}", user),
    ("PUT", "/users/{name}", put_user),
    ("DELETE", "/users/{name}", delete_user),
    ("GET", "/users/{user}/permissions", permissions),
    ("GET", "/users/{user}/topic-permissions", topic_permissions),
    ("GET", "/vhosts/{vhost}/permissions", permissions),
    ("GET", "/vhosts/{vhost}/topic-permissions", topic_permissions),
    ("GET", "/permissions", permissions),
    ("GET", "/permissions/{vhost}/{user}", permission),
    ("PUT", "/permissions/{vhost}/{user}", put_permission),
    ("DELETE", "/permissions/{vhost}/{user}", delete_permission),
    ("GET", "/topic-permissions", topic_permissions),
    ("GET", "/topic-permissions/{vhost}/{user}", topic_permission),
    ("PUT", "/topic-permissions/{vhost}/{user}", put_topic_permission),
    ("DELETE", "/topic-permissions/{vhost}/{user}", delete_topic_permission),
    ("DELETE", "/topic-permissions/{vhost}/{user}/{exchange}", delete_topic_permission),
]
