"""Users, passwords, and what a user may do in a virtual host.

A password is kept as RabbitMQ keeps it, base64 of a 4-byte salt and the hash of salt and password, so that definitions
files can be taken over; users made here get scrypt under a name of its own. Checking scrypt costs tens of
milliseconds on purpose; a password that was right is remembered as a keyed digest in memory, so that a client which
opens many connections pays once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from stratamq.errors import InvalidArgument

SCRYPT: Final = "stratamq_scrypt"
SHA256: Final = "rabbit_password_hashing_sha256"
_SALT_BYTES: Final = 4
_PATTERN_CHARACTERS_MAX: Final = 1000


def _scrypt(salt: bytes, password: bytes) -> bytes:
    return hashlib.scrypt(password, salt=salt * 4, n=2**13, r=8, p=1, dklen=32)


_HASHES: Final[Mapping[str, Callable[[bytes, bytes], bytes]]] = {
    SHA256: lambda salt, password: hashlib.sha256(salt + password).digest(),
    "rabbit_password_hashing_sha512": lambda salt, password: hashlib.sha512(salt + password).digest(),
    "rabbit_password_hashing_md5": lambda salt, password: hashlib.md5(salt + password).digest(),
    SCRYPT: _scrypt,
}


@dataclass(frozen=True, slots=True)
class Permission:
    """What a user may do in one virtual host: three regular expressions, searched in a resource's name."""

    configure: str = ""
    write: str = ""
    read: str = ""

    def __post_init__(self) -> None:
        for pattern in (self.configure, self.write, self.read):
            check_pattern(pattern)

    def allows(self, action: str, name: str) -> bool:
        """Whether ``action`` (configure, write, read) is allowed; an empty pattern allows nothing."""
        pattern: str = getattr(self, action)
        return bool(pattern) and re.search(pattern, name) is not None


def check_pattern(pattern: str) -> None:
    """Refuse what is no regular expression. Raises InvalidArgument."""
    if len(pattern) > _PATTERN_CHARACTERS_MAX:
        raise InvalidArgument(f"a pattern of {len(pattern)} characters; at most {_PATTERN_CHARACTERS_MAX}")
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidArgument(f"{pattern!r} is no regular expression: {error}") from error


@dataclass(frozen=True, slots=True)
class TopicPermission:
    """Which routing keys a user may write to and bind on one topic exchange."""

    write: str = ".*"
    read: str = ".*"

    def allows(self, action: str, key: str, *, user: str, vhost: str) -> bool:
        """Whether a key is allowed; ``{username}`` and ``{vhost}`` in the pattern stand for themselves."""
        pattern: str = getattr(self, action)
        pattern = pattern.replace("{username}", re.escape(user)).replace("{vhost}", re.escape(vhost))
        return bool(pattern) and re.search(pattern, key) is not None


@dataclass(frozen=True, slots=True)
class User:
    """One user with a password and what it may do."""

    name: str
    password_hash: str = ""
    algorithm: str = SCRYPT
    tags: tuple[str, ...] = ()
    permissions: Mapping[str, Permission] = field(default_factory=dict)
    """By virtual host."""
    topic_permissions: Mapping[tuple[str, str], TopicPermission] = field(default_factory=dict)
    """By virtual host and exchange."""

    def permission(self, vhost: str) -> Permission | None:
        """What the user may do there; None for nothing at all."""
        return self.permissions.get(vhost)


def hash_password(password: str, algorithm: str = SCRYPT) -> str:
    """A new hash with a new salt."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return base64.b64encode(salt + _HASHES[algorithm](salt, password.encode())).decode()


def check_password(password: str, stored: str, algorithm: str) -> bool:
    """Whether a password belongs to a stored hash. An empty hash belongs to none."""
    known = _HASHES.get(algorithm)
    try:
        raw = base64.b64decode(stored, validate=True)
    except ValueError:
        return False
    if known is None or len(raw) <= _SALT_BYTES:
        return False
    return hmac.compare_digest(known(raw[:_SALT_BYTES], password.encode("utf-8", "surrogateescape")), raw[_SALT_BYTES:])


class Users:
    """All users of a broker."""

    def __init__(self) -> None:
        self._users: dict[str, User] = {}
        self._key = secrets.token_bytes(16)
        self._right: dict[str, bytes] = {}

    def all(self) -> list[User]:
        """Every user."""
        return list(self._users.values())

    def get(self, name: str) -> User | None:
        """The user of that name."""
        return self._users.get(name)

    def put(self, user: User) -> None:
        """Add a user, or replace the one of that name."""
        self._users[user.name] = user
        self._right.pop(user.name, None)

    def add(self, name: str, password: str, *, tags: tuple[str, ...] = ()) -> User:
        """A new user with a password of its own."""
        user = User(name, hash_password(password), SCRYPT, tags)
        self.put(user)
        return user

    def remove(self, name: str) -> bool:
        """Take a user away; False when there was none."""
        self._right.pop(name, None)
        return self._users.pop(name, None) is not None

    def permit(self, name: str, vhost: str, permission: Permission) -> None:
        """Say what a user may do in a virtual host. Raises InvalidArgument for a user that is not there."""
        user = self._users.get(name)
        if user is None:
            raise InvalidArgument(f"there is no user {name!r}")
        self._users[name] = replace(user, permissions={**user.permissions, vhost: permission})

    def authenticate(self, name: str, password: str) -> User | None:
        """The user, when the password is right."""
        user = self._users.get(name)
        if user is None:
            return None
        digest = hmac.digest(self._key, password.encode("utf-8", "surrogateescape"), "sha256")
        if self._right.get(name) == digest:
            return user
        if not check_password(password, user.password_hash, user.algorithm):
            return None
        self._right[name] = digest
        return user
