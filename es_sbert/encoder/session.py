"""onnxruntime sessions that run where they say they run."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from es_sbert.encoder.device import Device
from es_sbert.encoder.types import Vectors
from es_sbert.errors import BundleInvalid, DeviceError, first_line

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
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


def open_session(path: Path, device: Device) -> onnxruntime.InferenceSession:
    """Open an ONNX file on a device.

    A CPU session computes on the thread that calls it, so that several threads run several batches side by
    side: on short texts that beats one batch spread over the cores. Memory patterns are off because every
    batch has another shape, for which patterns would be kept for ever.

    Raises:
        DeviceError: the session would run elsewhere than asked.
        BundleInvalid: onnxruntime does not take the file.
    """
    options = session_options()
    wanted = _PROVIDERS[device.kind]
    providers: list[Any] = [wanted]
    if device.kind == "cuda":
        _load_cuda_libraries()
        # The CPU provider takes the few nodes that belong there (shapes); the check below is on the first one.
        # Strict: residuals are summed in fp32, which fp16 models need to stay near their originals.
        cuda = {"device_id": device.number, "enable_skip_layer_norm_strict_mode": "1"}
        providers = [(wanted, cuda), _PROVIDERS["cpu"]]
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # onnxruntime raises a dozen types that share no base below Exception
        if device.kind == "cuda":
            raise DeviceError(f"no session on {device}: {first_line(error)}", _CUDA_REMEDY) from error
        raise BundleInvalid(
            f"onnxruntime {onnxruntime.__version__} does not take {path}: {first_line(error)}",
            "Export the model again with this installation: es-sbert export MODEL -o BUNDLE.",
        ) from error
    # onnxruntime falls back to the CPU with a log line only, so what really runs is read back.
    if session.get_providers()[0] != wanted:
        raise DeviceError(f"asked for {device}, but the session runs on {session.get_providers()[0]}", _CUDA_REMEDY)
    return session


class SessionPool:
    """One session for each thread that computes, opened when first needed.

    Threads that share a CPU session also share its memory arena: a buffer that one core has just written is then
    handed to the other, and small batches run markedly slower for stretches. Models too large to be held several
    times share all the same.

    Args:
        path: The ONNX file.
        device: Where it runs.
        threads: How many threads will compute at a time.

    Raises:
        DeviceError, BundleInvalid: as `open_session`.
    """

    def __init__(self, path: Path, device: Device, threads: int) -> None:
        self._path = path
        self._device = device
        self._lock = threading.Lock()
        first = open_session(path, device)
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
                opened = open_session(self._path, self._device)
                for _ in range(self._lent[len(self._sessions)] - 1):
                    self._free.put(opened)
                self._sessions.append(opened)
                return opened
        return self._free.get()


def sessions_to_hold(size: int, threads: int) -> int:
    """How many sessions of a model of this many bytes: one a thread, within 2 GB of weights, at least one."""
    return max(1, min(threads, _MEMORY // max(1, size)))


_CUDA_REMEDY = (
    "Check `nvidia-smi`, and that CUDA and cuDNN of the versions this onnxruntime-gpu was built for are installed "
    "(pip install 'onnxruntime-gpu[cuda,cudnn]'); --device cpu runs without."
)


def _load_cuda_libraries() -> None:
    # Finds CUDA and cuDNN in pip packages or in torch's. Where it fails, opening the session says so.
    if hasattr(onnxruntime, "preload_dlls"):
        with contextlib.suppress(OSError):
            onnxruntime.preload_dlls()


def run(session: onnxruntime.InferenceSession, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Vectors:
    """Sentence vectors of one batch.

    Args:
        ids, mask: *Shape:* ``(batch, tokens)`` int64.

    Returns:
        *Shape:* ``(batch, dimensions)`` float32.
    """
    feed = {"input_ids": ids, "attention_mask": mask}
    outputs = session.run(["sentence_embedding"], feed)
    return cast(Vectors, outputs[0])
