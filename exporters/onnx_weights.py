"""Read the weights of a transformer from an ONNX file that another program exported.

Exporters for torch keep the names of embeddings, norms and biases. They transpose the matrices of products and rename
them to `onnx::MatMul_123`. The name of such a matrix is recovered from the bias that is added to its product, or else
from its node, whose name is the path of the module.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, numpy_helper
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_model, uses_external_data
from safetensors.numpy import save_file

from es_sbert.bundle.model_files import check_model_file
from es_sbert.bundle.sentence_model import SentenceModel
from es_sbert.errors import BundleInvalid, ParityFailed
from es_sbert.exporters.architectures import read_transformer_weights
from es_sbert.exporters.numpy_reference import NumpyReference
from es_sbert.exporters.transformer_weights import Floats
from es_sbert.runtime.batching import pad
from es_sbert.runtime.device import Device
from es_sbert.runtime.onnx_session import open_session
from es_sbert.runtime.tokenizer import SentenceTokenizer

_FLOAT_TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
# Operators that show that the weights of a graph are quantized.
_QUANTIZED_OPERATORS = frozenset({
    "DequantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulNBits",
    "QLinearMatMul",
})  # fmt: skip
# Anything in front of this in a name belongs to the module around the transformer.
_FIRST_EMBEDDING = "embeddings.word_embeddings.weight"
# Name of the sentence vectors in exports of sentence-transformers and Optimum. (`pooler_output` is something else.)
TEXT_OUTPUT = "sentence_embedding"

# In float32, two computations of the same network differ by a few millionths, and different networks by far more.
_LARGEST_DIFFERENCE = 1e-3
_SAMPLE_TEXTS = (
    "A shard holds a part of an index.",
    "Reset your password",
    "Zürich, 東京 and naïve café: letters of several alphabets, and numbers such as 3.14159 or 2,024.",
    "The query visits all shards of the index, and each of them answers with its nearest vectors. " * 6,
)


def read_onnx_weights(path: Path) -> dict[str, NDArray[np.float32]]:
    """Read the tensors of a transformer, keyed by the names that the transformers library gives them.

    Args:
        path: An ONNX file in float32 or float16, with its external data next to it.

    Raises:
        BundleInvalid: the file cannot be read or is quantized, or the name of a matrix cannot be recovered.
    """
    try:
        check_model_file(path)
        model = onnx.load(path, load_external_data=False)
        _check_external_data(path, model.graph)
        load_external_data_for_model(model, str(path.parent))
        graph = model.graph
    except BundleInvalid:
        raise
    except Exception as error:  # protobuf and onnx raise errors of several unrelated types
        raise BundleInvalid(f"{path} is not an ONNX file: {error}", "Use the ONNX file of a model.") from error
    if quantized := sorted({node.op_type for node in graph.node} & _QUANTIZED_OPERATORS):
        raise BundleInvalid(
            f"the weights of {path} are quantized ({', '.join(quantized)})",
            "Use the float32 file (often onnx/model.onnx); es-sbert quantizes it itself.",
        )
    tensors = {one.name: numpy_helper.to_array(one) for one in graph.initializer if one.data_type in _FLOAT_TYPES}
    tensors |= _constants(graph.node)
    weights = {name: tensor for name, tensor in tensors.items() if _is_module_name(name)}
    weights |= _matrices(path, graph.node, tensors)
    prefix = next((name.removesuffix(_FIRST_EMBEDDING) for name in weights if name.endswith(_FIRST_EMBEDDING)), None)
    if prefix is None:
        raise BundleInvalid(
            f"{path} has no {_FIRST_EMBEDDING}",
            "The exporter did not keep the names of the weights, so use model.safetensors instead.",
        )
    return {
        name.removeprefix(prefix): np.ascontiguousarray(tensor, dtype=np.float32) for name, tensor in weights.items()
    }


def _check_external_data(path: Path, graph: onnx.GraphProto) -> None:
    """Check that the files exist in which weights are stored outside the ONNX file (`model.onnx_data`)."""
    for name in sorted({ExternalDataInfo(one).location for one in graph.initializer if uses_external_data(one)}):
        file = path.parent / name
        if not file.exists():
            raise BundleInvalid(
                f"{file} is missing, which has the weights of {path.name}", f"Download it too, next to {path.name}."
            )
        check_model_file(file)


def _is_module_name(name: str) -> bool:
    return name.endswith((".weight", ".bias")) and not name.startswith(("/", "onnx::"))


def _constants(nodes: Sequence[NodeProto]) -> dict[str, Floats]:
    """Collect the tensors in Constant nodes, where some exporters store them."""
    found = {}
    for node in nodes:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            tensor = node.attribute[0].t
            if tensor.data_type in _FLOAT_TYPES and len(tensor.dims) > 1:
                found[node.output[0]] = numpy_helper.to_array(tensor)
    return found


def _matrices(path: Path, nodes: Sequence[NodeProto], tensors: Mapping[str, Floats]) -> dict[str, Floats]:
    """Find the matrices that lost their names: recovered name → matrix as (outputs, inputs)."""
    users = defaultdict(list)
    for node in nodes:
        for name in node.input:
            users[name].append(node)
    found: dict[str, Floats] = {}
    for node in nodes:
        if node.op_type not in ("MatMul", "Gemm") or node.input[1] not in tensors or _is_module_name(node.input[1]):
            continue
        module = _module_of(node, users)
        if not module:
            raise BundleInvalid(
                f"{path}: the name of the matrix {node.input[1]} cannot be recovered",
                "Export the model again with the names of its modules, or use model.safetensors.",
            )
        is_transposed = any(one.name == "transB" and one.i for one in node.attribute)
        matrix = tensors[node.input[1]]
        found[f"{module}.weight"] = matrix if is_transposed else matrix.T
    return found


def _module_of(product: NodeProto, users: Mapping[str, Sequence[NodeProto]]) -> str:
    """Find the path of the module that a product belongs to, such as `encoder.layer.0.attention.self.query`."""
    added: list[str] = list(product.input[2:])
    for user in users[product.output[0]]:
        if user.op_type == "Add":
            added += user.input
    for name in added:
        if _is_module_name(name) and name.endswith(".bias"):
            return name.removesuffix(".bias")
    path: str = product.name
    return path.strip("/").rpartition("/")[0].replace("/", ".")


def write_onnx_weights(path: Path, folder: Path) -> None:
    """Write the weights of an ONNX file as `model.safetensors`.

    Raises:
        BundleInvalid: as for `read_onnx_weights`.
    """
    save_file(read_onnx_weights(path), folder / "model.safetensors", metadata={"format": "pt"})


def check_against_onnx(model: SentenceModel, path: Path) -> float:
    """Compare a model whose weights were read from an ONNX file with the output of the file itself.

    Args:
        model: The model with these weights.
        path: The ONNX file. An output of three dimensions holds token vectors. An output of two dimensions holds
            sentence vectors if it is called `sentence_embedding`, or if no output has three dimensions. Both are
            compared; sentence vectors only by direction, because some files leave normalization to the caller.

    Returns:
        The largest difference, relative to the length of the vector.

    Raises:
        ParityFailed: the vectors differ.
        BundleInvalid: the file does not output vectors, or cannot be run.
    """
    session = open_session(path, Device("cpu"))
    reference = NumpyReference(model, read_transformer_weights(model))
    ids, mask = pad(SentenceTokenizer(model)(_SAMPLE_TEXTS).ids)
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    of_tokens = next((one.name for one in session.get_outputs() if len(one.shape or ()) == 3), None)
    of_texts = next((one.name for one in session.get_outputs() if one.name == TEXT_OUTPUT), None)
    if of_tokens is None and of_texts is None:
        of_texts = next((one.name for one in session.get_outputs() if len(one.shape or ()) == 2), None)
    if of_tokens is None and of_texts is None:
        raise BundleInvalid(f"{path} does not output vectors", "Use the ONNX file of a sentence encoder.")
    names = [name for name in (of_tokens, of_texts) if name is not None]
    inputs = {one.name: given[one.name] for one in session.get_inputs()}
    outputs = dict(zip(names, session.run(names, inputs), strict=True))
    differences = {}
    if of_tokens is not None:
        actual, expected = reference.token_vectors(ids, mask)[mask == 1], outputs[of_tokens][mask == 1]
        differences["of tokens"] = _relative_difference(actual, expected)
    if of_texts is not None:
        actual, expected = reference.forward(ids, mask), outputs[of_texts]
        differences["of texts"] = _relative_difference(_directions(actual), _directions(expected))
    for which, difference in differences.items():
        if not difference <= _LARGEST_DIFFERENCE:  # also true for NaN
            raise ParityFailed(
                f"the weights read from {path} give different vectors {which} than the file itself: they differ by "
                f"{difference:.1%}",
                "Check that config.json, the tokenizer and the pooling belong to this file.",
            )
    return max(differences.values())


def _relative_difference(actual: Floats, expected: Floats) -> float:
    lengths = np.linalg.norm(expected, axis=-1)
    return float((np.linalg.norm(actual - expected, axis=-1) / lengths).max())


def _directions(vectors: Floats) -> Floats:
    directions: Floats = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return directions
