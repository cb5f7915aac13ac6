"""Files that fsspec reaches (S3, HTTP, SFTP, …), read by offset so that a broken connection resumes."""

from __future__ import annotations

import glob
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, cast
from urllib.parse import urlsplit

from es_sbert.engines.retry import Backoff, RetryPolicy
from es_sbert.errors import SourceError, UsageError, error_summary, require_extra
from es_sbert.ingest.sources.document_source import (
    BlockingCalls,
    ByteInput,
    ReadCancelled,
    ReadContext,
    SourceUnavailable,
)
from es_sbert.installation import install_extra_command
from es_sbert.io.text_formats import CorruptStream

if TYPE_CHECKING:
    from typing_extensions import Buffer


# `s3://…`, or several filesystems one inside the other: `zip://inner.csv::s3://…`. One letter is a Windows drive.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)")
# A user alone may be something else: Azure writes container@account.
_USER_AND_PASSWORD = re.compile(r"(?<=//)[^/\s@:]*:[^/\s]*@")
_HTTP_USER = re.compile(r"(?<=http://|ttps://)[^/\s]*@")
# The query of an HTTP address, which holds the signature of a signed address.
_HTTP_QUERY = re.compile(r"(https?://[^\s?'\"]*)\?[^\s'\"]*")
_HTTP_SCHEMES = ("http", "https")
_SQL_SCHEMES = ("postgresql", "postgres", "mysql", "mariadb", "sqlite", "mssql", "oracle")


def is_url(argument: str) -> bool:
    """Whether a FILE argument is written as an address rather than a path."""
    return _URL.match(argument) is not None


def redact_secrets(text: str) -> str:
    """Remove passwords and the queries of HTTP from an address, or from a message that repeats one."""
    text = _HTTP_USER.sub("", _USER_AND_PASSWORD.sub("", text))
    return _HTTP_QUERY.sub(r"\1?…", text)


_CHUNK = 1 << 18
# Bytes of one request. Short requests outlive a slow load better than one that stays open for hours.
_BLOCK = 4 << 20
_WHOLE_FILE = 0  # fsspec's way to ask for one request from the beginning to the end
# Names of the entries by which filesystems identify a version of a file.
_VERSION_KEYS = (
    "size", "ETag", "etag", "LastModified", "Last-Modified", "last_modified", "mtime", "modified", "created",
)  # fmt: skip
_NOT_FOUND, _ACCESS_DENIED = (404, 410), (401, 403)


def _underlying_error(error: Exception) -> Exception:
    """Return the original error, because fsspec reports every HTTP failure as FileNotFoundError."""
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or not isinstance(cause, Exception):
        return error
    by_aiohttp = type(cause).__module__.partition(".")[0] == "aiohttp" or isinstance(cause, TimeoutError)
    return cause if by_aiohttp and getattr(cause, "status", None) not in _NOT_FOUND else error


@dataclass(frozen=True)
class RemoteFile(ByteInput):
    """A file on an fsspec filesystem.

    Attributes:
        name: Its address without secrets.
        filesystem: An `fsspec.AbstractFileSystem`; it has the credentials.
        location: Path of the file in the filesystem.
        size: Bytes; None if the filesystem does not report it.
    """

    name: str
    filesystem: Any = field(repr=False)
    location: str = field(repr=False)
    size: int | None
    path: None = None

    def chunks(self, context: ReadContext) -> Iterator[bytes]:
        with _RemoteReader(self, context, is_sequential=True) as file:
            while chunk := file.read(_CHUNK):
                context.counter.bytes += len(chunk)
                yield chunk

    def open(self, context: ReadContext) -> BinaryIO:
        return cast(BinaryIO, _RemoteReader(self, context, is_sequential=False))


