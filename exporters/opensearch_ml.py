"""Export a model for OpenSearch ml-commons: a zip of graph and tokenizer, and the request that registers it.

ml-commons (3.6.0, ONNXSentenceTransformerTextEmbeddingTranslator) tokenizes with tokenizer.json, runs `input_ids` and
`attention_mask` of one text in onnxruntime 1.16.3, pools by `pooling_mode` and normalizes by `normalize_result`. The
exported graph already pools and normalizes, so both are disabled.
"""

from __future__ import annotations

import json
import math
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from tokenizers import Tokenizer

from es_sbert.bundle.bundle import hash_file
from es_sbert.bundle.model_files import write_json
from es_sbert.bundle.sentence_model import SentenceModel
from es_sbert.bundle.variants import Precision, Variant
from es_sbert.errors import ParityFailed, UnsupportedArchitecture, UsageError
from es_sbert.exporters.export_bundle import choose_graph_source, is_previous_export
from es_sbert.exporters.graph_builder import save_graph
from es_sbert.exporters.numpy_reference import ReferenceKind
from es_sbert.exporters.parity import ParityCheck, describe_parity
from es_sbert.filesystem import staged_folder
from es_sbert.runtime.tokenizer import load_sentence_tokenizer


def lower_opset(graph: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Convert a graph to an older operator set and return it. Gelu (opset 20) is written in older operators.

    onnx's own converter cannot convert Gelu back.

    Args:
        graph: The graph; modified in place.
        opset: The operator set, at least 17, which introduced LayerNormalization.

    Raises:
        UnsupportedArchitecture: the graph uses an operator that the older set lacks or defines differently, or one of
            onnxruntime's own operators, which older releases may lack.
    """
    nodes: list[onnx.NodeProto] = []
    for node in graph.graph.node:
        nodes += _gelu_nodes(node) if node.op_type == "Gelu" and not node.domain else [node]
    current = next(entry.version for entry in graph.opset_import if not entry.domain)
    for node in nodes:
        if not _runs_in(node, current, opset):
            raise UnsupportedArchitecture(
                f"the graph of {graph.graph.name} uses {node.op_type}, which opset {opset} lacks or defines "
                "differently",
                "Compute this model's embeddings in the gateway instead: `es-sbert serve`.",
            )
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    graph.graph.initializer.extend(tensor for tensor in _GELU_CONSTANTS if tensor.name in used)
    for entry in graph.opset_import:
        if not entry.domain:
            entry.version = opset
    return graph


def _runs_in(node: onnx.NodeProto, current: int, older: int) -> bool:
    """Whether a node has the same meaning in an older operator set."""
    if node.domain:
        return False
    try:
        versions = {onnx.defs.get_schema(node.op_type, opset).since_version for opset in (current, older)}
    except onnx.defs.SchemaError:
        return False
    return len(versions) == 1


_GELU_TERMS = {"half": 0.5, "one": 1.0, "root_half": math.sqrt(0.5), "cubic": 0.044715, "tanh": math.sqrt(2 / math.pi)}
_GELU_CONSTANTS = [
    numpy_helper.from_array(np.array(value, dtype=np.float32), f"gelu_{name}") for name, value in _GELU_TERMS.items()
]


def _gelu_nodes(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Nodes that compute Gelu as ONNX defines it: x Φ(x), with erf or the tanh approximation (arXiv 1606.08415)."""
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


_REMEDY = "Compute its embeddings in the gateway instead: `es-sbert serve`."

ML_COMMONS_OPSET = 19  # the newest that onnxruntime 1.16 reads
ZIP_NAME = "model.zip"
REQUEST_NAME = "register.json"

# The graph has no input for token type ids, which ml-commons sends to every model of type bert or albert.
_MODEL_TYPE = "sentence-bert"

# ml-commons accepts letters, digits, spaces and few other characters in a name.
_DISALLOWED_CHARACTERS = re.compile(r"[^A-Za-z0-9 .,!?():@\-_'/]")


def export_opensearch_ml(
    model: SentenceModel,
    output: Path,
    *,
    reference: ReferenceKind = "numpy",
    on_progress: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write the zip and the request that registers it.

    The folder is written only if the graph passes the fp32 parity check, and then all at once.

    Args:
        model: The model to export.
        output: Folder to write; new, empty, or an earlier export of this kind.
        reference: Implementation to compare with, as in `export_bundle`.
        on_progress: Called with a line before each step.

    Returns:
        The file of the request.

    Raises:
        UsageError: the output folder holds something else, or ml-commons cannot run such a model.
        UnsupportedArchitecture: the graph cannot be built, or needs a newer runtime.
        ParityFailed: the graph fails the parity check.
    """
    is_previous_export(output, REQUEST_NAME)
    _check_model(model)
    build, transformer = choose_graph_source(model)
    with staged_folder(output) as folder:
        graph = folder / "model.onnx"
        on_progress(f"Building the graph of {model.name}, opset {ML_COMMONS_OPSET}")
        save_graph(lower_opset(build(Precision.FP32), ML_COMMONS_OPSET), graph)
        if graph.with_name(f"{graph.name}.data").exists():
            raise UsageError(f"the weights of {model.name} do not fit into one file, as ml-commons requires", _REMEDY)
        on_progress("Comparing it with the reference")
        report = ParityCheck(model, transformer, reference, None).run(graph, Variant.FP32)
        if not report.passed:
            raise ParityFailed(
                f"{model.name}: the graph of opset {ML_COMMONS_OPSET} fails the parity check: "
                f"{describe_parity(report)}. Nothing was written",
                "Please report this as a bug in es-sbert.",
            )
        on_progress(f"fp32: {describe_parity(report)}")
        package = folder / ZIP_NAME
        _write_zip(package, {"model.onnx": graph.read_bytes(), "tokenizer.json": _truncating_tokenizer(model).encode()})
        graph.unlink()
        request = registration_request(model, hash_file(package), (output.resolve() / ZIP_NAME).as_uri())
        write_json(folder / REQUEST_NAME, request)
    return output / REQUEST_NAME


def _check_model(model: SentenceModel) -> None:
    """Reject a model that ml-commons would run differently from sentence-transformers.

    Raises:
        UsageError: ml-commons would compute different vectors.
    """
    differences = {
        "needs lower-cased texts, and ml-commons does not lower-case them": model.lowercase,
        "reads texts without special tokens, and ml-commons adds them": not model.adds_special_tokens,
        "truncates queries and documents at different lengths, and ml-commons does not": model.max_tokens_by_kind,
        "leaves prompts out of its pooling, and ml-commons does not": not model.include_prompt,
    }
    for difference, is_there in differences.items():
        if is_there:
            raise UsageError(f"{model.name} {difference}", _REMEDY)


def registration_request(model: SentenceModel, sha256: str, url: str) -> dict[str, Any]:
    """Build the body of `POST /_plugins/_ml/models/_register`.

    Args:
        sha256: SHA-256 of the zip.
        url: Address from which the nodes of the cluster read the zip.
    """
    config: dict[str, Any] = {
        "model_type": _MODEL_TYPE,
        "embedding_dimension": model.dimensions,
        "framework_type": "sentence_transformers",
        "pooling_mode": "none",
        "normalize_result": False,
        "all_config": json.dumps(model.transformer_config, sort_keys=True),
    }
    query, document = model.prompt("query"), model.prompt("document")
    if query or document:
        config |= {"query_prefix": query, "passage_prefix": document}
    return {
        "name": _DISALLOWED_CHARACTERS.sub("-", model.name),
        # ml-commons does not use the version, but people can compare this beginning of the fingerprint.
        "version": model.fingerprint[:12],
        "description": f"Exported by es-sbert, fingerprint {model.fingerprint}",
        "function_name": "TEXT_EMBEDDING",
        "model_format": "ONNX",
        "model_content_hash_value": sha256,
        "model_config": config,
        "url": url,
    }


def _truncating_tokenizer(model: SentenceModel) -> str:
    """Return the tokenizer.json with truncation at the model's maximum, which ml-commons does not know."""
    tokenizer: Tokenizer = load_sentence_tokenizer(model)
    tokenizer.no_padding()
    tokenizer.enable_truncation(model.max_tokens)
    return tokenizer.to_str()


def _write_zip(package: Path, files: dict[str, bytes]) -> None:
    """Write a zip that depends only on the files' contents, so that the same model has the same hash."""
    with zipfile.ZipFile(package, "w") as archive:
        for name, content in files.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = 0o644 << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, content)
