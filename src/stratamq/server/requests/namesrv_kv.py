"""PUT_KV_CONFIG (100), GET_KV_CONFIG (101), DELETE_KV_CONFIG (102), GET_KVLIST_BY_NAMESPACE (219).

Source: apache/rocketmq namesrv/.../DefaultRequestProcessor.java.
"""

from __future__ import annotations

from typing import Final

from stratamq.errors import InvalidArgument
from stratamq.nameserver.kv import KvConfig
from stratamq.protocols.remoting.bodies import dump
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.headers import HeaderReader, KvHeader, NamespaceHeader
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves

_read_kv: Final = HeaderReader(KvHeader)
_read_namespace: Final = HeaderReader(NamespaceHeader)


class KvRequests:
    """Keeps operators' key-value settings."""

    def __init__(self, kv: KvConfig) -> None:
        self._kv = kv

    @serves(RequestCode.PUT_KV_CONFIG)
    def put(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Set a value."""
        fields = _read_kv(header)
        if fields.value is None:
            raise InvalidArgument("value is missing")
        self._kv.put(fields.namespace, fields.key, fields.value)
        return encode_response(header, ResponseCode.SUCCESS)

    @serves(RequestCode.GET_KV_CONFIG)
    def get(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return a value."""
        fields = _read_kv(header)
        value = self._kv.get(fields.namespace, fields.key)
        return encode_response(header, ResponseCode.SUCCESS, ext={"value": value})

    @serves(RequestCode.DELETE_KV_CONFIG)
    def delete(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Remove a value."""
        fields = _read_kv(header)
        self._kv.delete(fields.namespace, fields.key)
        return encode_response(header, ResponseCode.SUCCESS)

    @serves(RequestCode.GET_KVLIST_BY_NAMESPACE)
    def table(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return all pairs of a namespace."""
        table = self._kv.table(_read_namespace(header).namespace)
        return encode_response(header, ResponseCode.SUCCESS, body=dump({"table": table}).encode())
