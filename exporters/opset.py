"""Graphs for runtimes that read older operator sets."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper, numpy_helper

from es_sbert.errors import UnsupportedArchitecture
from es_sbert.exporters.graph import CONTRIB

# Operators of onnxruntime that our fp32 graphs for CPUs use, and that onnxruntime 1.16 has as later ones have them.
_CONTRIBUTED = frozenset({"FastGelu", "FusedMatMul"})


def lower_opset(graph: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The same graph in an older operator set: Gelu (20) in operators that are older, all else as it is.

    onnx's own converter has no way back from Gelu.

    Args:
        graph: It is changed.
        opset: From 17 on, which brought LayerNormalization.

    Raises:
        UnsupportedArchitecture: it uses an operator that the older set lacks or defines in another way, or one of
            onnxruntime's own that older ones may lack.
    """
    nodes: list[onnx.NodeProto] = []
    for node in graph.graph.node:
        nodes += _gelu(node) if node.op_type == "Gelu" and not node.domain else [node]
    current = next(entry.version for entry in graph.opset_import if not entry.domain)
    for node in nodes:
        if not (_same(node.op_type, current, opset) if not node.domain else _contributed(node)):
            raise UnsupportedArchitecture(
                f"the graph of {graph.graph.name} uses {node.op_type}, which opset {opset} has not or has otherwise",
                "Let the gateway make the vectors of this model: es-sbert serve.",
            )
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    graph.graph.initializer.extend(tensor for tensor in _GELU_CONSTANTS if tensor.name in used)
    for entry in graph.opset_import:
        if not entry.domain:
            entry.version = opset
    return graph


def _contributed(node: onnx.NodeProto) -> bool:
    return node.domain == CONTRIB and node.op_type in _CONTRIBUTED


def _same(operator: str, current: int, older: int) -> bool:
    """Whether an operator is defined alike in both sets."""
    try:
        return bool(
            onnx.defs.get_schema(operator, older).since_version == onnx.defs.get_schema(operator, current).since_version
        )
    except onnx.defs.SchemaError:
        return False


_GELU_CONSTANTS = [
    numpy_helper.from_array(np.array(value, dtype=np.float32), f"gelu_{name}")
    for name, value in {
        "half": 0.5, "one": 1.0, "root_half": math.sqrt(0.5), "cubic": 0.044715, "tanh": math.sqrt(2 / math.pi),
    }.items()
]  # fmt: skip


def _gelu(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """x Φ(x), by erf or by its approximation with tanh (Hendrycks and Gimpel 2016), as ONNX defines Gelu."""
    x, name = node.input[0], node.output[0]
    step = [f"{name}_gelu_{number}" for number in range(5)]
    make = helper.make_node
    approximate = next((helper.get_attribute_value(entry) for entry in node.attribute), b"none")
    if approximate == b"none":
        nodes = [make("Mul", [x, "gelu_root_half"], [step[0]]), make("Erf", [step[0]], [step[1]])]
    else:
        nodes = [
            make("Mul", [x, x], [f"{name}_gelu_square"]),
            make("Mul", [f"{name}_gelu_square", x], [f"{name}_gelu_cube"]),
            make("Mul", [f"{name}_gelu_cube", "gelu_cubic"], [f"{name}_gelu_bend"]),
            make("Add", [x, f"{name}_gelu_bend"], [f"{name}_gelu_sum"]),
            make("Mul", [f"{name}_gelu_sum", "gelu_tanh"], [step[0]]),
            make("Tanh", [step[0]], [step[1]]),
        ]
    return [
        *nodes,
        make("Add", [step[1], "gelu_one"], [step[2]]),
        make("Mul", [x, step[2]], [step[3]]),
        make("Mul", [step[3], "gelu_half"], [name]),
    ]
