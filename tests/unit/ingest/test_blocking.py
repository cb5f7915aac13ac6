"""Sources that block do not hold up the end of a load."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from es_sbert.ingest.sources.document_source import (
    ByteCounter,
    ReadCancelled,
    ReadSettings,
    Record,
    RejectedRecord,
    read_records,
)
from es_sbert.ingest.sources.file_sources import TextSource
from es_sbert.ingest.sources.remote_files import RemoteFile, call_until_stopped
from es_sbert.io.file_formats import FileFormat

pytestmark = pytest.mark.timeout(120)


class Silent:
    """A filesystem whose server sends a line and then stays silent until the test is over."""

    protocol = ("test",)
    _LINES = b'{"text": "a"}\n' * 2

    def __init__(self, silence: threading.Event, over: threading.Event) -> None:
        self._silence, self._over, self._sent = silence, over, False

    def invalidate_cache(self, path: str) -> None: ...

    def _parent(self, path: str) -> str:
        return ""

    def info(self, path: str) -> dict[str, Any]:
        return {}

    def open(self, path: str, mode: str, block_size: int) -> Silent:
        return self

    def tell(self) -> int:
        return len(self._LINES) if self._sent else 0

    def read(self, count: int) -> bytes:
        if not self._sent:
            self._sent = True
            return self._LINES
        self._silence.set()
        self._over.wait()
        return b""

    def close(self) -> None: ...


class Broken(Silent):
    """A filesystem whose connection breaks, so that a file can be neither read nor closed."""

    def read(self, count: int) -> bytes:
        raise OSError("the connection broke")

    def close(self) -> None:
        raise OSError("it cannot be closed")


def test_failure_to_close_does_not_hide_that_of_the_read() -> None:
    said: list[str] = []
    source = TextSource(
        RemoteFile("test://docs", Broken(threading.Event(), threading.Event()), "docs", None), FileFormat.JSONL
    )
    assert list(read_records([source], ReadSettings(1000, "text"), ByteCounter(), threading.Event(), said.append)) == []
    assert "the connection broke" in said[0]


def test_blocking_source_does_not_delay_stop() -> None:
    silence, over, stop = threading.Event(), threading.Event(), threading.Event()
    source = TextSource(RemoteFile("test://docs", Silent(silence, over), "docs", None), FileFormat.JSONL)
    read: list[Record | RejectedRecord] = []

    def stop_in_the_silence() -> None:
        silence.wait()
        stop.set()

    threading.Thread(target=stop_in_the_silence, daemon=True).start()
    try:
        settings = ReadSettings(1000, plain_text_field="text")
        read.extend(read_records([source], settings, ByteCounter(), stop, pytest.fail))
        assert not over.is_set()  # the source still blocks
    finally:
        over.set()
    assert len(read) == 2


def test_call_returns_raises_and_is_not_begun_after_stop() -> None:
    stop = threading.Event()
    assert call_until_stopped(threading.get_ident, stop) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        call_until_stopped(lambda: 1 / 0, stop)
    with pytest.raises(TimeoutError, match="its own"):
        call_until_stopped(lambda: (_ for _ in ()).throw(TimeoutError("its own")), stop)
    stop.set()
    with pytest.raises(ReadCancelled):
        call_until_stopped(pytest.fail, stop)
