"""The stores of RocketMQ kept beside this file: unpacking them."""

from __future__ import annotations

import tarfile
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent


def unpack_store(name: str, folder: Path) -> Path:
    """Unpack the golden store ``name`` into ``folder``; returns the store directory.

    Python 3.11.0 to 3.11.3 know no extraction filters; the archives are our own, so nothing in them needs one.
    """
    with tarfile.open(GOLDEN / name / "store.tar.xz") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)
    return folder / "store"
