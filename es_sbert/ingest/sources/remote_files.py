"""Files that fsspec reaches: S3, HTTP, SFTP and others."""

from __future__ import annotations

import glob
import io
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TypeVar, cast
from urllib.parse import urlsplit

from es_sbert.engines.retry import Backoff, RetryPolicy
from es_sbert.errors import SourceError, UsageError, error_summary, require_extra
from es_sbert.ingest.sources.document_source import (
    ByteInput,
    ReadCancelled,
    ReadContext,
    SourceUnavailable,
)
from es_sbert.installation import install_extra_command
from es_sbert.io.text_formats import CorruptStream

T = TypeVar("T")

_STOP_POLL_SECONDS = 0.1

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
_TIME_KEYS = ("LastModified", "Last-Modified", "last_modified", "mtime", "modified", "created")
_VERSION_KEYS = ("size", "ETag", "etag", *_TIME_KEYS)
_NOT_FOUND, _ACCESS_DENIED = (404, 410), (401, 403)


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

    @property
    def file_name(self) -> str:
        """The path that indicates the format: without the query of an HTTP address."""
        is_http = self.location.startswith(("http://", "https://"))
        return urlsplit(self.location).path if is_http else self.location

    def chunks(self, context: ReadContext) -> Iterator[bytes]:
        with self._opened(context, is_sequential=True) as file:
            while chunk := file.read(_CHUNK):
                context.counter.bytes += len(chunk)
                yield chunk

    def open(self, context: ReadContext) -> AbstractContextManager[BinaryIO]:
        return self._opened(context, is_sequential=False)

    @contextmanager
    def _opened(self, context: ReadContext, *, is_sequential: bool) -> Iterator[BinaryIO]:
        file = _RemoteReader(self, context, is_sequential=is_sequential)
        try:
            yield cast(BinaryIO, file)
            file.check_unchanged()
        finally:
            file.close()


class _RemoteReader(io.RawIOBase):
    """A remote file, whose failed reads are retried within the retry budget, and whose calls end when the load stops.

    Its methods raise the errors of `DocumentSource.records`: FileNotFoundError if the file does not exist,
    CorruptStream if the rest of it cannot be read, SourceUnavailable if the budget is spent, ReadCancelled.
    """

    def __init__(self, file: RemoteFile, context: ReadContext, *, is_sequential: bool) -> None:
        super().__init__()
        self._file = file
        self._stop = context.stop
        self._backoff = Backoff(RetryPolicy(context.settings.retry_seconds), context.stop)
        self._is_sequential = is_sequential
        self._handle: Any = None
        self._offset = 0
        self._block = _BLOCK
        self._version: dict[str, Any] = {}  # of the file that was opened first; empty before
        self._retry(self._open_handle)

    @property
    def _size(self) -> int | None:
        return self._version.get("size")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            if self._size is None:
                raise CorruptStream("its size is unknown; download the file and load the copy")
            offset += self._size
        elif whence == io.SEEK_CUR:
            offset += self._offset
        self._offset = offset
        return offset

    def read(self, count: int = -1) -> bytes:
        # What is added to the file after this must not be read, because requests for parts of it would return it.
        if self._size is not None and self._block != _WHOLE_FILE:
            left = max(0, self._size - self._offset)
            count = left if count < 0 else min(count, left)
        data = self._retry(lambda: self._read(count)) if count else b""
        self._offset += len(data)
        return data

    def check_unchanged(self) -> None:
        """Check that what was read is one version of the file, unless it came in one response.

        Raises:
            CorruptStream: the file was changed while it was read.
        """
        # A file whose size is unknown is not read in blocks either.
        if self._is_sequential and (self._block == _WHOLE_FILE or (self._size or 0) <= _BLOCK):
            return
        try:
            now = call_until_stopped(self._current_version, self._stop)
        except ReadCancelled:
            raise
        except Exception:  # nothing can be lost: all of the file was read, and only a later change would be unknown
            return
        # The machines behind one address may each have an ETag for the same file.
        keys = ("size", *_TIME_KEYS) if any(self._version[key] for key in _TIME_KEYS) else _VERSION_KEYS
        if any(self._version[key] != now[key] for key in keys):
            raise CorruptStream("the file was changed while it was read")

    def close(self) -> None:
        self._drop()
        super().close()

    def _current_version(self) -> dict[str, Any]:
        # The file's metadata may come from an old listing.
        self._file.filesystem.invalidate_cache(self._file.location.rpartition("/")[0])
        info = self._file.filesystem.info(self._file.location)
        return {key: info.get(key) for key in _VERSION_KEYS}

    def _open_handle(self) -> None:
        """Open the file; it must still be the version that was read so far."""
        version = self._current_version()
        if self._version and self._version != version:
            raise CorruptStream("the file was changed while it was read")
        self._version = version
        self._handle = self._file.filesystem.open(self._file.location, "rb", block_size=self._block)

    def _read(self, count: int) -> bytes:
        if self._handle is None:
            self._open_handle()
        if self._block != _WHOLE_FILE and self._handle.tell() != self._offset:
            self._handle.seek(self._offset)
        while left := self._offset - self._handle.tell():
            if not self._handle.read(min(left, _CHUNK)):
                raise EOFError(f"it returned {self._handle.tell():,} bytes")
        data: bytes = self._handle.read(count)
        if not data and self._offset < (self._size or 0):
            raise EOFError(f"it returned {self._offset:,} of {self._size:,} bytes")
        return data

    def _retry(self, call: Callable[[], T]) -> T:
        """Repeat a call until it succeeds or the retry budget is spent."""
        while True:
            try:
                result = call_until_stopped(call, self._stop)
            except (CorruptStream, ReadCancelled):
                raise
            # Each filesystem raises its library's errors, few of which are OSErrors.
            except Exception as error:
                self._drop()
                self._wait_or_raise(_underlying_error(error))
            else:
                self._backoff.reset()
                return result

    def _wait_or_raise(self, error: Exception) -> None:
        """Wait after a transient error; raise a permanent one."""
        reason = _reason(error, self._file.location, self._file.name)
        # The other library's error is not chained: it may hold the address with its secrets.
        if isinstance(error, FileNotFoundError):
            if not self._version:
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
            # Nothing can be lost: what was read is complete, or its failure is raised. After a stop, a read may still
            # block the file, and nothing is called.
            with suppress(Exception):
                call_until_stopped(handle.close, self._stop)


