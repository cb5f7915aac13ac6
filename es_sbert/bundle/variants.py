"""The variants in which a model runs: `Variant`, its `Runtime` and its `Precision`."""

from __future__ import annotations

from enum import StrEnum


class Precision(StrEnum):
    """Number format of a variant's matrix products; sentence vectors are always float32."""

    FP32 = "fp32"
    INT8 = "int8"
    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def device(self) -> str:
        """Device for which variants of this precision are intended: `cpu` or `cuda`."""
        return "cuda" if self is Precision.FP16 else "cpu"


class Runtime(StrEnum):
    """The library that runs a variant."""

    ONNXRUNTIME = "onnxruntime"
    OPENVINO = "openvino"


class Variant(StrEnum):
    """A variant of a model. The values are the names used in the manifest and on the command line."""

    FP32 = "fp32"
    INT8 = "int8"
    FP16 = "fp16"
    OPENVINO_FP32 = "openvino-fp32"
    OPENVINO_BF16 = "openvino-bf16"
    OPENVINO_INT8 = "openvino-int8"

    @property
    def runtime(self) -> Runtime:
        """The library that runs the variant."""
        return Runtime.OPENVINO if self.startswith(Runtime.OPENVINO) else Runtime.ONNXRUNTIME

    @property
    def precision(self) -> Precision:
        """Number format of the variant's matrix products."""
        return Precision(self.removeprefix(f"{Runtime.OPENVINO}-"))

    @property
    def graph(self) -> str:
        """Name of the graph, in `model_GRAPH.onnx`.

        OpenVINO uses the fp32 graph for bf16 too: it rounds the weights when it opens the file.
        """
        if self is Variant.OPENVINO_INT8:
            return "openvino_int8"
        return Precision.FP32 if self.runtime is Runtime.OPENVINO else self.precision
