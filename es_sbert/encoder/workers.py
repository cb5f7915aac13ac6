"""Threads that run batches of one graph, each on a session of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import onnxruntime

from es_sbert.encoder.cuda_errors import device_error
from es_sbert.encoder.device import Device
from es_sbert.encoder.session import SessionPool
from es_sbert.errors import UsageError

T = TypeVar("T")


class Workers:
    """The threads and sessions of a model. Close them, or use their owner as a context manager.

    Args:
        path: The ONNX file.
        device: Where it runs.
        threads: How many batches run side by side.

    Attributes:
        count: How many threads there are.
        provider: onnxruntime's execution provider as the session reports it.

    Raises:
        DeviceError: the session would run elsewhere than asked.
        BundleInvalid: onnxruntime does not take the file.
    """

    def __init__(self, path: Path, device: Device, threads: int) -> None:
        self.count = threads
        self._sessions = SessionPool(path, device, self.count)
        # Opened with the first short batch. On a CPU all batches are alike.
        self._short = cache(lambda: SessionPool(path, device, self.count, short=True))
        self._lock = threading.Lock()
        self._device = device
        self.provider = self._sessions.provider
        self._pool = ThreadPoolExecutor(self.count, thread_name_prefix="encoder")
        self._closed = False

    def session(self, *, short: bool = False) -> AbstractContextManager[onnxruntime.InferenceSession]:
        """Lend a session to the calling thread.

        Args:
            short: For texts of at most `SHORT_TEXT` tokens.
        """
        if not short or self._device.kind == "cpu":
            return self._sessions.session()
        with self._lock:
            return self._short().session()

    def run(
        self,
        batches: Iterable[T],
        run_batch: Callable[[onnxruntime.InferenceSession, T], None],
        stop: threading.Event | None = None,
        is_short: Callable[[T], bool] = lambda batch: False,
    ) -> None:
        """Run all batches and wait for them; what one of them raised is raised here.

        A single batch runs in the calling thread, which saves handing it over and back.

        Args:
            batches: What `run_batch` knows each batch by.
            run_batch: Called with a session and a batch.
            stop: Once set, no further batch is begun; those that run are waited for.
            is_short: Whether no text of a batch has more than `SHORT_TEXT` tokens.

        Raises:
            UsageError: after `close`.
            DeviceError: a batch failed on the card.
        """
        if self._closed:
            raise UsageError(
                "the model is closed",
                "Use it before close, and inside the with block that opened it or its SemanticIndex; or load it again.",
            )

        def with_session(batch: T) -> None:
            if stop is not None and stop.is_set():
                return
            with self.session(short=is_short(batch)) as session:
                try:
                    run_batch(session, batch)
                except Exception as error:  # onnxruntime's have no base in common
                    if self._device.kind == "cpu" or not _is_from_onnxruntime(error):
                        raise
                    raise device_error(self._device, error) from error

        every = list(batches)
        if len(every) == 1:
            with_session(every[0])
        else:
            list(self._pool.map(with_session, every))

    def close(self) -> None:
        """End the threads."""
        self._closed = True
        self._pool.shutdown()


class OwnsWorkers:
    """A model that runs on `Workers`: closed by `close`, or as a context manager."""

    _workers: Workers

    def close(self) -> None:
        """End the worker threads."""
        self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_from_onnxruntime(error: Exception) -> bool:
    # Its own types, and RuntimeError, which its calls with bound memory raise.
    return isinstance(error, RuntimeError) or type(error).__module__.startswith("onnxruntime.")
