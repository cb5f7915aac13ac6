"""Who is compared: es-sbert with each runtime and precision, and the libraries that a user could choose instead."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.encode_peers.environments import (
    FASTEMBED,
    ONNXRUNTIME,
    SENTENCE_TRANSFORMERS,
    SENTENCE_TRANSFORMERS_ONNX,
    SENTENCE_TRANSFORMERS_OPENVINO,
    Environment,
)

AUTO = "es-sbert auto"
REFERENCE = "sentence-transformers, torch fp32"

RUNTIMES = ("onnxruntime", "openvino")
# Precisions of each runtime on a CPU.
_PRECISIONS = {"onnxruntime": ("fp32", "int8"), "openvino": ("fp32", "bf16", "int8")}


@dataclass(frozen=True)
class PreparedModel:
    """A model folder that a library writes once, with an ONNX or OpenVINO file.

    Attributes:
        name: Of the folder.
        environment: The one that writes it.
        library: Of `worker.LIBRARIES`.
        options: Of the library's `prepare`.
    """

    name: str
    environment: Environment
    library: str
    options: dict[str, Any]

    @property
    def key(self) -> str:
        """Name and a hash of environment and options."""
        text = json.dumps([self.environment.key, self.options], sort_keys=True)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Contender:
    """A library with settings.

    Attributes:
        label: In the tables.
        library: Of `worker.LIBRARIES`.
        options: Of the library; for es-sbert, arguments of `Encoder`.
        environment: Where it runs; None for es-sbert, which runs where the benchmark does.
        prepared: The model folder that it loads instead of the original one.
    """

    label: str
    library: str
    options: dict[str, Any] = field(default_factory=dict)
    environment: Environment | None = None
    prepared: PreparedModel | None = None

    @property
    def ours(self) -> bool:
        """Whether this is es-sbert."""
        return self.environment is None


def own_contenders(runtimes: Sequence[str] = RUNTIMES) -> list[Contender]:
    """es-sbert `auto`, and each runtime and precision.

    Args:
        runtimes: Values of `Encoder`'s argument.
    """
    options: dict[str, dict[str, Any]] = {AUTO: {}}
    for runtime in runtimes:
        for precision in _PRECISIONS[runtime]:
            options[f"es-sbert {runtime} {precision}"] = {"runtime": runtime, "precision": precision}
    return [Contender(label, "es-sbert", arguments) for label, arguments in options.items()]


def peer_contenders(instructions: str, calibration: str) -> list[Contender]:
    """The libraries that a user could choose instead.

    Args:
        instructions: Preset of the ONNX file's int8 quantization, by `processor.onnx_instructions`.
        calibration: Folder of the texts by which NNCF chooses scales.
    """
    library = "sentence-transformers"
    onnx = PreparedModel("onnx", SENTENCE_TRANSFORMERS_ONNX, library, {"backend": "onnx"})
    onnx_int8 = PreparedModel(
        "onnx-int8", SENTENCE_TRANSFORMERS_ONNX, library, {"backend": "onnx", "instructions": instructions}
    )
    openvino = PreparedModel("openvino", SENTENCE_TRANSFORMERS_OPENVINO, library, {"backend": "openvino"})
    openvino_int8 = PreparedModel(
        "openvino-int8", SENTENCE_TRANSFORMERS_OPENVINO, library, {"backend": "openvino", "calibration": calibration}
    )
    torch, with_onnx, with_openvino = (
        SENTENCE_TRANSFORMERS,
        SENTENCE_TRANSFORMERS_ONNX,
        SENTENCE_TRANSFORMERS_OPENVINO,
    )
    onnx_file = {"backend": "onnx", "file": "onnx/model.onnx"}
    onnx_int8_file = {"backend": "onnx", "file": f"onnx/model_qint8_{instructions}.onnx"}
    openvino_file = {"backend": "openvino", "file": "openvino/openvino_model.xml"}
    openvino_int8_file = {"backend": "openvino", "file": "openvino/openvino_model_qint8_quantized.xml"}
    return [
        Contender(REFERENCE, library, {"backend": "torch", "dtype": "float32"}, torch),
        Contender(f"{library}, torch bf16", library, {"backend": "torch", "dtype": "bfloat16"}, torch),
        Contender(f"{library}, ONNX fp32", library, onnx_file, with_onnx, onnx),
        Contender(f"{library}, ONNX int8 ({instructions})", library, onnx_int8_file, with_onnx, onnx_int8),
        Contender(f"{library}, OpenVINO", library, openvino_file, with_openvino, openvino),
        Contender(f"{library}, OpenVINO int8 (NNCF)", library, openvino_int8_file, with_openvino, openvino_int8),
        Contender("fastembed, ONNX fp32", "fastembed", {}, FASTEMBED, onnx),
        Contender("onnxruntime, plain loop, ONNX fp32", "onnxruntime", {}, ONNXRUNTIME, onnx),
    ]
