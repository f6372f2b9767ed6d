"""Settings of TLS: one certificate for all ports of a process."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from stratamq.config.declare import Section, setting
from stratamq.errors import ConfigError


class TlsMode(enum.Enum):
    """What the remoting ports (broker, name server) take; the first byte of a connection tells TLS from plain."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(enum.Enum):
    """Whether clients show a certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


class LoginFrom(enum.Enum):
    """Which name in a client's certificate SASL EXTERNAL takes for the user's."""

    NONE = "none"
    DISTINGUISHED_NAME = "distinguished_name"
    COMMON_NAME = "common_name"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig(Section):
    """TLS 1.2 and 1.3 on the ports. Without a certificate there is none, whatever the mode says."""

    TITLE: ClassVar[str] = "TLS"
    PREFIX: ClassVar[str] = "tls_"

    certificate: str = setting(
        "",
        rocketmq="tls.server.certPath",
        doc="PEM file with the certificate, and those of the authorities between it and a known one; empty: no TLS.",
    )
    key: str = setting(
        "",
        rocketmq="tls.server.keyPath",
        doc="PEM file with the private key; empty: it stands in the certificate's file.",
    )
    key_password: str = setting("", rocketmq="tls.server.keyPassword", doc="Password of the key; empty: it has none.")
    ca: str = setting(
        "",
        rocketmq="tls.server.trustCertPath",
        doc="PEM file with the authorities that sign clients' certificates.",
    )
    client_auth: ClientAuth = setting(
        ClientAuth.NONE,
        rocketmq="tls.server.need.client.auth",
        doc="Whether clients are asked for a certificate: none; optional, one that is shown must be good (RabbitMQ's "
        "verify_peer); require, who has none is refused (its fail_if_no_peer_cert).",
    )
    mode: TlsMode = setting(
        TlsMode.PERMISSIVE,
        rocketmq="tls.server.mode",
        doc="What the remoting ports take: disabled, only plain; permissive, both; enforcing, only TLS.",
    )
    login_from: LoginFrom = setting(
        LoginFrom.NONE,
        rocketmq="ssl_cert_login_from",
        doc="Which name of a client's certificate is the user's name for SASL EXTERNAL (RabbitMQ's name). With none "
        "EXTERNAL is not offered, as in RabbitMQ without its plugin: clients such as py-amqp take it wherever it is.",
    )
    handshake_timeout_ms: int = setting(
        10_000,
        at_least=100,
        at_most=600_000,
        doc="How long a new connection may take for its first byte, and then again for its handshake.",
    )
    handshakes_max: int = setting(
        1_000, at_least=1, doc="Most connections of a port that are in their handshake; further ones are closed."
    )
    reload_interval_ms: int = setting(
        10_000, at_least=100, doc="How often the files are looked at; new ones hold for the connections that follow."
    )

    def check(self) -> None:
        """Check that the files are named which the modes need. Raises ConfigError."""
        if self.client_auth is not ClientAuth.NONE and self.certificate and not self.ca:
            raise ConfigError(
                "tls.server.trustCertPath", "", f"a file, because tls.server.need.client.auth={self.client_auth.value}"
            )
        if self.mode is TlsMode.ENFORCING and not self.certificate:
            raise ConfigError("tls.server.certPath", "", "a file, because tls.server.mode=enforcing")
