"""Dense, LayerNorm and Normalize modules as ONNX nodes, always in float32, and their weights.

A module takes sentence vectors, (B, D), or token vectors, (B, S, D). Shapes in comments are (…, D).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from es_sbert.bundle.modules import Activation, Dense, LayerNorm, Normalize, VectorModule
from es_sbert.bundle.sentence_model import SentenceModel
from es_sbert.exporters.graph_builder import GraphBuilder
from es_sbert.exporters.transformer_weights import Floats, LinearWeights, ModuleWeights, NormWeights

_MIN_NORM = 1e-12  # torch's guard against the zero vector
_NORM_EPSILON = 1e-5  # torch's default, which the module keeps


@dataclass(frozen=True)
class DenseWeights:
    """The weights of a Dense module.

    Attributes:
        linear: The product.
        residual: Matrix that the input is multiplied by before it is added, of *shape* ``(in_features, out_features)``.
            None if the input is added unchanged, or not at all.
    """

    linear: LinearWeights
    residual: Floats | None


def read_dense(model: SentenceModel, layer: Dense) -> DenseWeights:
    """Read the weights of a Dense module.

    Raises:
        BundleInvalid: a tensor is missing, has a different shape, or is not floating-point.
    """
    tensors = ModuleWeights(model.folder / layer.folder)
    linear = tensors.linear("linear", layer.in_features, layer.out_features, bias=layer.bias)
    if not layer.residual or layer.in_features == layer.out_features:
        return DenseWeights(linear, None)
    return DenseWeights(linear, tensors.get("residual.weight", (layer.out_features, layer.in_features)).T)


def read_layer_norm(model: SentenceModel, layer: LayerNorm) -> NormWeights:
    """Read the weights of a LayerNorm module.

    Raises:
        BundleInvalid: as for `read_dense`.
    """
    return ModuleWeights(model.folder / layer.folder).norm("norm", layer.dimension, _NORM_EPSILON)


def add_modules(graph: GraphBuilder, vector: str, model: SentenceModel, modules: Sequence[VectorModule]) -> str:
    """Apply modules in their order: (…, D) → (…, D of the last)."""
    for module in modules:
        match module:
            case Dense():
                vector = _add_dense(graph, vector, module, read_dense(model, module))
            case LayerNorm():
                weights = read_layer_norm(model, module)
                names = [graph.constant(f"{module.folder}.{key}", getattr(weights, key)) for key in ("weight", "bias")]
                vector = graph.add("LayerNormalization", vector, *names, axis=-1, epsilon=weights.epsilon)
            case Normalize():
                # ReduceL2 would need cuDNN in onnxruntime's CUDA provider.
                squares = graph.add("Mul", vector, vector)
                total = graph.add("ReduceSum", squares, graph.integers(-1), keepdims=1)  # (…, 1)
                length = graph.add("Max", graph.add("Sqrt", total), graph.scalar(_MIN_NORM))
                vector = graph.add("Div", vector, length)
    return vector


def _add_dense(graph: GraphBuilder, vector: str, layer: Dense, weights: DenseWeights) -> str:
    """(…, in_features) → (…, out_features)."""
    weight = graph.constant(f"{layer.folder}.weight", weights.linear.weight)
    product = graph.add("MatMul", vector, weight)
    product = graph.add("Add", product, graph.constant(f"{layer.folder}.bias", weights.linear.bias))
    output = _add_activation(graph, product, layer.activation)
    if not layer.residual:
        return output
    if weights.residual is not None:
        vector = graph.add("MatMul", vector, graph.constant(f"{layer.folder}.residual", weights.residual))
    return graph.add("Add", output, vector)


def _add_activation(graph: GraphBuilder, x: str, activation: Activation) -> str:
    """Apply the activation to each value of x."""
    match activation:
        case Activation.IDENTITY:
            return x
        case Activation.TANH:
            return graph.add("Tanh", x)
        case Activation.RELU:
            return graph.add("Relu", x)
        case Activation.GELU:
            return graph.add("Gelu", x, approximate="none")
        case Activation.SILU:
            return graph.add("Mul", x, graph.add("Sigmoid", x))
        case Activation.SIGMOID:
            return graph.add("Sigmoid", x)
