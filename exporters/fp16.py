"""Convert traced graphs to fp16: fuse attention into one operator, convert weights, and emulate fp16 on the CPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from es_sbert.errors import UnsupportedArchitecture
from es_sbert.exporters.graph_builder import CONTRIB, FLOAT, FLOAT16
from es_sbert.messages import setting

_HEADS_FIRST = [0, 2, 1, 3]
_KEYS_FIRST = [0, 2, 3, 1]


def fuse_attention(model: onnx.ModelProto) -> int:
    """Replace attention that is written out in several operators by a single operator, and drop unused nodes.

    Args:
        model: Float32 graph; modified in place.

    Returns:
        The number of replacements.
    """
    matcher = _AttentionMatcher(model.graph)
    softmaxes = [node for node in model.graph.node if node.op_type == "Softmax"]
    found = dict(filter(None, map(matcher.fuse, softmaxes)))
    nodes = [written for node in model.graph.node for written in found.get(node.output[0], [node])]
    model.graph.value_info.extend(helper.make_tensor_value_info(name, FLOAT, None) for name in found)
    used = _reachable_nodes(nodes, [output.name for output in model.graph.output])
    del model.graph.node[:]
    model.graph.node.extend(used)
    if found and not any(entry.domain == CONTRIB for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(CONTRIB, 1))
    return len(found)


def _fused_nodes(
    inputs: Sequence[str], masks: Sequence[str], heads: int, scale: float, output: str
) -> list[onnx.NodeProto]:
    """Create the nodes that add up the masks, followed by the attention operator.

    Args:
        inputs: Names of queries, keys and values, each (batch, tokens, hidden).
        masks: Names of the values added to the scores, (batch or 1, heads or 1, tokens, tokens).
        heads: Number of heads.
        scale: Factor of the scores.
        output: Name of the result, (batch, tokens, hidden).
    """
    nodes, mask = [], masks[0] if masks else ""
    for number, more in enumerate(masks[1:]):
        total = f"{output}_mask_{number}"
        nodes.append(helper.make_node("Add", [mask, more], [total], name=total))
        mask = total
    # The inputs for bias and padding mask are left empty: biases were added before, and the mask covers padding.
    options: dict[str, Any] = {"name": f"{output}_attention", "domain": CONTRIB, "num_heads": heads, "scale": scale}
    nodes.append(helper.make_node("MultiHeadAttention", [*inputs, "", "", mask], [output], **options))
    return nodes


def _reachable_nodes(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """Return the nodes that outputs depend on, in their original order."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    return kept[::-1]


