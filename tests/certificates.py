"""Certificates for tests, made when they are needed: an authority, a server's, clients'."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates into files of one folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(self._name, self._key.public_key(), is_authority=True)
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, is_authority: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
        usage = x509.KeyUsage(True, False, False, False, False, is_authority, is_authority, False, False)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def issue(self, name: str, *, organization: str = "", password: bytes = b"") -> tuple[Path, Path]:
        """A certificate for ``name`` with its key: two PEM files."""
        parts = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        if organization:
            parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(x509.Name(parts), key.public_key(), is_authority=False)
        paths = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden))
        return paths

    def client_context(self, client: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """What a client trusts and shows."""
        context = ssl.create_default_context(cafile=str(self.path))
        if client is not None:
            context.load_cert_chain(*client)
        return context