def call_until_stopped(call: Callable[[], T], stop: threading.Event) -> T:
    """Run a call that may block in a separate thread, and return its result; it is abandoned when `stop` is set.

    The thread is a daemon, so that the process can end while it is blocked.

    Raises:
        ReadCancelled: `stop` was set before the call returned.
        BaseException: the call raised it.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # for the thread that waits for the result
            answer.set_exception(error)

    if not stop.is_set():
        threading.Thread(target=run, name="ingest-remote-call", daemon=True).start()
    while not stop.is_set():
        wait([answer], _STOP_POLL_SECONDS)
        if answer.done():
            return answer.result()
    raise ReadCancelled


def _underlying_error(error: Exception) -> Exception:
    """Return the original error, because fsspec reports every HTTP failure as FileNotFoundError."""
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or not isinstance(cause, Exception):
        return error
    by_aiohttp = type(cause).__module__.partition(".")[0] == "aiohttp" or isinstance(cause, TimeoutError)
    return cause if by_aiohttp and getattr(cause, "status", None) not in _NOT_FOUND else error


def _has_protocol(filesystem: Any, name: str) -> bool:
    return name in ([filesystem.protocol] if isinstance(filesystem.protocol, str) else filesystem.protocol)


def _reason(error: Exception, location: str, name: str) -> str:
    return redact_secrets(error_summary(error)).replace(location, name)


def find_remote(address: str) -> list[RemoteFile | str]:
    """Find the files that an address names.

    Args:
        address: Address with a protocol; may be a pattern.

    Returns:
        Remote files, or paths of files on this machine (`file://`).

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
            return [*locations]
        return [_remote_file(filesystem, each, shown if each == location else None) for each in locations]
    except SourceError:
        raise
    except Exception as error:  # each filesystem raises its library's errors
        reason, remedy = "no such file", "Check the address."
        if not isinstance(underlying := _underlying_error(error), FileNotFoundError):
            reason = _reason(underlying, location, shown)
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


def _remote_file(filesystem: Any, location: str, shown: str | None) -> RemoteFile:
    info = filesystem.info(location)
    name = shown or redact_secrets(filesystem.unstrip_protocol(location))
    if info.get("type") == "directory":
        raise SourceError(f"{name} is a folder", f"Name the files in it, e.g. '{name.rstrip('/')}/*.jsonl'.")
    return RemoteFile(name, filesystem, location, info.get("size"))
