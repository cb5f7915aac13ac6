"""Sessions on a card that run there, whole, or say why they do not."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from es_sbert.encoder.cuda import load_libraries, provider_problem
from es_sbert.encoder.cuda_errors import device_error, libraries_error
from es_sbert.encoder.device import Device
from es_sbert.encoder.hardware import compute_capability
from es_sbert.encoder.packing import BatchInputs
from es_sbert.errors import DeviceError

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
# Bits of the option sdpa_kernel (AttentionBackend): FlashAttention 1, memory-efficient 2, TensorRT's fused 4. Left out
# is cuDNN's 8, which keeps a plan for every shape that it has met.
_ATTENTION, _EFFICIENT_ATTENTION = "7", "2"
_ERRORS_ONLY, _FATAL_ONLY = 3, 4
# onnxruntime's exceptions of a file that it takes on no device.
_INVALID = ("InvalidGraph", "InvalidProtobuf", "NoModel", "NoSuchFile")
# Operators that compute shapes and indices, and pass them on.
_SHAPE_OPERATORS = """
    Add And Cast Concat Constant ConstantOfShape Div Equal Expand Flatten Gather GatherElements Greater GreaterOrEqual
    Identity If Less LessOrEqual Loop Max Min Mod Mul Neg NonZero Not Or Pad Range ReduceMax ReduceMin ReduceProd
    ReduceSum Reshape Scan ScatterElements ScatterND Shape Size Slice Split Squeeze Sub Tile Transpose Trilu Unsqueeze
    Where
"""


def open_on_cuda(
    path: Path, device: Device, options: onnxruntime.SessionOptions, *, short: bool = False
) -> onnxruntime.InferenceSession:
    """Open an ONNX file on a card and embed one text as a trial.

    A missing cuDNN, a card for which onnxruntime has no code and a lack of memory show only when the graph runs.

    Args:
        options: Of the session, changed here.
        short: As for `es_sbert.encoder.session.open_session`.

    Raises:
        DeviceError: the graph does not run on the card, or a part of it would run on the CPU.
        Exception: whatever onnxruntime raises on a file that it takes on no device.
    """
    libraries = load_libraries()
    problem = provider_problem()
    if problem is not None:
        raise libraries_error(device, libraries, problem)
    onnxruntime.set_default_logger_severity(_ERRORS_ONLY)  # it warns of every CUDA session that it is no plugin
    options.log_severity_level = _FATAL_ONLY  # what fails is raised, and becomes one of our errors
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    providers = [(_CUDA, cuda_options(device, short=short)), _CPU]  # the CPU takes the few nodes that compute shapes
    try:
        # onnxruntime's fallback would print to stdout and go on elsewhere.
        session = onnxruntime.InferenceSession(str(path), options, providers=providers, enable_fallback=0)
    except Exception as error:  # onnxruntime raises a dozen types that share no base below Exception
        if type(error).__name__ in _INVALID:
            raise
        raise device_error(device, error, compute_capability(device.number)) from error
    # Where the CUDA provider cannot start, onnxruntime takes the CPU with a log line only: what runs is read back.
    if session.get_providers()[0] != _CUDA:
        raise DeviceError(
            f"asked for {device}, but the session runs on {session.get_providers()[0]}",
            f"Check `es-sbert doctor --device {device}`; --device cpu runs without.",
        )
    refused = computing_operators(operators_on_cpu(session))
    if refused:
        raise DeviceError(
            f"{path} would run on the CPU in part: CUDA has no kernel for its {', '.join(refused)}",
            "Export the model again with this installation (es-sbert export MODEL -o BUNDLE), or use --device cpu.",
        )
    try:
        session.run(None, trial_feed(session))
    except Exception as error:
        raise device_error(device, error, compute_capability(device.number)) from error
    return session


def cuda_options(device: Device, *, short: bool = False) -> dict[str, Any]:
    """Options of the CUDA provider for one card."""
    return {
        "device_id": device.number,
        # Residuals are summed in fp32, which fp16 models need to stay near their originals.
        "enable_skip_layer_norm_strict_mode": "1",
        # TF32 keeps 10 bits of fp32's 23: an fp32 variant would miss the bar that it was checked against.
        "use_tf32": "0",
        "sdpa_kernel": _EFFICIENT_ATTENTION if short else _ATTENTION,
    }


def operators_on_cpu(session: onnxruntime.InferenceSession) -> list[str]:
    """Types of the operators that a session runs on the CPU; none where onnxruntime is too old to tell."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return []
    parts = session.get_provider_graph_assignment_info()
    return [node.op_type for part in parts if part.ep_name == _CPU for node in part.get_nodes()]


def computing_operators(operators: Iterable[str]) -> list[str]:
    """Those of some operators that do more than compute shapes and indices, each once, sorted.

    onnxruntime itself puts shapes and indices on the CPU, where they are needed to allocate memory. Which numbers a
    node works on, it does not tell; but the operators of shapes have CUDA kernels for vectors.
    """
    return sorted(set(operators) - set(_SHAPE_OPERATORS.split()))


def trial_feed(session: onnxruntime.InferenceSession) -> dict[str, NDArray[Any]]:
    """The inputs of a graph for one text of two tokens, or one pair of them."""
    inputs = BatchInputs(session)
    if inputs.packed:
        return inputs([np.zeros(2, dtype=np.int64)])
    return {
        node.name: np.full((1, 2), node.name == "attention_mask", dtype=np.int64)  # (batch, tokens)
        for node in session.get_inputs()
    }
