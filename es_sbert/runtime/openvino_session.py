"""Graphs that OpenVINO runs on a CPU (`OpenVinoModel`).

OpenVINO fuses a product with the operators after it in one pass over memory, and has kernels for processors with AMX.
The package openvino is used, not onnxruntime's execution provider, whose package replaces the module onnxruntime.
Compiled graphs are cached: opening one takes a fraction of the time of compiling it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import math
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.bundle import remembered_file_hash
from es_sbert.bundle.file_hashes import remembered_hash
from es_sbert.bundle.variants import Precision
from es_sbert.config import cache_folder
from es_sbert.errors import BundleInvalid, DeviceError, ModelError, UsageError, error_summary
from es_sbert.filesystem import open_output
from es_sbert.forks import leave_to_parent, renew_after_fork
from es_sbert.installation import install_command
from es_sbert.lazy_names import hidden_modules
from es_sbert.messages import setting
from es_sbert.runtime.batching import POOLING_MASK
from es_sbert.runtime.compiled_model import CompiledModel, Session
from es_sbert.runtime.device import Device, available_cores, describe_machine, has_bf16_products, has_int8_products
from es_sbert.runtime.onnx_runtime import onnxruntime
from es_sbert.runtime.onnx_session import open_session as open_onnx_session

# OpenVINO's names of the number formats, as the option takes them and as a compiled model reports them.
# The int8 parts of the graph stay int8. The rest is float32: with bf16, long texts would be faster, but a vector would
# depend far more on the other texts of its batch.
_PRECISIONS = {
    Precision.FP32: ("f32", "float"),
    Precision.BF16: ("bf16", "bfloat16"),
    Precision.INT8: ("f32", "float"),
}

# The first batch of a shape takes about a fifth longer than the next ones, so longer texts, which have more different
# lengths, are padded by up to 6 %. Maximum tokens → multiple for the padded length.
_LENGTH_MULTIPLES = ((32, 1), (64, 4), (128, 8), (math.inf, 16))
# The first text of a length, alone in its batch, takes several times as long as the next ones, and padding costs almost
# nothing. Batches of at most `_FEW_TEXTS` texts, such as queries, are padded to multiples of `_FEW_TEXTS_MULTIPLE`.
_FEW_TEXTS, _FEW_TEXTS_MULTIPLE = 8, 8


def has_openvino() -> bool:
    """Whether the package openvino is installed; it may still fail to load."""
    return importlib.util.find_spec("openvino") is not None


def openvino_problem(precision: Precision) -> DeviceError | None:
    """Return the error to raise if OpenVINO cannot run a precision on this machine; None if it can."""
    if not has_openvino():
        install = install_command("openvino")
        return DeviceError(
            "OpenVINO is not installed", f"Install it ({install}), or use {setting('runtime', 'onnxruntime')}."
        )
    if (problem := inherited_problem()) is not None:
        return problem
    try:
        _load_core()
    except DeviceError as error:
        return error
    if precision is Precision.BF16 and not has_bf16_products():
        return DeviceError(
            "this processor has no bf16 products (AMX or AVX512-BF16)",
            f"Use {setting('precision', 'auto')}, fp32 or int8.",
        ).about("precision")
    if precision is Precision.INT8 and not has_int8_products():
        # Older processors add products in 16 bits, which silently overflow.
        return DeviceError(
            "this processor has no int8 products (VNNI or AMX)", f"Use {setting('precision', 'auto')} or fp32."
        ).about("precision")
    return None


_loading = threading.Lock()


@cache
def _load_core() -> tuple[Any, str]:
    """Load OpenVINO; return its entry point and its release.

    Raises:
        DeviceError: the package is broken.
    """
    try:
        with _loading, hidden_modules("openvino_telemetry"):  # no setting of OpenVINO turns its reports off
            import openvino

            # Fill OpenVINO's tables of types under the lock. It fills them at their first use while it blocks Python:
            # two threads that do so at once would deadlock.
            openvino.Type.f32.to_dtype()
            openvino.Tensor(np.zeros(1, dtype=np.int64))
        core = openvino.Core()
        renew_after_fork(core, _inherit)
        return core, openvino.__version__.partition("-")[0]
    except Exception as error:  # a missing library is an OSError or ImportError, a missing plug-in a RuntimeError
        raise DeviceError(
            f"OpenVINO does not load: {error_summary(error)}",
            f"Install it again ({install_command('--force-reinstall', 'openvino')}), or use "
            f"{setting('runtime', 'onnxruntime')}.",
        ).about("runtime", "openvino") from error


_is_inherited = False  # whether this process was forked from one that had loaded OpenVINO


def inherited_problem() -> DeviceError | None:
    """Return the error to raise if this process was forked from one that had loaded OpenVINO; None otherwise.

    OpenVINO hands work to threads of the parent, which do not exist here, and waits for ever.
    """
    if not _is_inherited:
        return None
    return DeviceError(
        "OpenVINO was loaded before this process was forked, and cannot be used in it",
        "Open models after the fork (gunicorn without preloading), start processes with `spawn`, or use "
        f"{setting('runtime', 'onnxruntime')}.",
    )


def _inherit(core: object) -> None:
    global _is_inherited
    _is_inherited = True
    leave_to_parent(core)


class OpenVinoSession(Session):
    """An inference request of a model that OpenVINO has compiled."""

    properties: Mapping[str, str] = {}

    def __init__(self, request: Any, input_names: tuple[str, ...], provider: str) -> None:
        self._request = request
        self.input_names = input_names
        self.provider = provider

    def run(self, inputs: Mapping[str, NDArray[Any]], output: NDArray[np.float32]) -> None:
        try:
            # Without share_outputs, each result would be copied twice.
            results = self._request.infer(dict(inputs), share_inputs=True, share_outputs=True)
        except RuntimeError as error:
            raise _run_error(error_summary(error)) from error
        if results[0].shape != output.shape:
            # OpenVINO does not reject contradictory inputs, and reads beyond them.
            raise _run_error(f"its output has the shape {results[0].shape} instead of {output.shape}")
        output[:] = results[0]


def _run_error(reason: str) -> ModelError:
    return ModelError(
        f"OpenVINO cannot run the model on these texts: {reason}", f"Use {setting('runtime', 'onnxruntime')}."
    )


def _compile(core: Any, path: Path, settings: Mapping[str, Any]) -> Any:
    """Compile an ONNX file, or load its compiled form from the cache.

    Raises:
        RuntimeError: OpenVINO does not accept the file.
        DeviceError: the results of the compiled model differ from those of onnxruntime.
    """
    # What is kept is the network before it is spread over streams, so any number of threads opens the same file.
    place = compiled_path(path, settings["INFERENCE_PRECISION_HINT"])
    kept = None if place is None else read_compiled(place)
    if kept is not None:
        import openvino

        # If OpenVINO refuses the cached form, the file is compiled again.
        with contextlib.suppress(RuntimeError):
            return core.import_model(openvino.Tensor(kept), "CPU", settings)
    model = core.compile_model(core.read_model(str(path)), "CPU", settings)
    _check_results(model, path)
    if place is not None:
        keep_compiled(place, model.export_model().getbuffer())
    return model


# Rounding to bf16 and int8 causes differences of at most 0.1; a wrongly compiled graph differed by 0.9.
_LARGEST_DIFFERENCE = 0.3
# Texts and tokens of the batches that are compared.
_COMPARED_SHAPES = ((1, 4), (3, 7))


def _check_results(model: Any, path: Path) -> None:
    """Compare the results of a model compiled on this machine with those of onnxruntime.

    A bundle was checked on the machine that exported it. OpenVINO 2025.4 passes that check on processors with AMX, but
    computes different vectors (a cosine of 0.57) in bf16 on AMD EPYC.

    Raises:
        DeviceError: the results differ.
    """
    session = open_onnx_session(path, Device("cpu"))
    request = model.create_infer_request()
    for texts, tokens in _COMPARED_SHAPES:
        inputs = _sample_inputs(session, texts, tokens)
        [expected] = session.run(None, inputs)
        actual = request.infer(inputs)[0]
        difference = np.linalg.norm(actual - expected) / max(float(np.linalg.norm(expected)), 1e-3)
        if not difference <= _LARGEST_DIFFERENCE:  # also true for NaN
            _, version = _load_core()
            raise DeviceError(
                f"OpenVINO {version} computes different results than onnxruntime on this processor: they differ by "
                f"{difference:.0%}",
                f"Install its newest release ({install_command('--upgrade', 'openvino')}), or use "
                f"{setting('runtime', 'onnxruntime')}.",
            ).about("runtime", "openvino")


def _sample_inputs(session: onnxruntime.InferenceSession, texts: int, tokens: int) -> dict[str, NDArray[Any]]:
    """Create inputs for any graph: a few ids that every vocabulary has, and some padding."""
    ids = np.random.default_rng(0).integers(1, 8, size=(texts, tokens))
    mask = np.ones_like(ids)
    mask[1:, tokens // 2 :] = 0
    inputs: dict[str, NDArray[Any]] = {"input_ids": ids, "attention_mask": mask, POOLING_MASK: mask.astype(np.int32)}
    # Token types are 0.
    zeros: dict[str, NDArray[Any]] = {"tensor(int64)": np.zeros_like(ids), "tensor(bool)": np.array(False)}
    return {
        value.name: inputs[value.name] if value.name in inputs else zeros[value.type] for value in session.get_inputs()
    }


class OpenVinoModel(CompiledModel):
    """An ONNX file that OpenVINO runs on a CPU.

    Args:
        path: The file, a graph with standard ONNX operators only.
        precision: Number format of products: fp32, bf16 or int8.
        threads: Number of concurrent batches; by default one for each physical core.

    Raises:
        DeviceError: OpenVINO is not installed, does not load, computes different results than onnxruntime, or would
            compute in a different precision.
        BundleInvalid: OpenVINO does not accept the file.
    """

    # Fewer, larger batches than with onnxruntime: fused operators use the caches less often.
    batch_tokens = 1024
    window = 4096

    def __init__(self, path: Path, precision: Precision, threads: int | None = None) -> None:
        if (problem := openvino_problem(precision)) is not None:
            raise problem
        self.threads = threads or available_cores()
        self.session_threads = (1,) * self.threads
        option, reported = _PRECISIONS[precision]
        core, version = _load_core()
        settings = {
            "INFERENCE_PRECISION_HINT": option,
            # One thread per batch, as with onnxruntime.
            "NUM_STREAMS": str(self.threads),
            "INFERENCE_NUM_THREADS": self.threads,
            # Several processes would otherwise be pinned to the same cores.
            "ENABLE_CPU_PINNING": False,
        }
        try:
            self._model = _compile(core, path, settings)
        except RuntimeError as error:
            raise BundleInvalid(
                f"OpenVINO {version} does not accept {path}: {error_summary(error)}",
                f"Use {setting('runtime', 'onnxruntime')}, or export the model again with this installation: "
                "`es-sbert export MODEL -o BUNDLE`.",
            ) from error
        actual = self._model.get_property("INFERENCE_PRECISION_HINT").to_string()
        if actual not in (option, reported):
            raise DeviceError(
                f"OpenVINO {version} computes in {actual} on this processor, not in {precision}",
                f"Use {setting('precision', 'auto')} or fp32.",
            ).about("precision", precision)
        self._input_names = tuple(port.get_any_name() for port in self._model.inputs)
        self._provider = f"OpenVINO {version}"

    @classmethod
    def length_multiple(cls, longest: int, texts: int) -> int:
        multiple = next(multiple for length, multiple in _LENGTH_MULTIPLES if longest <= length)
        return max(multiple, _FEW_TEXTS_MULTIPLE) if texts <= _FEW_TEXTS else multiple

    def open_session(self, *, short: bool = False) -> Session:
        return OpenVinoSession(self._model.create_infer_request(), self._input_names, self._provider)


# Maximum bytes of all compiled models together; each is as large as its weights.
_MAX_BYTES = 2 << 30
_DIGEST_BYTES = hashlib.sha256().digest_size


def compiled_path(path: Path, precision: str) -> Path | None:
    """Return the path in the cache for a model compiled in this precision, on this machine and these releases.

    Args:
        path: The model's file.
        precision: OpenVINO's name of the number format.

    Returns:
        The path; None if there is no cache.
    """
    try:
        folder = cache_folder() / "compiled"
    except UsageError:
        return None
    decisive = json.dumps([remembered_file_hash(path), precision, describe_machine()], sort_keys=True)
    return folder / f"{hashlib.sha256(decisive.encode()).hexdigest()[:32]}.blob"


def read_compiled(place: Path) -> NDArray[np.uint8] | None:
    """Map a compiled model into memory; None if the file is missing, incomplete or damaged."""
    try:
        content = np.memmap(place, dtype=np.uint8, mode="c")  # "c": OpenVINO takes no read-only memory
    except (OSError, ValueError):  # an empty file cannot be mapped
        return None
    kept = content[-_DIGEST_BYTES:].tobytes().hex()
    blob = content[:-_DIGEST_BYTES]
    actual = remembered_hash("compiled", [place], lambda: hashlib.sha256(blob.data).hexdigest())
    return blob if kept == actual else None


def keep_compiled(place: Path, compiled: memoryview) -> None:
    """Write a compiled model to the cache, and remove the oldest ones beyond 2 GiB in total.

    A model of more than 1 GiB is not kept. If the cache cannot be written, the error is ignored.

    Args:
        place: Path from `compiled_path`.
        compiled: The model's bytes.
    """
    if len(compiled) > _MAX_BYTES // 2:
        return
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with open_output(place) as file:
            file.write(compiled)
            file.write(hashlib.sha256(compiled).digest())
        newest_first = sorted(place.parent.glob("*.blob"), key=lambda blob: blob.stat().st_mtime, reverse=True)
        total = 0
        for blob in newest_first:
            total += blob.stat().st_size
            if total > _MAX_BYTES:
                blob.unlink(missing_ok=True)
