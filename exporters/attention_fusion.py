"""Fuse the attention of a traced graph into one operator: MatMul, scale, masks, Softmax, MatMul →
MultiHeadAttention.

Unfused attention stores batch × heads × tokens² scores several times; onnxruntime's CUDA kernels keep them on the
chip. The pattern is that of transformers' `eager_attention_forward` where queries, keys and values are products with a
bias: BERT and its relatives, DistilBERT, MPNet. Other attention (rotary positions, XLNet) is left unchanged. The
parity check verifies the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from es_sbert.exporters.graph_builder import CONTRIB, FLOAT

_HEADS_FIRST = [0, 2, 1, 3]
_KEYS_FIRST = [0, 2, 3, 1]
_OPERATOR = "MultiHeadAttention"


@dataclass(frozen=True)
class _AttentionMatch:
    """One attention that was found.

    Attributes:
        inputs: Names of queries, keys and values, each (batch, tokens, hidden).
        masks: Names of what is added to the scores, (batch or 1, heads or 1, tokens, tokens).
        heads: Number of heads.
        scale: What scores are multiplied by.
        output: The node whose output the operator takes over, (batch, tokens, hidden).
    """

    inputs: tuple[str, str, str]
    masks: tuple[str, ...]
    heads: int
    scale: float
    output: onnx.NodeProto


def fuse_attention(model: onnx.ModelProto) -> int:
    """Replace attention that is written out; nodes that nothing needs any more are left out.

    Args:
        model: Float32 graph; it is changed.

    Returns:
        How many were replaced.
    """
    graph = _AttentionMatcher(model.graph)
    found = {id(one.output): one for one in map(graph.attention, graph.nodes("Softmax")) if one is not None}
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        one = found.get(id(node))
        nodes += [node] if one is None else _fused_nodes(one)
    for one in found.values():
        model.graph.value_info.append(helper.make_tensor_value_info(one.output.output[0], FLOAT, None))
    used = _reachable_nodes(nodes, [output.name for output in model.graph.output])
    del model.graph.node[:]
    model.graph.node.extend(used)
    if found and not any(entry.domain == CONTRIB for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(CONTRIB, 1))
    return len(found)


def _fused_nodes(one: _AttentionMatch) -> list[onnx.NodeProto]:
    name = one.output.output[0]
    nodes, mask = [], one.masks[0] if one.masks else ""
    for number, more in enumerate(one.masks[1:]):
        total = f"{name}_mask_{number}"
        nodes.append(helper.make_node("Add", [mask, more], [total], name=total))
        mask = total
    # Bias, padding mask: left out. Biases were added before; padding is in the mask.
    inputs = [*one.inputs, "", "", mask]
    nodes.append(
        helper.make_node(
            _OPERATOR, inputs, [name], name=f"{name}_attention", domain=CONTRIB, num_heads=one.heads, scale=one.scale
        )
    )
    return nodes


def _reachable_nodes(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """The nodes that outputs depend on, in their order."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    return kept[::-1]


class _AttentionMatcher:
    """A graph, to be read against the direction of its edges."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._nodes = list(graph.node)
        self._makers = {name: node for node in self._nodes for name in node.output}
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._users: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in self._nodes:
            for name in node.input:
                self._users[name].append(node)

    def nodes(self, operator: str) -> list[onnx.NodeProto]:
        return [node for node in self._nodes if node.op_type == operator]

    def attention(self, softmax: onnx.NodeProto) -> _AttentionMatch | None:
        """The attention that a Softmax belongs to; None where it is written in another way."""
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
        return _AttentionMatch((query[0], key[0], value[0]), tuple(reversed(masks)), hidden // size, scale, output)

    def _producer(self, name: str, operator: str) -> onnx.NodeProto | None:
        node = self._makers.get(name)
        return node if node is not None and node.op_type == operator else None

    def _user(self, name: str, operator: str) -> onnx.NodeProto | None:
        """The only node with this operator that takes a value."""
        users = [node for node in self._users[name] if node.op_type == operator and node.input[0] == name]
        return users[0] if len(users) == 1 else None

    def _constant(self, name: str) -> np.ndarray | None:
        made = self._producer(name, "Constant")
        if made is not None and made.attribute[0].name == "value":
            return np.asarray(numpy_helper.to_array(made.attribute[0].t))
        tensor = self._constants.get(name)
        return None if tensor is None else np.asarray(numpy_helper.to_array(tensor))

    def _strip_scale(self, name: str) -> tuple[str, float]:
        """A value before it was multiplied or divided by a number, and what it was multiplied by."""
        node = self._makers.get(name)
        if node is not None and node.op_type in ("Mul", "Div"):
            number = self._constant(node.input[1])
            if number is not None and number.size == 1:
                factor = float(number.reshape(()))
                return node.input[0], factor if node.op_type == "Mul" else 1 / factor
        return name, 1.0

    def _projection(self, name: str, perm: list[int]) -> tuple[str, int, int] | None:
        """What (batch, heads, …) was made of: name of a value (batch, tokens, hidden), hidden, and size of a head."""
        turned = self._producer(name, "Transpose")
        split = None if turned is None or _perm(turned) != perm else self._producer(turned.input[0], "Reshape")
        if split is None:
            return None
        shape = self._producer(split.input[1], "Concat")
        size = self._constant(shape.input[-1] if shape is not None else split.input[1])
        total = self._producer(split.input[0], "Add")
        bias = None if total is None else next(filter(_is_vector, map(self._constant, total.input)), None)
        if size is None or bias is None or size.reshape(-1)[-1] < 1:
            return None
        return split.input[0], len(bias), int(size.reshape(-1)[-1])


def _perm(node: onnx.NodeProto) -> list[int]:
    return next((list(entry.ints) for entry in node.attribute if entry.name == "perm"), [])


def _is_vector(values: np.ndarray | None) -> bool:
    return values is not None and values.ndim == 1
