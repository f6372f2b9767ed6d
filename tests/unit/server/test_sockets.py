"""Ports: what holds one, and what two programs that want the same one see."""

from __future__ import annotations

import errno

import pytest

from stratamq.server.sockets import PortUnusable, bind, port_of


def test_a_port_that_somebody_listens_on_is_refused_by_name() -> None:
    with bind("127.0.0.1", 0, "--x", listen=True) as first:
        with pytest.raises(PortUnusable) as caught:
            bind("127.0.0.1", port_of(first), "--some-port")
        assert caught.value.cause.errno == errno.EADDRINUSE
        assert "--some-port" in str(caught.value)


def test_of_two_that_bound_a_port_only_one_may_listen() -> None:
    with bind("127.0.0.1", 0, "--x") as first:
        with bind("127.0.0.1", port_of(first), "--x"):
            pass  # binding alone does not claim it
        first.listen()
        with pytest.raises(PortUnusable):
            bind("127.0.0.1", port_of(first), "--x", listen=True)
