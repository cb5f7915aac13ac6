"""The gateway's TLS certificate, which is read again when its files change."""

from __future__ import annotations

import logging
import math
import os
import re
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from es_sbert.errors import UsageError
from es_sbert.messages import log_event

# Elasticsearch checks its own certificates as often.
CHECK_SECONDS = 5.0
# Of two checks without a change: certificate and key are replaced one after the other.
_SETTLE_SECONDS = 1.0
_VERSION, _UTC_TIME = 0xA0, 0x17  # tags of DER
_PEM_CERTIFICATE = re.compile(r"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.*?)-----END ", re.DOTALL)

# Modification time, size and inode of each file. Kubernetes replaces the folder that a link points to.
_FileState = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True)
class _Loaded:
    context: ssl.SSLContext
    files: _FileState
    expiry: float


class ServerCertificate:
    """A certificate and its key, as files that may be renewed while the server runs.

    New connections get the renewed certificate. Files that cannot be used, such as a certificate without its new key,
    leave the previous one in use, and are tried again.

    Args:
        certificate: PEM file of the certificate, with its chain.
        key: PEM file of its key; None if the first file has it.

    Raises:
        UsageError: the files cannot be used.
    """

    def __init__(self, certificate: Path, key: Path | None) -> None:
        self._certificate, self._key = certificate, key
        try:
            self._current = self._load(self._file_state())
        except OSError as error:
            raise UsageError(
                f"the TLS certificate {certificate} or its key cannot be used: {error}",
                "Set `certificate` and `key` to PEM files that belong together and that this user may read.",
            ) from error
        self._seen = self._failed = self._current.files
        self._next_check = time.monotonic() + CHECK_SECONDS

    @property
    def expiry(self) -> float:
        """End of the certificate's validity, in seconds since 1970; NaN if it is unclear."""
        return self._current.expiry

    def attach(self, context: ssl.SSLContext) -> None:
        """Let a server's context present the current certificate to each new connection."""

        def select_certificate(connection: ssl.SSLObject, name: str | None, initial: ssl.SSLContext) -> None:
            connection.context = self._current.context

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
        if not is_settled or files == self._current.files:
            return
        try:
            self._current = self._load(files)
        except OSError as error:
            if files != self._failed:
                self._failed = files
                self._log_failure(error)
            return
        message = f"the TLS certificate was renewed: new connections get it; it is valid until {self.expiry_text()}"
        log_event("certificate_renewed", message, text=message, valid_until=self.expiry_text())

    def expiry_text(self) -> str:
        """`2027-03-01 12:00 UTC`."""
        if math.isnan(self.expiry):
            return "an unknown time"
        return f"{datetime.fromtimestamp(self.expiry, UTC):%Y-%m-%d %H:%M} UTC"

    def _log_failure(self, error: Exception) -> None:
        message = (
            f"the changed TLS certificate {self._certificate} or its key cannot be used: {error}. The gateway keeps "
            f"the previous one, which is valid until {self.expiry_text()}, and tries again every {CHECK_SECONDS:g} "
            "seconds. Replace both files by a pair that belongs together and that this user may read."
        )
        log_event(
            "certificate_not_renewed", message, logging.WARNING, reason=str(error), valid_until=self.expiry_text()
        )

    def _load(self, files: _FileState) -> _Loaded:
        """Load the files into a new context.

        A pair that does not fit would leave a context that is in use with a certificate and without a key.

        Raises:
            OSError: the files cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Without a password, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(self._certificate, self._key, password="")
        return _Loaded(context, files, read_expiry(self._certificate.read_text("ascii", "replace")))

    def _file_state(self) -> _FileState:
        return tuple(_stat(path) for path in (self._certificate, self._key or self._certificate))


def read_expiry(pem: str) -> float:
    """Read the end of the validity of the first certificate in a PEM file, in seconds since 1970; NaN if it is unclear.

    The ssl module of Python shows it only for certificates that it has verified.
    """
    try:
        return _expiry(ssl.PEM_cert_to_DER_cert(_to_plain_pem(pem)))
    except (IndexError, ValueError):
        return math.nan


def _to_plain_pem(pem: str) -> str:
    found = _PEM_CERTIFICATE.search(pem)
    return f"{ssl.PEM_HEADER}{found[1] if found else ''}{ssl.PEM_FOOTER}"


def _expiry(der: bytes) -> float:
    # Certificate, TBSCertificate: version (optional), serial number, signature algorithm, issuer, validity.
    _, start, _ = _der_element(der, 0)
    _, position, _ = _der_element(der, start)
    tag, _, _ = _der_element(der, position)
    for _ in range(4 if tag == _VERSION else 3):
        _, _, position = _der_element(der, position)
    _, not_before, _ = _der_element(der, position)
    _, _, not_after = _der_element(der, not_before)
    tag, start, end = _der_element(der, not_after)
    text = der[start:end].decode("ascii")
    if tag == _UTC_TIME:  # two digits of the year, 1950 to 2049 (RFC 5280, 4.1.2.5.1)
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _der_element(der: bytes, position: int) -> tuple[int, int, int]:
    """Return the tag of an element, the start of its content, and its end."""
    tag, length, start = der[position], der[position + 1], position + 2
    if length >= 0x80:
        start += length - 0x80
        length = int.from_bytes(der[position + 2 : start], "big")
    return tag, start, start + length


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
