"""Who may use the management API: HTTP basic authentication, tags, and virtual hosts.

Tags as in RabbitMQ: ``administrator`` may everything; ``monitoring`` sees every connection and node; ``policymaker``
may set policies; ``management`` works in the virtual hosts it has permissions in. The user guest comes from loopback
only.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final

from stratamq.broker.amqp.access import Permission, User
from stratamq.broker.amqp.broker import AmqpBroker

ADMINISTRATOR: Final = "administrator"
_TAGS: Final = frozenset({ADMINISTRATOR, "monitoring", "policymaker", "management"})


class Refused(Exception):
    """A request that may not be done: 401 when nobody is logged in, else 403."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Caller:
    """A user who is logged in."""

    user: User

    def has(self, *tags: str) -> bool:
        """Whether one of the tags, or administrator, is the user's."""
        return ADMINISTRATOR in self.user.tags or any(tag in self.user.tags for tag in tags)

    def need(self, *tags: str) -> None:
        """Refuse a user without one of the tags. Raises Refused."""
        if not self.has(*tags):
            raise Refused(401, "Not administrator user" if not tags else f"Not {' or '.join(tags)} user")

    def sees(self, vhost: str) -> bool:
        """Whether a virtual host is shown to the user."""
        return self.has("monitoring") or self.user.permission(vhost) is not None

    def need_vhost(self, vhost: str) -> None:
        """Refuse a virtual host that is not shown. Raises Refused."""
        if not self.sees(vhost):
            raise Refused(401, "User not authorised to access virtual host")

    def need_access(self, action: str, vhost: str, name: str) -> None:
        """Refuse what the user may not do to a queue or exchange. Raises Refused."""
        permission = self.user.permission(vhost) or Permission()
        if not permission.allows(action, name or "amq.default"):
            raise Refused(401, f"{action} access to {name!r} in vhost {vhost!r} refused for user {self.user.name!r}")


def log_in(broker: AmqpBroker, header: str | None, *, is_loopback: bool) -> Caller:
    """The user behind an ``Authorization`` header. Raises Refused. May take the time that checking a password does."""
    kind, _, value = (header or "").partition(" ")
    if kind.lower() != "basic":
        raise Refused(401, "Login failed")
    try:
        name, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
    except ValueError:
        raise Refused(401, "Login failed") from None
    user = broker.users.authenticate(name, password) if colon else None
    if user is None:
        raise Refused(401, "Login failed")
    if name == "guest" and not is_loopback:
        raise Refused(401, "User can only log in via localhost")
    if not _TAGS & set(user.tags):
        raise Refused(401, "Not management user")
    return Caller(user)