class _RemoteReader(io.RawIOBase):
    """A seekable remote file; failed reads are retried within the retry budget.

    Its methods raise the errors of `DocumentSource.records`: OSError if nothing was read yet, CorruptStream if the rest
    of the file cannot be read, SourceUnavailable if the budget is spent, ReadCancelled.
    """

    def __init__(self, file: RemoteFile, context: ReadContext, *, is_sequential: bool) -> None:
        super().__init__()
        self._file = file
        self._is_sequential = is_sequential
        self._stop = context.stop
        self._backoff = Backoff(RetryPolicy(context.settings.retry_seconds), context.stop)
        self._calls = BlockingCalls(context.stop)
        self._handle: Any = None
        self._offset = 0
        self._block = _BLOCK
        self._version: list[Any] | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.size is not None

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            if self._file.size is None:
                raise CorruptStream("its size is unknown, so it can only be read from its beginning to its end")
            offset += self._file.size
        elif whence == io.SEEK_CUR:
            offset += self._offset
        if offset != self._offset:
            self._offset = offset
            self._drop()
        return offset

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        size, count = self._file.size, len(view)
        if size is not None:
            count = min(count, max(0, size - self._offset))
        while count:
            try:
                data = self._calls(lambda: self._read(count))
                if not data and size is not None:
                    raise EOFError(f"it returned {self._offset:,} of {size:,} bytes")
            except (CorruptStream, ReadCancelled):
                raise
            # Each filesystem raises its library's errors, few of which are OSErrors.
            except Exception as error:
                self._drop()
                self._wait_or_raise(_underlying_error(error))
                continue
            self._backoff.reset()
            self._offset += len(data)
            view[: len(data)] = data
            return len(data)
        return 0

    def close(self) -> None:
        if not self.closed:
            self._calls.close(self._drop)
        super().close()

    def _read(self, count: int) -> bytes:
        if self._handle is None:
            self._open_handle()
        data: bytes = self._handle.read(count)
        return data

    def _open_handle(self) -> None:
        """Open the file at the offset; it must still be the version that was read so far."""
        filesystem, location = self._file.filesystem, self._file.location
        # The file's metadata may come from an old listing.
        filesystem.invalidate_cache(location.rpartition("/")[0])
        info = filesystem.info(location)
        version = [info.get(key) for key in _VERSION_KEYS]
        if self._version not in (None, version):
            raise CorruptStream("the file was changed while it was read")
        self._version = version
        self._handle = filesystem.open(location, "rb", block_size=self._block)
        if self._offset and self._block != _WHOLE_FILE:
            self._handle.seek(self._offset)
            return
        left = self._offset
        while left:
            skipped = len(self._handle.read(min(left, _CHUNK)))
            if not skipped:
                raise EOFError(f"it returned {self._offset - left:,} bytes")
            left -= skipped

    def _wait_or_raise(self, error: Exception) -> None:
        """Wait after a transient error; raise a permanent one."""
        reason = _reason(error, self._file.location, self._file.name)
        # The other library's error is not chained: it may hold the address with its secrets.
        if isinstance(error, FileNotFoundError):
            if self._version is None:
                raise FileNotFoundError(f"no such file: {self._file.name}") from None
            raise CorruptStream("the file was removed while it was read") from None
        if isinstance(error, PermissionError) or getattr(error, "status", None) in _ACCESS_DENIED:
            raise SourceUnavailable(f"access is refused ({reason})") from None
        is_http = _has_protocol(self._file.filesystem, "http")
        if is_http and isinstance(error, ValueError) and self._block != _WHOLE_FILE:
            # The server does not support range requests. This is noticed only at the second block.
            if not self._is_sequential:
                reason = "the server does not support range requests; download the file and load the copy"
                raise CorruptStream(reason) from None
            self._block = _WHOLE_FILE
        elif not self._backoff.wait() and not self._stop.is_set():
            raise SourceUnavailable(reason) from None

    def _drop(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()


def _has_protocol(filesystem: Any, name: str) -> bool:
    return name in ([filesystem.protocol] if isinstance(filesystem.protocol, str) else filesystem.protocol)


def _reason(error: Exception, location: str, name: str) -> str:
    return redact_secrets(error_summary(error)).replace(location, name)


def find_remote(address: str) -> tuple[list[tuple[RemoteFile, str]], list[str]]:
    """Find the files that an address names.

    Args:
        address: Address with a protocol; may be a pattern.

    Returns:
        Remote files, each with the name that determines its format, and paths of files on this machine (`file://`).

    Raises:
        SourceError: the file does not exist, nothing matches, or the filesystem cannot be reached.
        UsageError: the protocol is unknown or that of a database, or its library is not installed.
    """
    shown = redact_secrets(address)
    if re.split(r"[+:]", address)[0].lower() in _SQL_SCHEMES:
        raise UsageError(
            f"{shown} is a database, not a file",
            "Write the rows of a query to a file first, and load that: `psql -c \"\\copy (SELECT …) TO 'rows.csv' CSV "
            'HEADER"`, for example. DuckDB writes Parquet, which keeps the types (docs/sources.md).',
        )
    filesystem, location = _open_filesystem(address, shown)
    try:
        locations = _expand_pattern(filesystem, location)
        if not locations:
            raise SourceError(f"no file matches {shown}", "Check the pattern; ** matches any number of nested folders.")
        if _has_protocol(filesystem, "file"):
            return [], locations
        return [_remote_file(filesystem, each, shown if each == location else None) for each in locations], []
    except SourceError:
        raise
    except Exception as error:  # each filesystem raises its library's errors
        _raise_unreadable(_underlying_error(error), location, shown)


def _raise_unreadable(error: Exception, location: str, shown: str) -> NoReturn:
    reason, remedy = "no such file", "Check the address."
    if not isinstance(error, FileNotFoundError):
        reason = _reason(error, location, shown)
        remedy = (
            "Check the address, the network and the credentials, which the filesystem's own environment or "
            "configuration holds (AWS_ACCESS_KEY_ID and the like, or fsspec's conf.json)."
        )
    # The other library's error is not chained: it may hold the address with its secrets.
    raise SourceError(f"{shown} cannot be read: {reason}", remedy) from None


def _open_filesystem(address: str, shown: str) -> tuple[Any, str]:
    """Open the filesystem of an address; also return the path of the address in it."""
    require_extra("remote", "fsspec")
    import fsspec

    protocol = re.split("://|::", address)[0].lower()
    options: dict[str, Any] = {}
    if protocol in _HTTP_SCHEMES:
        require_extra("remote", "aiohttp")
        from aiohttp import ClientTimeout
        from fsspec.config import conf

        # By default, aiohttp ends every request after five minutes, but a load may read a file more slowly.
        patient = {"timeout": ClientTimeout(total=None, sock_connect=30, sock_read=60)}
        options = {"client_kwargs": patient | conf.get(protocol, {}).get("client_kwargs", {})}
    try:
        filesystem, location = fsspec.url_to_fs(address, **options)
        return filesystem, location
    except ImportError as error:
        raise UsageError(
            f"{protocol}:// needs a package that is not installed ({error_summary(error)})",
            f"For s3 and http(s), install: {install_extra_command('remote')}; for others, the package named.",
        ) from error
    except ValueError as error:
        remedy = "Use an address that fsspec knows, such as s3://bucket/docs/*.jsonl.gz, or a path."
        raise UsageError(f"{shown} cannot be read: {redact_secrets(error_summary(error))}", remedy) from None


def _expand_pattern(filesystem: Any, location: str) -> list[str]:
    if not glob.has_magic(location):
        return [location]
    try:
        # A name may hold brackets, and most addresses of HTTP with a query hold a question mark.
        filesystem.info(location)
    except FileNotFoundError as error:
        if _underlying_error(error) is not error:
            raise
        found = filesystem.glob(location, detail=True)
        return sorted(each for each, info in found.items() if info.get("type") != "directory")
    return [location]


def _remote_file(filesystem: Any, location: str, shown: str | None) -> tuple[RemoteFile, str]:
    info = filesystem.info(location)
    name = shown or redact_secrets(filesystem.unstrip_protocol(location))
    if info.get("type") == "directory":
        raise SourceError(f"{name} is a folder", f"Name the files in it, e.g. '{name.rstrip('/')}/*.jsonl'.")
    # Without the query of an HTTP address.
    named = urlsplit(location).path if location.startswith(("http://", "https://")) else location
    return RemoteFile(name, filesystem, location, info.get("size")), named
