"""Settings: GET_BROKER_CONFIG (26), UPDATE_BROKER_CONFIG (25); of the name server 319 and 318.

Source: apache/rocketmq broker/.../AdminBrokerProcessor.java, namesrv/.../DefaultRequestProcessor.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from stratamq.protocols.remoting.bodies import body_error
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.live_settings import LiveSettings, property_lines
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
        text = property_lines(self._settings.configs.values())
        return encode_response(header, ResponseCode.SUCCESS, ext={"version": self._version()}, body=text.encode())

    @serves(RequestCode.UPDATE_BROKER_CONFIG)
    def update(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Change settings that may change while the broker runs, and keep them for its next start."""
        take(self._settings, peer, body)
        return encode_response(header, ResponseCode.SUCCESS)


class NameSettingsRequests:
    """Shows and changes the name server's settings."""

    def __init__(self, settings: LiveSettings) -> None:
        self._settings = settings

    @serves(RequestCode.GET_NAMESRV_CONFIG)
    def config(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return the name server's settings as property lines."""
        text = property_lines(self._settings.configs.values())
        return encode_response(header, ResponseCode.SUCCESS, body=text.encode())

    @serves(RequestCode.UPDATE_NAMESRV_CONFIG)
    def update(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Change settings that may change while the name server runs, and keep them for its next start."""
        take(self._settings, peer, body)
        return encode_response(header, ResponseCode.SUCCESS)


def take(settings: LiveSettings, peer: Peer, body: memoryview) -> None:
    """Take the property lines of a request. Raises what `LiveSettings.update` raises."""
    try:
        text = bytes(body).decode()
    except UnicodeDecodeError as error:
        raise body_error(f"the properties are not UTF-8: {error}") from error
    taken = settings.update(text)
    shown = ", ".join(f"{key}={value}" for key, value in taken.items())
    _log.warning("settings are changed for %s: %s", peer.address, shown or "none")
