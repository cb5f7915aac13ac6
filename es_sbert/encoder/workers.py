"""Threads that run batches of one graph, each on a session of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from es_sbert.encoder.device import Device
from es_sbert.encoder.session import SessionPool
from es_sbert.errors import UsageError


class Workers:
    """The threads and sessions of a model. Close them, or use their owner as a context manager.

    Args:
        path: The ONNX file.
        device: Where it runs.
        threads: CPU threads; CUDA takes one.

    Attributes:
        count: How many threads there are.
        provider: onnxruntime's execution provider as the session reports it.

    Raises:
        DeviceError: the session would run elsewhere than asked.
        BundleInvalid: onnxruntime does not take the file.
    """

    def __init__(self, path: Path, device: Device, threads: int) -> None:
        self.count = threads if device.kind == "cpu" else 1
        self._sessions = SessionPool(path, device, self.count)
        self.provider = self._sessions.provider
        self._pool = ThreadPoolExecutor(self.count, thread_name_prefix="encoder")
        self._closed = False

    def run(
        self,
        batches: Iterable[NDArray[np.int64]],
        run_batch: Callable[[onnxruntime.InferenceSession, NDArray[np.int64]], None],
        stop: threading.Event | None = None,
    ) -> None:
        """Run all batches and wait for them; what one of them raised is raised here.

        A single batch runs in the calling thread, which saves handing it over and back.

        Args:
            batches: Indices of each batch's members.
            run_batch: Called with a session and a batch.
            stop: Once set, no further batch is begun; those that run are waited for.

        Raises:
            UsageError: after `close`.
        """
        if self._closed:
            raise UsageError(
                "the model is closed",
                "Use it before close, and inside the with block that opened it or its SemanticIndex; or load it again.",
            )

        def with_session(members: NDArray[np.int64]) -> None:
            if stop is not None and stop.is_set():
                return
            with self._sessions.session() as session:
                run_batch(session, members)

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
