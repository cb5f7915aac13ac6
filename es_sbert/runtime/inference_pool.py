"""Compile a graph with the runtime of its variant, and run batches on its sessions in several threads."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from es_sbert.bundle.variants import Precision, Runtime
from es_sbert.errors import UsageError
from es_sbert.runtime.compiled_model import CompiledModel, Session
from es_sbert.runtime.device import Device
from es_sbert.runtime.onnx_session import OnnxCpuModel, OnnxCudaModel

T = TypeVar("T")


def compile_model(
    path: Path, runtime: str, precision: str, device: Device, *, threads: int | None = None
) -> CompiledModel:
    """Compile an ONNX file.

    Args:
        path: The file.
        runtime, precision: Runtime and precision of the variant.
        device: Device on which to run it.
        threads: Number of concurrent batches; by default one for each physical core, or two on CUDA.

    Raises:
        DeviceError: the device cannot be used, or the runtime does not support the model on it.
        BundleInvalid: the runtime does not accept the file.
    """
    if device.kind == "cuda":
        return OnnxCudaModel(path, device, threads)
    if runtime == Runtime.OPENVINO:
        # Imported here: OpenVINO is optional.
        from es_sbert.runtime.openvino_session import OpenVinoModel

        return OpenVinoModel(path, Precision(precision), threads)
    return OnnxCpuModel(path, threads)


class InferencePool:
    """The threads and sessions of a compiled model. Sessions are opened when first needed.

    Args:
        model: The model.

    Attributes:
        model: The model.
        count: Number of threads.
        provider: Provider that executes the graph, as its session reports it.

    Raises:
        DeviceError: the session would run on another device.
        BundleInvalid: the runtime does not accept the file.
    """

    def __init__(self, model: CompiledModel) -> None:
        self.model = model
        self.count = model.threads
        self._lock = threading.Lock()
        # Free sessions and the number of opened ones, for batches of any texts and of short texts.
        self._free: dict[bool, queue.SimpleQueue[Session]] = {False: queue.SimpleQueue(), True: queue.SimpleQueue()}
        self._opened = {False: 0, True: 0}
        first = self._open_session(short=False)
        self._free[False].put(first)
        self.provider = first.provider
        self._threads = ThreadPoolExecutor(self.count, thread_name_prefix="encoder")
        self._closed = False

    def run(
        self,
        batches: Iterable[T],
        run_batch: Callable[[Session, T], None],
        stop: threading.Event | None = None,
        is_short: Callable[[T], bool] = lambda batch: False,
    ) -> None:
        """Run all batches and wait for them. If a batch fails, its error is raised.

        A single batch runs in the calling thread, which avoids a thread switch.

        Args:
            batches: Batches, or their numbers.
            run_batch: Called with a session and a batch.
            stop: Once set, no further batches are started; running batches are finished.
            is_short: Whether no text of a batch has more than `SHORT_TEXT_TOKENS` tokens.

        Raises:
            UsageError: the pool is closed.
        """
        if self._closed:
            raise model_closed()

        def run_one(batch: T) -> None:
            if stop is not None and stop.is_set():
                return
            with self.session(short=is_short(batch)) as session:
                run_batch(session, batch)

        all_batches = list(batches)
        if len(all_batches) == 1:
            run_one(all_batches[0])
        else:
            list(self._threads.map(run_one, all_batches))

    @contextlib.contextmanager
    def session(self, *, short: bool = False) -> Iterator[Session]:
        """Lend a session to the calling thread.

        Args:
            short: Whether its texts have at most `SHORT_TEXT_TOKENS` tokens.
        """
        short = short and self.model.has_short_sessions
        session = self._acquire(short)
        try:
            yield session
        finally:
            self._free[short].put(session)

    def _acquire(self, short: bool) -> Session:
        with contextlib.suppress(queue.Empty):  # none is free: open one, or wait
            return self._free[short].get_nowait()
        with self._lock:
            if self._opened[short] < len(self.model.session_threads):
                return self._open_session(short)
        return self._free[short].get()

    def _open_session(self, short: bool) -> Session:
        session = self.model.open_session(short=short)
        for _ in range(self.model.session_threads[self._opened[short]] - 1):
            self._free[short].put(session)
        self._opened[short] += 1
        return session

    def close(self) -> None:
        """End the threads."""
        self._closed = True
        self._threads.shutdown()


def model_closed() -> UsageError:
    """Create the error for a use after `close`."""
    return UsageError(
        "the model is closed",
        "Use it inside the with block that opened it or its SemanticIndex, or load it again.",
    )
