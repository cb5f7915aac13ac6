"""onnxruntime sessions that run where they say they run."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from es_sbert.encoder.cuda_session import open_on_cuda
from es_sbert.encoder.device import Device
from es_sbert.encoder.types import Vectors
from es_sbert.errors import BundleInvalid, DeviceError, first_line

# Tokens of a text up to which `short` sessions are faster: the width of their tiles.
SHORT_TEXT = 64

_ERRORS_ONLY = 3
_MEMORY = 2_000_000_000  # bytes of weights that the sessions of one encoder hold together


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
        short: On CUDA, for texts of at most `SHORT_TEXT` tokens: attention by onnxruntime's memory-efficient kernel,
            whose tiles are 64 tokens wide, in place of FlashAttention-2 with tiles of 128. A tile is computed whole,
            whatever of it a text fills.

    Raises:
        DeviceError: the session would run elsewhere than asked, in whole or in part, or does not run there.
        BundleInvalid: onnxruntime does not take the file.
    """
    options = session_options()
    try:
        if device.kind == "cuda":
            return open_on_cuda(path, device, options, short=short)
        # onnxruntime's fallback would print to stdout, which belongs to the commands' output.
        providers = ["CPUExecutionProvider"]
        return onnxruntime.InferenceSession(str(path), options, providers=providers, enable_fallback=0)
    except DeviceError:
        raise
    except Exception as error:  # onnxruntime raises a dozen types that share no base below Exception
        raise BundleInvalid(
            f"onnxruntime {onnxruntime.__version__} does not take {path}: {first_line(error)}",
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
        self._limit = sessions_to_hold(path.stat().st_size, threads)
        # A session more than there are threads for it is lent to several.
        self._lent = [threads // self._limit + (number < threads % self._limit) for number in range(self._limit)]
        for _ in range(self._lent[0] - 1):
            self._free.put(first)

    @contextlib.contextmanager
    def session(self) -> Iterator[onnxruntime.InferenceSession]:
        """Lend a session to the calling thread."""
        lent = self._take()
        try:
            yield lent
        finally:
            self._free.put(lent)

    def _take(self) -> onnxruntime.InferenceSession:
        with contextlib.suppress(queue.Empty):
            return self._free.get_nowait()
        with self._lock:
            if len(self._sessions) < self._limit:
                opened = self._open()
                for _ in range(self._lent[len(self._sessions)] - 1):
                    self._free.put(opened)
                self._sessions.append(opened)
                return opened
        return self._free.get()


def sessions_to_hold(size: int, threads: int) -> int:
    """How many sessions of a model of this many bytes: one a thread, within 2 GB of weights, at least one."""
    return max(1, min(threads, _MEMORY // max(1, size)))


def run(session: onnxruntime.InferenceSession, feed: Mapping[str, NDArray[Any]], into: Vectors) -> None:
    """Sentence vectors of one batch, written where the caller wants them.

    Args:
        feed: The graph's inputs, as `packing.BatchInputs` makes them.
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
