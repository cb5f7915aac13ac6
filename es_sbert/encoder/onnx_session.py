"""onnxruntime sessions and the threads that run batches on them, for `Encoder` and `Reranker`."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from es_sbert.encoder.batching import Vectors
from es_sbert.encoder.cuda_session import device_error, open_cuda_session
from es_sbert.encoder.device import Device, available_cores
from es_sbert.errors import BundleInvalid, DeviceError, ModelError, UsageError, error_summary

# Concurrent batches on CUDA: while one is copied and the host prepares the next, the other is computed.
CUDA_WORKERS = 2
# Tokens of a text up to which `short` sessions are faster: the width of their tiles.
SHORT_TEXT_TOKENS = 64

_ERRORS_ONLY = 3
_MAX_WEIGHT_BYTES = 2_000_000_000  # bytes of weights that the sessions of one encoder hold together


def available_providers() -> list[str]:
    """Execution providers that the installed onnxruntime was built with; they may still fail to load."""
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

    A CPU session computes on the thread that calls it, so that several threads run several batches concurrently: on
    short texts that is faster than one batch spread over the cores. Memory patterns are off because every batch has
    another shape, and the patterns of all shapes would be kept.

    Args:
        short: On CUDA, for texts of at most `SHORT_TEXT_TOKENS` tokens: attention by onnxruntime's memory-efficient
            kernel, whose tiles are 64 tokens wide, instead of FlashAttention-2 with tiles of 128. A tile is always
            computed whole.

    Raises:
        DeviceError: the session would run on another device, in whole or in part, or does not run on this one.
        BundleInvalid: onnxruntime does not accept the file.
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


def session_count(size: int, threads: int) -> int:
    """How many sessions of a model of this many bytes: one a thread, within 2 GB of weights, at least one."""
    return max(1, min(threads, _MAX_WEIGHT_BYTES // max(1, size)))


def run_session(session: onnxruntime.InferenceSession, feed: Mapping[str, NDArray[Any]], into: Vectors) -> None:
    """Write the sentence vectors of one batch into an array.

    Args:
        feed: The graph's inputs, as `InputBuilder` makes them.
        into: *Shape:* ``(batch, dimensions)`` float32, contiguous.

    Raises:
        ModelError: the graph does not run on this batch, on the CPU.
    """
    if session.get_providers()[0] == "CPUExecutionProvider":
        # Binding a single text's memory takes longer than copying its vector.
        try:
            into[:] = session.run(["sentence_embedding"], dict(feed))[0]
        except Exception as error:  # onnxruntime raises a dozen types that share no base below Exception
            raise ModelError(
                f"onnxruntime {onnxruntime.__version__} cannot run the model on these texts: {error_summary(error)}",
                "Export the model again with this installation: es-sbert export MODEL -o BUNDLE.",
            ) from error
        return
    binding = session.io_binding()
    for name, values in feed.items():
        binding.bind_cpu_input(name, values)
    binding.bind_output("sentence_embedding", "cpu", 0, np.float32, into.shape, into.ctypes.data)
    session.run_with_iobinding(binding)


T = TypeVar("T")


class InferencePool:
    """The threads and sessions of a model: one session for each thread, opened when first needed.

    Threads that share a CPU session also share its memory arena: a buffer that one core has just written is then
    handed to the other, and small batches run much slower for stretches. Threads share the sessions of a model that is
    too large to be held several times.

    On CUDA, batches of short texts have separate sessions (see `open_session`).

    Args:
        path: The ONNX file.
        device: Where it runs.
        threads: How many batches run concurrently; by default one for each physical core, or two on CUDA.

    Attributes:
        count: Number of threads.
        provider: onnxruntime's execution provider as the session reports it.

    Raises:
        DeviceError: the session would run on another device.
        BundleInvalid: onnxruntime does not accept the file.
    """

    def __init__(self, path: Path, device: Device, threads: int | None) -> None:
        threads = threads or (available_cores() if device.kind == "cpu" else CUDA_WORKERS)
        self.count = threads
        self._path = path
        self._device = device
        # By session, how many threads use it.
        sessions = session_count(path.stat().st_size, threads)
        self._users = [threads // sessions + (number < threads % sessions) for number in range(sessions)]
        self._lock = threading.Lock()
        # Free sessions and the number of opened ones, for batches of any texts and of short texts.
        self._free: dict[bool, queue.SimpleQueue[onnxruntime.InferenceSession]] = {
            False: queue.SimpleQueue(),
            True: queue.SimpleQueue(),
        }
        self._opened = {False: 0, True: 0}
        first = self._open_session(short=False)
        self._free[False].put(first)
        self.provider: str = first.get_providers()[0]
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="encoder")
        self._closed = False

    def run(
        self,
        batches: Iterable[T],
        run_batch: Callable[[onnxruntime.InferenceSession, T], None],
        stop: threading.Event | None = None,
        is_short: Callable[[T], bool] = lambda batch: False,
    ) -> None:
        """Run all batches and wait for them; what one of them raised is raised here.

        A single batch runs in the calling thread, which saves a handover.

        Args:
            batches: Batches, or their numbers.
            run_batch: Called with a session and a batch.
            stop: Once set, no further batch is started; those that run are finished.
            is_short: Whether no text of a batch has more than `SHORT_TEXT_TOKENS` tokens.

        Raises:
            UsageError: after `close`.
            DeviceError: a batch failed on the GPU.
        """
        if self._closed:
            raise UsageError(
                "the model is closed",
                "Use it before close, and inside the with block that opened it or its SemanticIndex; or load it again.",
            )

        def run_one(batch: T) -> None:
            if stop is not None and stop.is_set():
                return
            with self.session(short=is_short(batch)) as session:
                try:
                    run_batch(session, batch)
                except Exception as error:  # onnxruntime's exceptions have no common base
                    if self._device.kind == "cpu" or not _is_from_onnxruntime(error):
                        raise
                    raise device_error(self._device, error) from error

        all_batches = list(batches)
        if len(all_batches) == 1:
            run_one(all_batches[0])
        else:
            list(self._threads.map(run_one, all_batches))

    @contextlib.contextmanager
    def session(self, *, short: bool = False) -> Iterator[onnxruntime.InferenceSession]:
        """Lend a session to the calling thread.

        Args:
            short: For texts of at most `SHORT_TEXT_TOKENS` tokens.
        """
        short = short and self._device.kind == "cuda"
        session = self._acquire(short)
        try:
            yield session
        finally:
            self._free[short].put(session)

    def _acquire(self, short: bool) -> onnxruntime.InferenceSession:
        with contextlib.suppress(queue.Empty):
            return self._free[short].get_nowait()
        with self._lock:
            if self._opened[short] < len(self._users):
                return self._open_session(short)
        return self._free[short].get()

    def _open_session(self, short: bool) -> onnxruntime.InferenceSession:
        session = open_session(self._path, self._device, short=short)
        for _ in range(self._users[self._opened[short]] - 1):
            self._free[short].put(session)
        self._opened[short] += 1
        return session

    def close(self) -> None:
        """End the threads."""
        self._closed = True
        self._threads.shutdown()


def _is_from_onnxruntime(error: Exception) -> bool:
    # Its own types, and RuntimeError, which its calls with bound memory raise.
    return isinstance(error, RuntimeError) or type(error).__module__.startswith("onnxruntime.")
