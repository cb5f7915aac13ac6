"""Compile a graph with the runtime of its variant."""

from __future__ import annotations

from pathlib import Path

from es_sbert.bundle.variants import Precision, Runtime
from es_sbert.runtime.compiled_model import CompiledModel
from es_sbert.runtime.device import Device
from es_sbert.runtime.onnx_session import OnnxCpuModel, OnnxCudaModel


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
