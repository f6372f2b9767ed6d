"""Cold objects in S3, Google Cloud Storage or Azure, through obstore (the extra ``cloud``).

Credentials come from the settings or, as everywhere, from the environment. The store must know create-only puts
(``If-None-Match: *``); one that ignores them is found out when an epoch is claimed (`tiered.commits.claim_epoch`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore import exceptions

from stratamq.config import TieredConfig
from stratamq.errors import BackendError, ObjectExists, ObjectMissing
from stratamq.tiered.backend import Entry, check_name
from stratamq.units import Buffer

RETRIES: Final = 3
_T = TypeVar("_T")


class ObjectBackend:
    """Objects of one bucket, or of a prefix in it."""

    def __init__(self, config: TieredConfig) -> None:
        self.address = config.address
        self._prefix = urlsplit(config.address).path.strip("/")
        if self._prefix:
            self._prefix = check_name(self._prefix) + "/"
        options: dict[str, Any] = {}
        if urlsplit(config.address).scheme in ("s3", "s3a"):
            options |= {
                "endpoint": config.endpoint or None,
                "region": config.region or None,
                "access_key_id": config.access_key or None,
                "secret_access_key": config.secret_key or None,
            }
        base = config.address[: len(config.address) - len(urlsplit(config.address).path)]
        from_url: Any = obstore.store.from_url
        self._store: Any = from_url(
            base,
            config={name: value for name, value in options.items() if value is not None} or None,
            client_options={
                "timeout": timedelta(milliseconds=config.backend_timeout_ms),
                "connect_timeout": timedelta(milliseconds=min(config.backend_timeout_ms, 5_000)),
                "allow_http": config.endpoint.startswith("http://"),
            },
            retry_config={
                "max_retries": RETRIES,
                "retry_timeout": timedelta(milliseconds=config.backend_timeout_ms),
            },
        )

    def put_new(self, name: str, parts: Sequence[Buffer]) -> None:
        data = b"".join(parts)
        try:
            obstore.put(self._store, self._path(name), data, mode="create", use_multipart=False)
        except exceptions.AlreadyExistsError:
            raise ObjectExists(name) from None
        except exceptions.BaseError as error:
            raise _failed("put", name, error) from error
        except OSError as error:
            raise _failed("put", name, error) from error

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        path = self._path(name)

        def work() -> bytes:
            if length is None and not start:
                return bytes(obstore.get(self._store, path).bytes())
            size = obstore.head(self._store, path)["size"]
            end = size if length is None else min(size, start + length)
            return bytes(obstore.get_range(self._store, path, start=start, end=end)) if end > start else b""

        if length is not None and length > 0:
            # The usual case is one request; only a range that passes the end needs the length first.
            try:
                return bytes(obstore.get_range(self._store, path, start=start, length=length))
            except (FileNotFoundError, exceptions.NotFoundError):
                raise ObjectMissing(name) from None
            except exceptions.BaseError as error:
                if "416" not in str(error):
                    raise _failed("read", name, error) from error
        return self._ask("read", name, work)

    def size(self, name: str) -> int | None:
        path = self._path(name)
        try:
            return self._ask("size", name, lambda: int(obstore.head(self._store, path)["size"]))
        except ObjectMissing:
            return None

    def list(self, prefix: str, *, after: str = "") -> list[Entry]:
        # Stores list by whole folders, so what is left of the prefix is compared here.
        folder = self._prefix + prefix.rpartition("/")[0]
        offset = self._prefix + after if after else None

        def work() -> list[Entry]:
            found = []
            for page in obstore.list(self._store, prefix=folder or None, offset=offset, chunk_size=1000):
                for item in page:
                    name = item["path"][len(self._prefix) :]
                    if name.startswith(prefix) and name > after:
                        found.append(Entry(name, int(item["size"])))
            return sorted(found)

        return self._ask("list", prefix, work)

    def delete(self, name: str) -> None:
        path = self._path(name)
        try:
            self._ask("delete", name, lambda: obstore.delete(self._store, path))
        except ObjectMissing:
            return

    def close(self) -> None:
        """Nothing is held that Python does not give up by itself."""

    def _path(self, name: str) -> str:
        return self._prefix + check_name(name)

    def _ask(self, operation: str, name: str, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except (FileNotFoundError, exceptions.NotFoundError):
            raise ObjectMissing(name) from None
        except (exceptions.BaseError, OSError) as error:
            raise _failed(operation, name, error) from error


def _failed(operation: str, name: str, error: Exception) -> BackendError:
    lines = str(error).strip().splitlines()
    return BackendError(operation, name, lines[0][:300] if lines else type(error).__name__)