class _AttentionMatcher:
    """Recognizes attention in a graph by following its edges backwards."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._nodes = list(graph.node)
        self._makers = {name: node for node in self._nodes for name in node.output}
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._users: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in self._nodes:
            for name in node.input:
                self._users[name].append(node)

    def fuse(self, softmax: onnx.NodeProto) -> tuple[str, list[onnx.NodeProto]] | None:
        """Return the output of the attention around a Softmax, and nodes that compute it; None if not recognized."""
        scores, masks = softmax.input[0], []
        while (added := self._producer(scores, "Add")) is not None:
            scores = added.input[0]
            masks.append(added.input[1])
        scores, scale = self._strip_scale(scores)
        product = self._producer(scores, "MatMul")
        mixed = self._user(softmax.output[0], "MatMul")
        turned = None if mixed is None else self._user(mixed.output[0], "Transpose")
        output = None if turned is None or _perm(turned) != _HEADS_FIRST else self._user(turned.output[0], "Reshape")
        if product is None or mixed is None or mixed.input[0] != softmax.output[0] or output is None:
            return None
        query = self._projection(product.input[0], _HEADS_FIRST)
        key = self._projection(product.input[1], _KEYS_FIRST)
        value = self._projection(mixed.input[1], _HEADS_FIRST)
        if query is None or key is None or value is None or len({query[1:], key[1:], value[1:]}) > 1:
            return None
        hidden, size = query[1:]
        if hidden % size:
            return None
        name, inputs = output.output[0], (query[0], key[0], value[0])
        return name, _fused_nodes(inputs, masks[::-1], hidden // size, scale, name)

    def _producer(self, name: str, operator: str) -> onnx.NodeProto | None:
        node = self._makers.get(name)
        return node if node is not None and node.op_type == operator else None

    def _user(self, name: str, operator: str) -> onnx.NodeProto | None:
        """The node with this operator that takes this value as its first input; None unless there is exactly one."""
        users = [node for node in self._users[name] if node.op_type == operator and node.input[0] == name]
        return users[0] if len(users) == 1 else None

    def _constant(self, name: str) -> np.ndarray | None:
        made = self._producer(name, "Constant")
        if made is not None and made.attribute[0].name == "value":
            return np.asarray(numpy_helper.to_array(made.attribute[0].t))
        tensor = self._constants.get(name)
        return None if tensor is None else np.asarray(numpy_helper.to_array(tensor))

    def _strip_scale(self, name: str) -> tuple[str, float]:
        """Return a value before it was multiplied or divided by a number, and the factor (1 without one)."""
        node = self._makers.get(name)
        if node is not None and node.op_type in ("Mul", "Div"):
            number = self._constant(node.input[1])
            if number is not None and number.size == 1:
                factor = float(number.reshape(()))
                return node.input[0], factor if node.op_type == "Mul" else 1 / factor
        return name, 1.0

    def _projection(self, name: str, perm: list[int]) -> tuple[str, int, int] | None:
        """Find the origin of a value (batch, heads, …): name of a value (batch, tokens, hidden), hidden, head size.

        None if the value was made in a different way.
        """
        turned = self._producer(name, "Transpose")
        split = None if turned is None or _perm(turned) != perm else self._producer(turned.input[0], "Reshape")
        if split is None:
            return None
        shape = self._producer(split.input[1], "Concat")
        size = self._constant(shape.input[-1] if shape is not None else split.input[1])
        total = self._producer(split.input[0], "Add")
        constants = [] if total is None else map(self._constant, total.input)
        hidden = next((len(values) for values in constants if values is not None and values.ndim == 1), None)
        if size is None or hidden is None or size.reshape(-1)[-1] < 1:
            return None
        return split.input[0], hidden, int(size.reshape(-1)[-1])


def _perm(node: onnx.NodeProto) -> list[int]:
    return next((list(entry.ints) for entry in node.attribute if entry.name == "perm"), [])


# Operators that stay float32:
# - Powers, roots, exponentials, logarithms and sums over many values. A norm or a softmax that is written out consists
#   of them, and the square of 256 exceeds fp16's maximum of 65,504. LayerNormalization and Softmax themselves may take
#   float16: onnxruntime's CUDA kernels compute them in float32 (`stash_type` of LayerNormalization requires it).
# - Gemm, which torch uses for products that run once per text, such as those of the classification head. They take
#   hardly any time, and scores keep all their digits, so that close ones do not tie.
FLOAT32_OPERATORS = frozenset(
    {"Pow", "Sqrt", "Exp", "Log", "CumSum", "Gemm"}
    | {f"Reduce{kind}" for kind in ("Mean", "Sum", "SumSquare", "L1", "L2", "LogSumExp", "Prod")}
)

# Values are clipped to this before a cast: a quarter of fp16's largest number, so that scores and a second mask can
# be added to a mask. Softmax still gives exactly 0 for values so far below the others.
CAST_BOUND = 16_376.0


def to_fp16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Convert a graph to float16 weights and hidden states; inputs and outputs keep their types.

    Args:
        model: Graph of ONNX's own operators; modified in place.

    Raises:
        UnsupportedArchitecture: the graph branches, has an operator that ONNX does not know, or does not use any weight
            matrix.
    """
    return _Fp16Converter(model).run()


def emulate_fp16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Convert a graph of `to_fp16` to float32 operators, for processors without float16 kernels.

    Every operator computes in float32, as CUDA's kernels accumulate, and every float16 result is rounded to float16.
    When onnxruntime itself runs float16 on a CPU, it skips most of these roundings.

    Args:
        model: Graph of `to_fp16`; modified in place.
    """
    types = _element_types(model, model.graph.node, model.graph.initializer)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        rounded = [name for name in node.output if types.get(name) == FLOAT16]
        exact = {name: f"{name}_exact" for name in rounded}
        node.output[:] = [exact.get(name, name) for name in node.output]
        if node.op_type == "Cast" and rounded:
            next(entry for entry in node.attribute if entry.name == "to").i = FLOAT
        nodes.append(node)
        for name in rounded:
            nodes.append(helper.make_node("Cast", [exact[name]], [f"{name}_rounded"], to=FLOAT16))
            nodes.append(helper.make_node("Cast", [f"{name}_rounded"], [name], to=FLOAT))
    for tensor in model.graph.initializer:
        if tensor.data_type == FLOAT16:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    del model.graph.node[:], model.graph.value_info[:]
    model.graph.node.extend(nodes)
    return model


def _element_types(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], constants: Iterable[onnx.TensorProto]
) -> dict[str, int]:
    """Infer the element types of all values of a model's graph with these nodes and constants."""
    graph = model.graph
    # Types follow from the operators alone. Weights are left out because protobuf is limited to 2 GB.
    known = [helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in constants]
    skeleton = helper.make_graph(nodes, graph.name, [*graph.input, *known], graph.output)
    skeleton.value_info.extend(graph.value_info)  # those of contributed operators, which onnx does not know
    typed = onnx.shape_inference.infer_shapes(helper.make_model(skeleton, opset_imports=model.opset_import))
    infos = [*typed.graph.input, *typed.graph.value_info, *typed.graph.output]
    return {info.name: info.type.tensor_type.elem_type for info in infos}


