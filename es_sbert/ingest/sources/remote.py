"""Files that fsspec reaches (S3, HTTP, SFTP, …), read at offsets, so that a broken connection is taken up again."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from es_sbert.errors import first_line
from es_sbert.ingest.blocking import BlockingCalls
from es_sbert.ingest.retry import Backoff, RetryPolicy
from es_sbert.ingest.sources.addresses import without_secrets
from es_sbert.ingest.sources.source import Reading, ReadingStopped, SourceLost
from es_sbert.streams.lines import StreamBroken

if TYPE_CHECKING:
    from typing_extensions import Buffer

_CHUNK = 1 << 18
# Bytes of one request. Short requests outlive a slow load better than one that stays open for hours.
_BLOCK = 4 << 20
_STREAM = 0  # fsspec's way to ask for one request from the beginning to the end
# What tells one version of a file from another, as the filesystems name it.
_VERSION = ("size", "ETag", "etag", "LastModified", "Last-Modified", "last_modified", "mtime", "modified", "created")


_NOT_FOUND, _REFUSED = (404, 410), (401, 403)


def real_error(error: Exception) -> Exception:
    """What was the matter: fsspec says of whatever an HTTP server does wrong that there is no such file."""
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or not isinstance(cause, Exception):
        return error
    by_aiohttp = type(cause).__module__.partition(".")[0] == "aiohttp" or isinstance(cause, TimeoutError)
    return cause if by_aiohttp and getattr(cause, "status", None) not in _NOT_FOUND else error


@dataclass(frozen=True)
class RemoteFile:
    """A file behind an fsspec filesystem.

    Attributes:
        name: Its address without secrets.
        filesystem: An `fsspec.AbstractFileSystem`; it has the credentials.
        location: What the filesystem calls the file.
        size: Bytes; None where the filesystem does not tell.
    """

    name: str
    filesystem: Any = field(repr=False)
    location: str = field(repr=False)
    size: int | None
    path: None = None
    again: bool = True

    def chunks(self, reading: Reading) -> Iterator[bytes]:
        with self.open(reading) as file:
            while chunk := file.read(_CHUNK):
                reading.counter.bytes += len(chunk)
                yield chunk

    def open(self, reading: Reading) -> BinaryIO:
        return cast(BinaryIO, RemoteReader(self, reading))


class RemoteReader(io.RawIOBase):
    """A remote file, open for reading anywhere; failures are waited out within the retry budget.

    Its methods raise the errors of `Source.records`: OSError while nothing was read yet, StreamBroken where what is
    left of the file cannot be had, SourceLost where the budget is spent, ReadingStopped.
    """

    def __init__(self, file: RemoteFile, reading: Reading) -> None:
        super().__init__()
        self._file = file
        self._stop = reading.stop
        self._backoff = Backoff(RetryPolicy(reading.settings.retry_seconds), reading.stop)
        self._calls = BlockingCalls(reading.stop)
        self._handle: Any = None
        self._offset = 0
        self._sought = False
        self._block = _BLOCK
        self._version: dict[str, Any] | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.size is not None

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            if self._file.size is None:
                raise StreamBroken("its size is not known, so that it can only be read from its beginning to its end")
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
                raise ReadingStopped
            try:
                data = self._calls(partial(self._from_handle, count))
                if not data and self._file.size is not None:
                    raise EOFError(f"it gives {self._offset:,} of {self._file.size:,} bytes")
            except (StreamBroken, ReadingStopped):
                raise
            # Each filesystem raises errors of its own library, few of which are OSErrors.
            except Exception as error:
                self._drop()
                self._bear(error)
                continue
            self._backoff.succeeded()
            self._offset += len(data)
            return data

    def _from_handle(self, count: int) -> bytes:
        if self._handle is None:
            self._handle = self._opened()
        data: bytes = self._handle.read(count)
        return data

    def _opened(self) -> Any:
        """The file from the offset on, and of the version that was read so far."""
        filesystem, location = self._file.filesystem, self._file.location
        # What is known of the file may come from a listing of long ago.
        filesystem.invalidate_cache(filesystem._parent(location))
        info = filesystem.info(location)
        version = {key: info[key] for key in _VERSION if info.get(key) is not None}
        if self._version is not None and version != self._version:
            raise StreamBroken("the file was changed while it was read")
        self._version = version
        handle = filesystem.open(location, "rb", block_size=self._block)
        try:
            if self._block == _STREAM:
                self._pass_over(handle)
            elif self._offset:
                handle.seek(self._offset)
        except BaseException:
            handle.close()
            raise
        return handle

    def _pass_over(self, handle: Any) -> None:
        """Go to the offset in a stream that has none but its beginning."""
        left = self._offset
        while left:
            if self._stop.is_set():
                raise ReadingStopped
            data = handle.read(min(left, _CHUNK))
            if not data:
                raise EOFError(f"it gives {self._offset - left:,} bytes")
            left -= len(data)

    def _bear(self, raised: Exception) -> None:
        """Wait for what may pass; raise what does not."""
        error = real_error(raised)
        # Not chained: the other library's error may hold the address with its secrets.
        reason = without_secrets(first_line(error)).replace(self._file.location, self._file.name)
        if isinstance(error, FileNotFoundError):
            if self._version is None:
                raise FileNotFoundError(f"no such file: {self._file.name}") from None
            raise StreamBroken("the file was removed while it was read") from None
        if isinstance(error, PermissionError) or getattr(error, "status", None) in _REFUSED:
            raise SourceLost(f"access is refused ({reason})") from None
        if isinstance(error, ValueError) and "http" in self._file.filesystem.protocol and self._block != _STREAM:
            # A server that knows no ranges, which shows with the second block.
            if self._sought:
                raise StreamBroken(
                    "its server gives files only from the beginning to the end; fetch the file and name the copy"
                ) from None
            self._block = _STREAM
            return
        if not self._backoff.wait():
            if self._stop.is_set():
                raise ReadingStopped from None
            raise SourceLost(reason) from None

    def _drop(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()
