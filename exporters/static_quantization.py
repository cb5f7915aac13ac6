"""Static int8 quantization of products with weights, for OpenVINO: ranges of activations come from sample texts.

OpenVINO multiplies in int8 only if the range of the activations is known when it compiles the graph. A few channels of
a transformer's activations are far larger than the others, and one range for all would leave the others only a few
levels. So each channel is first divided by a factor, and its weights are multiplied by the same factor (SmoothQuant,
Xiao et al. 2023, arXiv 2211.10438, equation 4). Ranges do not depend on the batch, so a text's vector hardly does.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from es_sbert.bundle.sentence_model import SentenceModel
from es_sbert.bundle.transformer_module import TextModel
from es_sbert.errors import UnsupportedArchitecture
from es_sbert.exporters.graph_builder import inner_graphs, save_graph
from es_sbert.exporters.parity import parity_sentences
from es_sbert.exporters.quantization import quantize_columns
from es_sbert.exporters.transformer_weights import Floats
from es_sbert.messages import setting
from es_sbert.runtime.batching import InputBuilder, ModelInputs
from es_sbert.runtime.onnx_runtime import onnxruntime
from es_sbert.runtime.onnx_session import session_options
from es_sbert.runtime.tokenizer import SentenceTokenizer, load_model_tokenizer

_SENTENCES, _WORD_LISTS = 256, 64
_LONGEST = 512  # tokens; activations of longer texts are not larger
_BATCH_TOKENS = 1024
# Prefixes that mark the start or the inside of a word in vocabularies of WordPiece, SentencePiece and byte-level BPE.
_MARKS = "#▁Ġ"
# α of SmoothQuant: 1 would give all channels of the activations equal ranges, 0 those of the weights.
_MIGRATION = 0.75
_LEVELS = 255  # of uint8
# Prevents a division by zero for channels that are always zero.
_MIN_STEP = 1e-5


@dataclass
class _Activations:
    """A value that is the left factor of some products, and the range of each channel in the sample texts.

    Attributes:
        name: Name of the value.
        products: The MatMul nodes that use it.
        lowest, highest: Range of each channel in the texts so far. *Shape:* ``(channels,)``.
        is_by_text: Whether the value has one row per text, not per token; None as long as all texts had one token.
    """

    name: str
    products: list[onnx.NodeProto]
    lowest: Floats
    highest: Floats
    is_by_text: bool | None = None

    def see(self, values: Floats, shape: tuple[int, int]) -> None:
        """Extend the ranges to the values of a batch.

        Args:
            values: *Shape:* ``(…, channels)``.
            shape: Shape of the token ids, (texts, tokens).
        """
        texts, tokens = shape
        if tokens > 1:
            self.is_by_text = values.ndim == 2 and len(values) == texts
        rows = values.reshape(-1, values.shape[-1])
        self.lowest = np.minimum(self.lowest, rows.min(axis=0))
        self.highest = np.maximum(self.highest, rows.max(axis=0))


def quantize_statically(model: onnx.ModelProto, batches: Iterable[ModelInputs]) -> onnx.ModelProto:
    """Return a copy of a graph in which products with weights are quantized, with ONNX operators only.

    Products that run once per text, such as a Dense module after pooling, stay float32.

    Args:
        model: A float32 graph; unchanged.
        batches: Inputs of sample texts, each batch without padding.

    Raises:
        UnsupportedArchitecture: no product with a weight was found.
    """
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    found: dict[str, _Activations] = {}
    for node in model.graph.node:
        weight = constants.get(node.input[1]) if node.op_type == "MatMul" else None
        if weight is not None and weight.data_type == onnx.TensorProto.FLOAT and len(weight.dims) == 2:
            none_yet = np.zeros(weight.dims[0], dtype=np.float32)
            known = found.setdefault(node.input[0], _Activations(node.input[0], [], none_yet, none_yet))
            known.products.append(node)
    if found:
        _calibrate(model, list(found.values()), batches)
    quantized = [activations for activations in found.values() if not activations.is_by_text]
    if not quantized:
        raise UnsupportedArchitecture(
            f"{model.graph.name}: no product with a weight was found that could be quantized",
            f"Export another variant: {setting('variants', ['openvino-fp32'])}.",
        )
    return _rewrite(model, constants, quantized)


def _calibrate(model: onnx.ModelProto, activations: Sequence[_Activations], batches: Iterable[ModelInputs]) -> None:
    """Run sample texts and record the ranges of the activations."""
    observed = onnx.ModelProto()
    observed.CopyFrom(model)
    known = {output.name for output in observed.graph.output}
    names = [one.name for one in activations]
    observed.graph.output.extend(
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names if name not in known
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "observed.onnx"
        save_graph(observed, path)  # a model of more than 2 GB has its weights in a second file
        session = onnxruntime.InferenceSession(str(path), session_options(), providers=["CPUExecutionProvider"])
        for inputs in batches:
            for one, values in zip(activations, session.run(names, inputs), strict=True):
                one.see(values, inputs["input_ids"].shape)


def _rewrite(
    model: onnx.ModelProto, constants: Mapping[str, onnx.TensorProto], quantized: Sequence[_Activations]
) -> onnx.ModelProto:
    """Return the graph with quantized factors of these products."""
    tensors: list[onnx.TensorProto] = []
    nodes_before: dict[str, list[onnx.NodeProto]] = {}  # by the first output of a product
    inputs: dict[str, tuple[str, str]] = {}  # of a product, by its output

    def constant(name: str, value: NDArray[np.generic]) -> str:
        tensors.append(numpy_helper.from_array(value, name))
        return name

    for one in quantized:
        weights = {product.output[0]: numpy_helper.to_array(constants[product.input[1]]) for product in one.products}
        factors = smoothing_factors(one.lowest, one.highest, weights.values())  # (channels,)
        step, zero = quantization_range(one.lowest / factors, one.highest / factors)
        scale, zero_point = constant(f"{one.name}.step", step), constant(f"{one.name}.zero", zero)
        smoothed, levels, left = f"{one.name}.smoothed", f"{one.name}.levels", f"{one.name}.quantized"
        nodes = [
            helper.make_node("Mul", [one.name, constant(f"{one.name}.factors", 1 / factors)], [smoothed]),
            helper.make_node("QuantizeLinear", [smoothed, scale, zero_point], [levels]),
            helper.make_node("DequantizeLinear", [levels, scale, zero_point], [left]),
        ]
        for output, weight in weights.items():
            columns, steps = quantize_columns(weight * factors[:, None])
            name, right = f"{output}.weight", f"{output}.dequantized"
            constants_of_weight = [constant(name, columns), constant(f"{name}.step", steps)]
            nodes.append(helper.make_node("DequantizeLinear", constants_of_weight, [right], axis=1))
            nodes_before[output], nodes = nodes, []
            inputs[output] = left, right
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:], made.graph.initializer[:]
    for node in model.graph.node:
        output = node.output[0] if node.output else ""
        made.graph.node.extend(nodes_before.get(output, []))
        copied = made.graph.node.add()
        copied.CopyFrom(node)
        if output in inputs:
            copied.input[:] = inputs[output]
    used = {name for node in made.graph.node for name in _inputs(node)} | {one.name for one in made.graph.output}
    made.graph.initializer.extend(tensor for name, tensor in constants.items() if name in used)
    made.graph.initializer.extend(tensors)
    return made


def _inputs(node: onnx.NodeProto) -> Iterable[str]:
    """Names of all values that a node reads, including those in its subgraphs."""
    yield from node.input
    for inner in inner_graphs(node):
        for each in inner.node:
            yield from _inputs(each)


def smoothing_factors(lowest: Floats, highest: Floats, weights: Iterable[Floats]) -> Floats:
    """Compute divisors of the channels that split the difficulty of quantization between activations and weights.

    Args:
        lowest, highest: Ranges of the activations. *Shape:* ``(channels,)``.
        weights: Weights that the activations are multiplied by, each of *shape* ``(channels, out_features)``.

    Returns:
        The divisors, with geometric mean 1. *Shape:* ``(channels,)``.
    """
    activations = np.maximum(np.maximum(-lowest, highest), _MIN_STEP)
    rows = np.maximum(np.max([np.abs(weight).max(axis=1) for weight in weights], axis=0), _MIN_STEP)
    logarithms = _MIGRATION * np.log(activations) - (1 - _MIGRATION) * np.log(rows)
    factors: Floats = np.exp(logarithms - logarithms.mean()).astype(np.float32)
    return factors


def quantization_range(lowest: Floats, highest: Floats) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Compute step and zero point of uint8 for activations in these ranges.

    Args:
        lowest, highest: *Shape:* ``(channels,)``.

    Returns:
        Two zero-dimensional arrays: value ≈ (level − zero point) × step.
    """
    low, high = min(float(lowest.min()), 0.0), max(float(highest.max()), 0.0)
    step = max((high - low) / _LEVELS, _MIN_STEP)
    return np.array(step, dtype=np.float32), np.array(round(-low / step), dtype=np.uint8)


