"""Files that fsspec reaches (S3, HTTP, SFTP, …), read by offset so that a broken connection resumes."""

from __future__ import annotations

import glob
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, cast
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


def is_url(argument: str) -> bool:
    """Whether a FILE argument is written as an address rather than a path."""
    return _URL.match(argument) is not None


def url_scheme(address: str) -> str:
    """The scheme of an address: `s3`, `https`, …."""
    return re.split("://|::", address)[0].lower()


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
    "size",
    "ETag",
    "etag",
    "LastModified",
    "Last-Modified",
    "last_modified",
    "mtime",
    "modified",
    "created",
)


_NOT_FOUND, _ACCESS_DENIED = (404, 410), (401, 403)


def underlying_error(error: Exception) -> Exception:
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
        with self.open(context) as file:
            while chunk := file.read(_CHUNK):
                context.counter.bytes += len(chunk)
                yield chunk

    def open(self, context: ReadContext) -> BinaryIO:
        return cast(BinaryIO, RemoteReader(self, context))


class RemoteReader(io.RawIOBase):
    """A seekable remote file; failed reads are retried within the retry budget.

    Its methods raise the errors of `DocumentSource.records`: OSError if nothing was read yet, CorruptStream if the rest
    of the file cannot be read, SourceUnavailable if the budget is spent, ReadCancelled.
    """

    def __init__(self, file: RemoteFile, context: ReadContext) -> None:
        super().__init__()
        self._file = file
        self._stop = context.stop
        self._backoff = Backoff(RetryPolicy(context.settings.retry_seconds), context.stop)
        self._calls = BlockingCalls(context.stop)
        self._handle: Any = None
        self._offset = 0
        self._sought = False
        self._block = _BLOCK
        self._version: dict[str, Any] | None = None

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
            self._offset, self._sought = offset, True
            self._drop()
        return offset

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._calls.close(self._drop)
        super().close()

    def _read(self, count: int) -> bytes:
        if self._file.size is not None:
            count = min(count, max(0, self._file.size - self._offset))
            if not count:
                return b""
        while True:
            if self._stop.is_set():
                raise ReadCancelled
            try:
                data = self._calls(partial(self._read_from_handle, count))
                if not data and self._file.size is not None:
                    raise EOFError(f"it returned {self._offset:,} of {self._file.size:,} bytes")
            except (CorruptStream, ReadCancelled):
                raise
            # Each filesystem raises its library's errors, few of which are OSErrors.
            except Exception as error:
                self._drop()
                self._wait_or_raise(error)
                continue
            self._backoff.reset()
            self._offset += len(data)
            return data

    def _read_from_handle(self, count: int) -> bytes:
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
        version = {key: info[key] for key in _VERSION_KEYS if info.get(key) is not None}
        if self._version is not None and version != self._version:
            raise CorruptStream("the file was changed while it was read")
        self._version = version
        self._handle = filesystem.open(location, "rb", block_size=self._block)
        if self._block == _WHOLE_FILE:
            self._skip_to_offset()
        elif self._offset:
            self._handle.seek(self._offset)

    def _skip_to_offset(self) -> None:
        """Skip to the offset in a stream that can only be read from its beginning."""
        left = self._offset
        while left:
            if self._stop.is_set():
                raise ReadCancelled
            data = self._handle.read(min(left, _CHUNK))
            if not data:
                raise EOFError(f"it returned {self._offset - left:,} bytes")
            left -= len(data)

    def _wait_or_raise(self, raised: Exception) -> None:
        """Wait after a transient error; raise a permanent one."""
        error = underlying_error(raised)
        # Do not chain the other library's error: it may hold the address with its secrets.
        reason = redact_secrets(error_summary(error)).replace(self._file.location, self._file.name)
        if isinstance(error, FileNotFoundError):
            if self._version is None:
                raise FileNotFoundError(f"no such file: {self._file.name}") from None
            raise CorruptStream("the file was removed while it was read") from None
        if isinstance(error, PermissionError) or getattr(error, "status", None) in _ACCESS_DENIED:
            raise SourceUnavailable(f"access is refused ({reason})") from None
        if isinstance(error, ValueError) and "http" in self._file.filesystem.protocol and self._block != _WHOLE_FILE:
            # The server does not support range requests. This is noticed only at the second block.
            if self._sought:
                raise CorruptStream(
                    "the server does not support range requests; download the file and load the copy"
                ) from None
            self._block = _WHOLE_FILE
            return
        if not self._backoff.wait():
            if self._stop.is_set():
                raise ReadCancelled from None
            raise SourceUnavailable(reason) from None

    def _drop(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()


_HTTP_SCHEMES = ("http", "https")
_UNREACHABLE_HINT = (
    "Check the address, the network and the credentials, which the filesystem's own environment or configuration holds "
    "(AWS_ACCESS_KEY_ID and the like, or fsspec's conf.json)."
)


def find_remote(address: str) -> tuple[list[tuple[RemoteFile, str]], list[str]]:
    """Find the files that an address names.

    Args:
        address: Address with a protocol; may be a pattern.

    Returns:
        Remote files, each with the name that determines its format, and paths of files on this machine (`file://`).

    Raises:
        SourceError: the file does not exist, nothing matches, or the filesystem cannot be reached.
        UsageError: the protocol is unknown, or its library is not installed.
    """
    shown = redact_secrets(address)
    filesystem, location = _open_filesystem(address, shown)
    try:
        locations = _expand_remote_pattern(filesystem, location)
        if not locations:
            raise SourceError(f"no file matches {shown}", "Check the pattern; ** matches any number of nested folders.")
        if "file" in _protocols_of(filesystem):
            return [], locations
        return [_remote_file(filesystem, each, shown if each == location else None) for each in locations], []
    except SourceError:
        raise
    # Each filesystem raises its library's errors. Do not chain them: they may hold the address with its secrets.
    except Exception as raised:
        error = underlying_error(raised)
        if isinstance(error, FileNotFoundError):
            raise SourceError(f"{shown} cannot be read: no such file", "Check the address.") from None
        reason = redact_secrets(error_summary(error)).replace(location, shown)
        raise SourceError(f"{shown} cannot be read: {reason}", _UNREACHABLE_HINT) from None


def _open_filesystem(address: str, shown: str) -> tuple[Any, str]:
    """Open the filesystem of an address; also return the path of the address in it."""
    require_extra("remote", "fsspec")
    import fsspec

    protocol = url_scheme(address)
    try:
        filesystem, location = fsspec.url_to_fs(address, **_filesystem_options(protocol))
        return filesystem, location
    except ImportError as error:
        raise UsageError(
            f"{protocol}:// needs a package that is not installed ({error_summary(error)})",
            f"For s3 and http(s), install: {install_extra_command('remote')}; for others, the package named.",
        ) from error
    except ValueError as error:
        remedy = "Use an address that fsspec knows, such as s3://bucket/docs/*.jsonl.gz, or a path."
        raise UsageError(f"{shown} cannot be read: {redact_secrets(error_summary(error))}", remedy) from None


def _filesystem_options(protocol: str) -> dict[str, Any]:
    """Options that the filesystem needs for a load."""
    if protocol not in _HTTP_SCHEMES:
        return {}
    require_extra("remote", "aiohttp")
    from aiohttp import ClientTimeout
    from fsspec.config import conf

    # By default, aiohttp ends every request after five minutes, but a load may read a file more slowly.
    patient = {"timeout": ClientTimeout(total=None, sock_connect=30, sock_read=60)}
    return {"client_kwargs": patient | conf.get(protocol, {}).get("client_kwargs", {})}


def _expand_remote_pattern(filesystem: Any, location: str) -> list[str]:
    if not glob.has_magic(location):
        return [location]
    try:
        # A name may hold brackets, and most addresses of HTTP with a query hold a question mark.
        filesystem.info(location)
    except FileNotFoundError as error:
        if underlying_error(error) is not error:
            raise
        found = filesystem.glob(location, detail=True)
        return sorted(each for each, info in found.items() if info.get("type") != "directory")
    return [location]


def _remote_file(filesystem: Any, location: str, shown: str | None) -> tuple[RemoteFile, str]:
    info = filesystem.info(location)
    name = shown or redact_secrets(filesystem.unstrip_protocol(location))
    if info.get("type") == "directory":
        raise SourceError(f"{name} is a folder", f"Name the files in it, e.g. '{name.rstrip('/')}/*.jsonl'.")
    is_http = any(protocol in _HTTP_SCHEMES for protocol in _protocols_of(filesystem))
    told_by = urlsplit(location).path if is_http else location
    return RemoteFile(name, filesystem, location, info.get("size")), told_by


def _protocols_of(filesystem: Any) -> tuple[str, ...]:
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
