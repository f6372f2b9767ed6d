"""GET_BROKER_CONFIG (26), UPDATE_BROKER_CONFIG (25).

Source: apache/rocketmq broker/.../AdminBrokerProcessor.java.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable

from stratamq.config import settings_of
from stratamq.protocols.remoting.bodies import body_error
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.live_settings import LiveSettings, key_of
from stratamq.server.requests.base import Peer, serves

_log = logging.getLogger(__name__)


class SettingsRequests:
    """Shows and changes the broker's settings. ``version`` gives the broker's data version as JSON text."""

    def __init__(self, settings: LiveSettings, version: Callable[[], str]) -> None:
        self._settings = settings
        self._version = version

    @serves(RequestCode.GET_BROKER_CONFIG)
    def config(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return the broker's settings as property lines."""
        lines = [
            f"{key_of(field)}={property_text(getattr(config, field.name))}\n"
            for config in self._settings.configs.values()
            for field, _ in settings_of(type(config))
        ]
        ext = {"version": self._version()}
        return encode_response(header, ResponseCode.SUCCESS, ext=ext, body="".join(lines).encode())

    @serves(RequestCode.UPDATE_BROKER_CONFIG)
    def update(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Change settings that may change while the broker runs, and keep them for its next start."""
        try:
            text = bytes(body).decode()
        except UnicodeDecodeError as error:
            raise body_error(f"the properties are not UTF-8: {error}") from error
        taken = self._settings.update(text)
        shown = ", ".join(f"{key}={value}" for key, value in taken.items())
        _log.warning("settings are changed for %s: %s", peer.address, shown or "none")
        return encode_response(header, ResponseCode.SUCCESS)


def property_text(value: object) -> str:
    """A setting's value as RocketMQ writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.value if isinstance(value, enum.Enum) else value)
