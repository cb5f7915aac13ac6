"""The gateway's TLS certificate, which is read again when its files change."""

from __future__ import annotations

import logging
import os
import ssl
import time
from pathlib import Path

from es_sbert.errors import UsageError
from es_sbert.messages import log_event

# Elasticsearch checks its own certificates as often.
CHECK_SECONDS = 5.0
# Of two checks without a change: certificate and key are replaced one after the other.
_SETTLE_SECONDS = 1.0

# Modification time, size and inode of each file. Kubernetes replaces the folder that a link points to.
_FileState = tuple[tuple[int, int, int] | None, ...]


class ServerCertificate:
    """A certificate and its key, as files that may be renewed while the server runs.

    New connections get the renewed certificate. Files that cannot be used, such as a certificate without its new key,
    leave the previous one in use, and are tried again.

    Args:
        certificate: PEM file of the certificate, with its chain.
        key: PEM file of its key; None if the first file has it.

    Attributes:
        context: Has the current certificate.

    Raises:
        UsageError: the files cannot be used.
    """

    def __init__(self, certificate: Path, key: Path | None) -> None:
        self._certificate, self._key = certificate, key
        self._loaded = self._seen = self._failed = self._file_state()
        try:
            self.context = self._load()
        except OSError as error:
            raise UsageError(
                f"the TLS certificate {certificate} or its key cannot be used: {error}",
                "Set `certificate` and `key` to PEM files that belong together and that this user may read.",
            ) from error
        self._next_check = time.monotonic() + CHECK_SECONDS

    def attach(self, context: ssl.SSLContext) -> None:
        """Let a server's context present the current certificate to each new connection."""

        def select_certificate(connection: ssl.SSLObject, name: str | None, initial: ssl.SSLContext) -> None:
            connection.context = self.context

        # OpenSSL calls it for clients that send no server name, too.
        context.sni_callback = select_certificate

    def check(self) -> None:
        """Read the files again if they have changed. Call it often: most calls do nothing."""
        if time.monotonic() < self._next_check:
            return
        files, before = self._file_state(), self._seen
        self._seen = files
        is_settled = files == before
        self._next_check = time.monotonic() + (CHECK_SECONDS if is_settled else _SETTLE_SECONDS)
        if not is_settled or files == self._loaded:
            return
        try:
            self.context = self._load()
        except OSError as error:
            if files != self._failed:
                self._failed = files
                self._log_failure(error)
            return
        self._loaded = files
        message = f"the TLS certificate {self._certificate} was renewed: new connections get it"
        log_event("certificate_renewed", message, text=message)

    def _log_failure(self, error: Exception) -> None:
        message = (
            f"the changed TLS certificate {self._certificate} or its key cannot be used: {error}. The gateway keeps "
            f"the previous one and tries again every {CHECK_SECONDS:g} seconds. Replace both files by a pair that "
            "belongs together and that this user may read."
        )
        log_event("certificate_not_renewed", message, logging.WARNING, reason=str(error))

    def _load(self) -> ssl.SSLContext:
        """Load the files into a new context.

        A pair that does not fit would leave a context that is in use with a certificate and without a key.

        Raises:
            OSError: the files cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Without a password, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(self._certificate, self._key, password="")
        return context

    def _file_state(self) -> _FileState:
        return tuple(_stat(path) for path in (self._certificate, self._key or self._certificate))


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:  # a change too; loading it then fails with the reason
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
