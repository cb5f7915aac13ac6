"""A small graph builder on top of onnx.helper: ordered nodes, named initializers, contributed operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from es_sbert.version import __version__

# Operators of onnxruntime that are not ONNX's (github.com/microsoft/onnxruntime, docs/ContribOperators.md).
CONTRIB = "com.microsoft"

# Opset 20 introduced Gelu, 17 LayerNormalization. Every onnxruntime since 1.17 reads opset 20 and IR version 9.
OPSET = 20
IR_VERSION = 9

INT64: int = TensorProto.INT64
FLOAT: int = TensorProto.FLOAT
FLOAT16: int = TensorProto.FLOAT16
INT32: int = TensorProto.INT32

# Protobuf is limited to 2 GiB; a graph with more bytes of weights keeps them in a file next to it.
EXTERNAL_DATA_FROM = 1_900_000_000


class GraphBuilder:
    """An ONNX graph under construction. Values are identified by name, as in ONNX itself."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: dict[str, NDArray[Any]] = {}
        self._domains: set[str] = set()
        self._inputs: dict[str, tuple[str, int, Sequence[str | int]]] = {}

    def input(self, name: str, dtype: int, shape: Sequence[str | int]) -> str:
        """Add an input of the graph, besides those that `model` is called with, and return its name."""
        self._inputs[name] = (name, dtype, shape)
        return name

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Add an initializer and return its name; a second one of the same name must be equal and is shared."""
        known = self._constants.setdefault(name, value)
        if known is not value and not (known.dtype == value.dtype and np.array_equal(known, value)):
            raise ValueError(f"two different constants are called {name}")
        return name

    def integers(self, *values: int) -> str:
        """Add a one-dimensional int64 constant: axes, shapes, indices."""
        return self.constant("integers_" + "_".join(map(str, values)), np.array(values, dtype=np.int64))

    def scalar(self, value: float) -> str:
        """Add a zero-dimensional float32 constant."""
        return self.constant(f"float32_{value!r}", np.array(value, dtype=np.float32))

    def integer(self, value: int) -> str:
        """Add a zero-dimensional int64 constant."""
        return self.constant(f"integer_{value}", np.array(value, dtype=np.int64))

    def int32(self, value: int) -> str:
        """Add a zero-dimensional int32 constant."""
        return self.constant(f"int32_{value}", np.array(value, dtype=np.int32))

    def add(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output and return that output's name. The empty name omits an optional input."""
        return self.add_many(operator, *inputs, outputs=1, domain=domain, **attributes)[0]

    def add_many(
        self, operator: str, *inputs: str, outputs: int, domain: str = "", **attributes: Any
    ) -> tuple[str, ...]:
        """Add a node with several outputs and return their names."""
        name = f"{operator}_{len(self._nodes)}"
        names = (name,) if outputs == 1 else tuple(f"{name}_{number}" for number in range(outputs))
        self._nodes.append(helper.make_node(operator, inputs, names, name=name, domain=domain, **attributes))
        self._domains.add(domain)
        return names

    def copy(self, node: onnx.NodeProto) -> None:
        """Add a node of another graph unchanged, names included."""
        self._nodes.append(node)
        self._domains.add(node.domain)

    def rename(self, value: str, name: str) -> None:
        """Rename a value to the name of an output of the graph."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=name))

    def model(
        self,
        name: str,
        inputs: Sequence[tuple[str, int, Sequence[str | int]]],
        outputs: Sequence[tuple[str, int, Sequence[str | int]]],
        metadata: Mapping[str, str] | None = None,
    ) -> onnx.ModelProto:
        """Build the finished model.

        Args:
            name: Name of the graph.
            inputs, outputs: (name, element type, shape) with names for dimensions that vary.
            metadata: Properties of the model.
        """
        graph = helper.make_graph(
            self._nodes,
            name,
            [helper.make_tensor_value_info(*entry) for entry in (*inputs, *self._inputs.values())],
            [helper.make_tensor_value_info(*entry) for entry in outputs],
            [numpy_helper.from_array(np.asarray(value, order="C"), key) for key, value in self._constants.items()],
        )
        opsets = [helper.make_opsetid("", OPSET)]
        opsets += [helper.make_opsetid(domain, 1) for domain in sorted(self._domains - {""})]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="es-sbert", producer_version=__version__
        )
        helper.set_model_props(model, dict(metadata or {}))
        return model


def inner_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside a node (If, Loop, Scan)."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _weight_bytes(graph: onnx.GraphProto) -> int:
    """Count the bytes of the constants of a graph and of its branches."""
    branches = (inner for node in graph.node for inner in inner_graphs(node))
    return sum(len(tensor.raw_data) for tensor in graph.initializer) + sum(map(_weight_bytes, branches))


def save_graph(graph: onnx.ModelProto, path: Path) -> None:
    """Write a graph; weights beyond protobuf's limit go to `FILE.data`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    size = _weight_bytes(graph.graph)
    external = size >= EXTERNAL_DATA_FROM
    onnx.save_model(graph, str(path), save_as_external_data=external, location=f"{path.name}.data")
