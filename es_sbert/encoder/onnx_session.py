"""onnxruntime sessions, and the threads that run batches on them; shared by `Encoder` and `Reranker`."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from es_sbert.encoder.batching import Vectors
from es_sbert.encoder.cuda_session import device_error, open_cuda_session
from es_sbert.encoder.device import Device, available_cores
from es_sbert.errors import BundleInvalid, DeviceError, UsageError, error_summary

# Sessions that run batches side by side: while one copies and the host prepares the next, the other computes.
CUDA_WORKERS = 2


def worker_count(device: Device, threads: int | None = None) -> int:
    """How many batches run side by side: one for each physical core, or two on CUDA.

    Args:
        threads: In place of that.
    """
    return threads or (available_cores() if device.kind == "cpu" else CUDA_WORKERS)


# Tokens of a text up to which `short` sessions are faster: the width of their tiles.
SHORT_TEXT_TOKENS = 64

_ERRORS_ONLY = 3
_MAX_WEIGHT_BYTES = 2_000_000_000  # bytes of weights that the sessions of one encoder hold together


def available_providers() -> list[str]:
    """What the installed onnxruntime was built with; says nothing of what will run."""
    return cast("list[str]", onnxruntime.get_available_providers())


def session_options() -> onnxruntime.SessionOptions:
    """Options under which a graph gives the same vectors on every processor."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False
    options.log_severity_level = _ERRORS_ONLY
    # On x86 processors without VNNI, products of unsigned and signed 8-bit numbers overflow 16 bits in silence. This
    # setting makes onnxruntime turn the weights into unsigned ones there, and does nothing elsewhere.
    options.add_session_config_entry("session.x64quantprecision", "1")
    return options


def open_session(path: Path, device: Device, *, short: bool = False) -> onnxruntime.InferenceSession:
    """Open an ONNX file on a device.

    A CPU session computes on the thread that calls it, so that several threads run several batches side by
    side: on short texts that beats one batch spread over the cores. Memory patterns are off because every
    batch has another shape, for which patterns would be kept for ever.

    Args:
        short: On CUDA, for texts of at most `SHORT_TEXT_TOKENS` tokens: attention by onnxruntime's memory-efficient
            kernel,
            whose tiles are 64 tokens wide, in place of FlashAttention-2 with tiles of 128. A tile is computed whole,
            whatever of it a text fills.

    Raises:
        DeviceError: the session would run elsewhere than asked, in whole or in part, or does not run there.
        BundleInvalid: onnxruntime does not take the file.
    """
    options = session_options()
    try:
        if device.kind == "cuda":
            return open_cuda_session(path, device, options, short=short)
        # onnxruntime's fallback would print to stdout, which belongs to the commands' output.
        providers = ["CPUExecutionProvider"]
        return onnxruntime.InferenceSession(str(path), options, providers=providers, enable_fallback=0)
    except DeviceError:
        raise
    except Exception as error:  # onnxruntime raises a dozen types that share no base below Exception
        raise BundleInvalid(
            f"onnxruntime {onnxruntime.__version__} does not take {path}: {error_summary(error)}",
            "Export the model again with this installation: es-sbert export MODEL -o BUNDLE.",
        ) from error


class SessionPool:
    """One session for each thread that computes, opened when first needed.

    Threads that share a CPU session also share its memory arena: a buffer that one core has just written is then
    handed to the other, and small batches run markedly slower for stretches. Models too large to be held several
    times share all the same.

    Args:
        path: The ONNX file.
        device: Where it runs.
        threads: How many threads will compute at a time.
        short: As for `open_session`.

    Raises:
        DeviceError, BundleInvalid: as `open_session`.
    """

    def __init__(self, path: Path, device: Device, threads: int, *, short: bool = False) -> None:
        self._open = partial(open_session, path, device, short=short)
        self._lock = threading.Lock()
        first = self._open()
        self.provider: str = first.get_providers()[0]
        self._sessions = [first]
        self._free: queue.SimpleQueue[onnxruntime.InferenceSession] = queue.SimpleQueue()
        self._free.put(first)
        self._limit = session_count(path.stat().st_size, threads)
        # A session more than there are threads for it is lent to several.
        self._borrowers = [threads // self._limit + (number < threads % self._limit) for number in range(self._limit)]
        for _ in range(self._borrowers[0] - 1):
            self._free.put(first)

    @contextlib.contextmanager
    def session(self) -> Iterator[onnxruntime.InferenceSession]:
        """Lend a session to the calling thread."""
        lent = self._acquire()
        try:
            yield lent
        finally:
            self._free.put(lent)

    def _acquire(self) -> onnxruntime.InferenceSession:
        with contextlib.suppress(queue.Empty):
            return self._free.get_nowait()
        with self._lock:
            if len(self._sessions) < self._limit:
                opened = self._open()
                for _ in range(self._borrowers[len(self._sessions)] - 1):
                    self._free.put(opened)
                self._sessions.append(opened)
                return opened
        return self._free.get()


def session_count(size: int, threads: int) -> int:
    """How many sessions of a model of this many bytes: one a thread, within 2 GB of weights, at least one."""
    return max(1, min(threads, _MAX_WEIGHT_BYTES // max(1, size)))


def run_session(session: onnxruntime.InferenceSession, feed: Mapping[str, NDArray[Any]], into: Vectors) -> None:
    """Sentence vectors of one batch, written where the caller wants them.

    Args:
        feed: The graph's inputs, as `packing.InputBuilder` makes them.
        into: *Shape:* ``(batch, dimensions)`` float32, one piece of memory.
    """
    if session.get_providers()[0] == "CPUExecutionProvider":
        # Binding a single text's memory takes longer than copying its vector.
        into[:] = session.run(["sentence_embedding"], dict(feed))[0]
        return
    binding = session.io_binding()
    for name, values in feed.items():
        binding.bind_cpu_input(name, values)
    binding.bind_output("sentence_embedding", "cpu", 0, np.float32, into.shape, into.ctypes.data)
    session.run_with_iobinding(binding)


T = TypeVar("T")


class InferencePool:
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
            short: For texts of at most `SHORT_TEXT_TOKENS` tokens.
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
            is_short: Whether no text of a batch has more than `SHORT_TEXT_TOKENS` tokens.

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


class OnnxModel:
    """A model that runs on `Workers`: closed by `close`, or as a context manager."""

    _workers: InferencePool

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
