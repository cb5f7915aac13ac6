"""One migration of an alias at a time on this machine; of another machine's, the note in the new index tells."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from es_sbert.bundle.store import cache_folder
from es_sbert.errors import OutputError, UsageError
from es_sbert.locks import file_lock


@contextmanager
def alone(url: str, alias: str) -> Iterator[None]:
    """Keep out other processes while the block runs; the system ends it even if this process is killed.

    Raises:
        UsageError: another process is migrating the same alias.
        OutputError: the cache folder cannot be written.
    """

    def refuse() -> None:
        raise UsageError(f"another process is migrating {alias}", "Let it finish, or stop it first.")

    path = cache_folder() / f"migrate-{hashlib.sha256(f'{url} {alias}'.encode()).hexdigest()[:32]}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise OutputError(
            f"the lock file {path} cannot be written: {error.strerror}",
            "Let ES_SBERT_CACHE name a folder that this user may write to.",
        ) from error
    with file_lock(path, refuse):
        yield