def sample_texts(model: TextModel) -> list[str]:
    """Return sentences, and lists of random words from the vocabulary, because rare words have large activations."""
    longest = min(model.longest_input, _LONGEST)
    known = sorted(load_model_tokenizer(model).get_vocab())
    words = [word for token in known if (word := token.strip(_MARKS)).isalpha()]
    choose = random.Random(20221118)
    lists = [" ".join(choose.choices(words, k=choose.randint(4, longest))) for _ in range(_WORD_LISTS if words else 0)]
    return [*parity_sentences(longest, _SENTENCES), *lists]


def sample_batches(model: SentenceModel, graph: onnx.ModelProto) -> Iterator[ModelInputs]:
    """Create the inputs of the sample texts for a graph of a sentence encoder."""
    tokenizer = SentenceTokenizer(model)
    texts = tokenizer.readable(sample_texts(model))
    rows = [row for row in tokenizer(texts).ids if len(row)]
    properties = {entry.key: entry.value for entry in graph.metadata_props}
    inputs = InputBuilder([value.name for value in graph.graph.input], properties)
    lengths = np.array([len(row) for row in rows])  # (texts,)
    return (inputs([rows[number] for number in batch]) for batch in equal_length_batches(lengths))


def equal_length_batches(lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield batches of texts with equal lengths, so that nothing is padded.

    Args:
        lengths: *Shape:* ``(texts,)``, tokens of each text.

    Returns:
        Index arrays; together they hold every index exactly once.
    """
    for length in np.unique(lengths):
        texts = np.flatnonzero(lengths == length)
        size = max(1, _BATCH_TOKENS // max(1, int(length)))
        yield from np.array_split(texts, range(size, len(texts), size))