class _Fp16Converter:
    """One conversion. Values are identified by name; a copy in another type has a suffix in its name."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self._nodes = list(self._without_constants())
        self._floats = self._float_values()
        # Values in float16, at first only the weight matrices.
        self._halves = {name for name in self._floats & set(self._constants) if len(self._constants[name].dims) > 1}
        self._written: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._copies: set[str] = set()

    def run(self) -> onnx.ModelProto:
        """Rewrite the nodes in their order, each with inputs of its type, and return the model."""
        weights = len(self._halves)
        for node in self._nodes:
            half = node.op_type not in FLOAT32_OPERATORS and any(name in self._halves for name in node.input)
            for place, name in enumerate(node.input):
                node.input[place] = self._as_half(name) if half else self._as_single(name)
            self._written.append(node)
            results = self._floats.intersection(node.output)
            if half and results:
                self._halves |= results
                if node.op_type == "Cast":
                    next(entry for entry in node.attribute if entry.name == "to").i = FLOAT16
        if len(self._halves) == weights:
            raise self._unsupported("does not use any weight matrix")
        graph = self._model.graph
        for output in graph.output:
            if output.name in self._halves:
                self._restore(output.name)
        for info in graph.value_info:
            if info.name in self._halves:
                info.type.tensor_type.elem_type = FLOAT16
        del graph.node[:], graph.initializer[:]
        graph.node.extend(self._written)
        graph.initializer.extend(self._initializers.values())
        return self._model

    def _unsupported(self, what: str) -> UnsupportedArchitecture:
        return UnsupportedArchitecture(
            f"the graph of {self._model.graph.name} {what}, and such graphs cannot be converted to fp16",
            f"Export another precision: {setting('variants', ['fp32'])}. It runs on CUDA too.",
        )

    def _without_constants(self) -> Iterator[onnx.NodeProto]:
        """Yield the nodes except Constant nodes, whose values are added to the constants."""
        for node in self._model.graph.node:
            if any(entry.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for entry in node.attribute):
                raise self._unsupported("branches")
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                tensor = node.attribute[0].t
                tensor.name = node.output[0]
                self._constants[tensor.name] = tensor
            else:
                yield node

    def _float_values(self) -> set[str]:
        """Return the names of all float32 values and constants."""
        types = _element_types(self._model, self._nodes, self._constants.values())
        for node in self._nodes:
            if any(name and not types.get(name) for name in node.output):
                raise self._unsupported(f"has a {node.op_type} of unknown type")
        return {name for name, kind in types.items() if kind == FLOAT}

    def _as_half(self, name: str) -> str:
        """Return the name of a value as input of a float16 node; values that are not floats stay unchanged."""
        if name not in self._floats:
            return self._as_single(name)
        if name in self._constants:
            values = np.clip(numpy_helper.to_array(self._constants[name]), -CAST_BOUND, CAST_BOUND).astype(np.float16)
            return self._initializer(f"{name}_fp16", values)
        if name in self._halves:
            return name
        limits = [self._initializer(f"fp16_bound_{sign}", np.array(sign * CAST_BOUND, np.float32)) for sign in (-1, 1)]
        bounded = self._copy("Clip", [name, *limits], f"{name}_bounded")
        return self._copy("Cast", [bounded], f"{name}_fp16", to=FLOAT16)

    def _as_single(self, name: str) -> str:
        """Return the name of a value as input of a float32 node; values that are not floats stay unchanged."""
        if name in self._constants:
            self._initializers[name] = self._constants[name]
        elif name in self._halves:
            return self._copy("Cast", [name], f"{name}_fp32", to=FLOAT)
        return name

    def _initializer(self, name: str, values: NDArray[np.floating]) -> str:
        """Add a constant, unless it exists, and return its name."""
        if name not in self._initializers:
            self._initializers[name] = numpy_helper.from_array(values, name)
        return name

    def _copy(self, operator: str, inputs: list[str], name: str, **attributes: Any) -> str:
        """Add a node that converts a value, unless it exists, and return the name of its output."""
        if name not in self._copies:
            self._copies.add(name)
            self._written.append(helper.make_node(operator, inputs, [name], name=f"to_{name}", **attributes))
        return name

    def _restore(self, output: str) -> None:
        """Convert an output of the graph back to float32."""
        inside = f"{output}_fp16"
        for node in self._written:
            for names in (node.input, node.output):
                for place, name in enumerate(names):
                    if name == output:
                        names[place] = inside
        self._copy("Cast", [inside], output, to=FLOAT)
