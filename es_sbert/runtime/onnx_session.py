"""Graphs that onnxruntime runs: on a CPU (`OnnxCpuModel`) and on CUDA (`OnnxCudaModel`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from es_sbert.errors import BundleInvalid, DeviceError, ModelError, error_summary
from es_sbert.runtime.batching import LENGTH_MULTIPLE, BatchLimits
from es_sbert.runtime.compiled_model import CompiledModel, Session
from es_sbert.runtime.cuda_session import device_error, open_cuda_session
from es_sbert.runtime.device import Device, available_cores
from es_sbert.runtime.onnx_runtime import onnxruntime

# Concurrent batches on CUDA: while the host prepares and copies one, the GPU computes the other.
CUDA_WORKERS = 2
# Tokens of a text up to which `short` sessions are faster: the width of their tiles.
SHORT_TEXT_TOKENS = 64

_ERRORS_ONLY = 3
_MAX_WEIGHT_BYTES = 2_000_000_000  # bytes of weights that the sessions of one encoder hold together


def available_providers() -> list[str]:
    """Execution providers that the installed onnxruntime was built with; they may still fail to load."""
    return cast("list[str]", onnxruntime.get_available_providers())


def session_options() -> onnxruntime.SessionOptions:
    """Create session options with which a graph gives the same vectors on every processor."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False
    options.log_severity_level = _ERRORS_ONLY
    # On x86 processors without VNNI, products of unsigned and signed 8-bit numbers silently overflow 16 bits. This
    # setting makes onnxruntime use unsigned weights there, and does nothing elsewhere.
    options.add_session_config_entry("session.x64quantprecision", "1")
    return options


def open_session(path: Path, device: Device, *, short: bool = False) -> onnxruntime.InferenceSession:
    """Open an ONNX file on a device.

    A CPU session computes on the thread that calls it, so that several threads run several batches concurrently: on
    short texts that is faster than one batch spread over the cores. Memory patterns are off because every batch has a
    different shape, and the patterns of all shapes would be kept.

    Args:
        short: On CUDA, open a session for texts of at most `SHORT_TEXT_TOKENS` tokens. It uses onnxruntime's
            memory-efficient attention, whose tiles are 64 tokens wide, instead of FlashAttention-2 with tiles of 128:
            a tile is always computed whole.

    Raises:
        DeviceError: the session would run on a different device, in whole or in part, or does not run on this one.
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
            f"onnxruntime {onnxruntime.__version__} does not accept {path}: {error_summary(error)}",
            "Export the model again with this installation: `es-sbert export MODEL -o BUNDLE`.",
        ) from error


def session_count(size: int, threads: int) -> int:
    """Number of sessions for a model of this many bytes: one per thread, within 2 GB of weights, at least one."""
    return max(1, min(threads, _MAX_WEIGHT_BYTES // max(1, size)))


def share_sessions(path: Path, threads: int) -> tuple[int, ...]:
    """Return for each session of a model the number of threads that share it.

    Threads that share a CPU session also share its memory arena: a buffer that one core has just written is then handed
    to the other, and small batches temporarily run much slower. So each thread has its own session, unless the model is
    too large to be loaded several times.
    """
    sessions = session_count(path.stat().st_size, threads)
    return tuple(threads // sessions + (number < threads % sessions) for number in range(sessions))


class _OnnxSession(Session):
    """An onnxruntime session.

    Attributes:
        session: The session.
    """

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self.session = session
        self.input_names = tuple(value.name for value in session.get_inputs())
        self.properties = session.get_modelmeta().custom_metadata_map
        self.provider = session.get_providers()[0]
        self._output = session.get_outputs()[0].name


class OnnxCpuSession(_OnnxSession):
    """An onnxruntime session on a CPU."""

    def run(self, inputs: Mapping[str, NDArray[Any]], output: NDArray[np.float32]) -> None:
        # The output is copied, not bound as on CUDA: for a single text, binding its memory takes longer.
        try:
            output[:] = self.session.run([self._output], dict(inputs))[0]
        except Exception as error:  # onnxruntime raises a dozen types that share no base below Exception
            raise ModelError(
                f"onnxruntime {onnxruntime.__version__} cannot run the model on these texts: {error_summary(error)}",
                "Export the model again with this installation: `es-sbert export MODEL -o BUNDLE`.",
            ) from error


class OnnxCpuModel(CompiledModel):
    """An ONNX file that onnxruntime runs on a CPU.

    Args:
        path: The file.
        threads: Number of concurrent batches; by default one for each physical core.
    """

    # Small, so that batches stay in the caches and have little padding (benchmarks.encode_peers --budgets).
    batch_tokens = 512
    # Larger windows need less padding but delay the first vector; beyond this size, little is gained.
    window = 4096

    def __init__(self, path: Path, threads: int | None = None) -> None:
        self._path = path
        self.threads = threads or available_cores()
        self.session_threads = share_sessions(path, self.threads)

    def open_session(self, *, short: bool = False) -> Session:
        return OnnxCpuSession(open_session(self._path, Device("cpu")))


class OnnxCudaSession(_OnnxSession):
    """An onnxruntime session on a GPU."""

    def __init__(self, session: onnxruntime.InferenceSession, device: Device) -> None:
        super().__init__(session)
        self._device = device

    def run(self, inputs: Mapping[str, NDArray[Any]], output: NDArray[np.float32]) -> None:
        try:
            binding = self.session.io_binding()
            for name, values in inputs.items():
                binding.bind_cpu_input(name, values)
            binding.bind_output(self._output, "cpu", 0, np.float32, output.shape, output.ctypes.data)
            self.session.run_with_iobinding(binding)
        except Exception as error:  # onnxruntime's exceptions have no common base
            raise device_error(self._device, error) from error


class OnnxCudaModel(CompiledModel):
    """An ONNX file that onnxruntime runs on a GPU.

    Args:
        path: The file.
        device: The GPU.
        threads: Number of concurrent batches; by default two.
    """

    has_short_sessions = True
    # A GPU needs large batches, and padding costs it almost nothing.
    batch_tokens = 65_536
    # Large enough for several batches per worker.
    window = 32_768

    def __init__(self, path: Path, device: Device, threads: int | None = None) -> None:
        self._path = path
        self._device = device
        self.threads = threads or CUDA_WORKERS
        self.session_threads = share_sessions(path, self.threads)

    def open_session(self, *, short: bool = False) -> Session:
        return OnnxCudaSession(open_session(self._path, self._device, short=short), self._device)

    @classmethod
    def length_multiple(cls, longest: int, texts: int) -> int:
        return LENGTH_MULTIPLE

    @classmethod
    def batch_limits(cls, tokens: int | None = None) -> BatchLimits:
        tokens = tokens or cls.batch_tokens
        return BatchLimits(2 * tokens, tokens)
