"""Join the graphs of a Router's routes to one graph, of which each batch runs one route."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

from es_sbert import __version__
from es_sbert.bundle.sentence_model import SentenceModel
from es_sbert.bundle.variants import Precision
from es_sbert.encoder.batching import ROUTE_INPUT
from es_sbert.exporters.graph_builder import IR_VERSION, inner_graphs
from es_sbert.exporters.rotary_weights import RotaryWeights
from es_sbert.exporters.transformer_weights import StaticWeights, TransformerWeights

_OUTPUT = "sentence_embedding"


# The weights of a network whose graph is built.
EncoderWeights = TransformerWeights | RotaryWeights | StaticWeights


@dataclass(frozen=True)
class RouteWeights:
    """The weights of each route of a model, in the order of its `routes`."""

    routes: tuple[EncoderWeights, ...]


ModelWeights = EncoderWeights | RouteWeights


def build_routed_graph(
    model: SentenceModel, builds: Sequence[Callable[[Precision], onnx.ModelProto]], precision: Precision
) -> onnx.ModelProto:
    """Build the graph of a model with a Router.

    Its inputs and its output are those of the routes' graphs, and a bool `is_route_N` for each route after the first:
    whether the texts of the batch take it.

    Args:
        model: The model.
        builds: What makes the graph of each route.
        precision: fp32 or int8.
    """
    graphs = [build(precision) for build in builds]
    inputs = {value.name: value for graph in graphs for value in graph.graph.input}
    output = graphs[0].graph.output[0]
    branch = _as_branch(graphs[0].graph, 0, inputs)
    for number, graph in enumerate(graphs[1:], 1):
        value = f"{_OUTPUT}_by_{number}"
        node = helper.make_node(
            "If",
            [f"{ROUTE_INPUT}{number}"],
            [value],
            then_branch=_as_branch(graph.graph, number, inputs),
            else_branch=branch,
            name=value,
        )
        branch = helper.make_graph([node], value, [], [_renamed(output, value)])
    nodes = [*branch.node, helper.make_node("Identity", [branch.output[0].name], [_OUTPUT], name=_OUTPUT)]
    flags = [
        helper.make_tensor_value_info(f"{ROUTE_INPUT}{number}", onnx.TensorProto.BOOL, ())
        for number in range(1, len(graphs))
    ]
    domains = {opset.domain: opset for graph in graphs for opset in graph.opset_import}
    joined = helper.make_graph(nodes, model.name, [*inputs.values(), *flags], [output], [*branch.initializer])
    return helper.make_model(
        joined,
        opset_imports=list(domains.values()),
        ir_version=IR_VERSION,
        producer_name="es-sbert",
        producer_version=__version__,
    )


def _as_branch(graph: onnx.GraphProto, number: int, inputs: dict[str, onnx.ValueInfoProto]) -> onnx.GraphProto:
    """A graph as a branch, which reads the inputs of the joined graph; other values get names of their own."""

    def name(value: str) -> str:
        return value if not value or value in inputs else f"route_{number}/{value}"

    nodes = []
    for node in graph.node:
        copied = onnx.NodeProto()
        copied.CopyFrom(node)
        copied.name = name(node.name)
        del copied.input[:], copied.output[:]
        copied.input.extend(map(name, node.input))
        copied.output.extend(map(name, node.output))
        for inner in inner_graphs(copied):
            _rename_values(inner, name)
        nodes.append(copied)
    tensors = []
    for tensor in graph.initializer:
        tensor.name = name(tensor.name)
        tensors.append(tensor)
    output = _renamed(graph.output[0], name(graph.output[0].name))
    return helper.make_graph(nodes, f"route_{number}", [], [output], tensors)


def _rename_values(graph: onnx.GraphProto, name: Callable[[str], str]) -> None:
    """Rename all values in a graph inside a node (If, Loop, Scan), which may read those around it."""
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = list(map(name, names))
        for inner in inner_graphs(node):
            _rename_values(inner, name)
    for value in [*graph.input, *graph.output, *graph.value_info, *graph.initializer]:
        value.name = name(value.name)


def _renamed(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    copied = onnx.ValueInfoProto()
    copied.CopyFrom(value)
    copied.name = name
    return copied
