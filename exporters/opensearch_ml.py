"""Export a model for OpenSearch ml-commons: a zip of graph and tokenizer, and the register request.

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
    """The same graph in an older operator set: Gelu (20) in older operators, everything else unchanged.

    onnx's own converter cannot convert Gelu back.

    Args:
        graph: It is changed.
        opset: From 17 on, which brought LayerNormalization.

    Raises:
        UnsupportedArchitecture: it uses an operator that the older set lacks or defines differently, or one of
            onnxruntime's own, which older releases may lack.
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
                "Let the gateway make the vectors of this model: `es-sbert serve`.",
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
    """Whether a node means the same in an older operator set."""
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


_REMEDY = "Let the gateway make its vectors: `es-sbert serve`."

ML_COMMONS_OPSET = 19  # the newest that onnxruntime 1.16 reads
ZIP_NAME = "model.zip"
REQUEST_NAME = "register.json"

# The graph has no token type ids, and ml-commons sends them to every model of type bert or albert.
_MODEL_TYPE = "sentence-bert"

# ml-commons takes letters, digits, spaces and little else in a name.
_DISALLOWED_CHARACTERS = re.compile(r"[^A-Za-z0-9 .,!?():@\-_'/]")


def export_opensearch_ml(
    model: SentenceModel,
    output: Path,
    *,
    reference: ReferenceKind = "numpy",
    on_progress: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write the zip and the request that registers it.

    The folder appears whole, after the graph has passed the parity gate of fp32, or not at all.

    Args:
        model: The model to export.
        output: Folder; new, empty, or one that this wrote before.
        reference: What to compare with, as in `export_bundle`.
        on_progress: Told what is being done, a line at a time.

    Returns:
        The request's file.

    Raises:
        UsageError: the output folder holds something else, or ml-commons cannot run such a model.
        UnsupportedArchitecture: there is no graph, or it needs a newer runtime.
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
            raise UsageError(f"the weights of {model.name} do not fit into one file, and ml-commons takes one", _REMEDY)
        on_progress("Comparing it with the reference")
        report = ParityCheck(model, transformer, reference, None).run(graph, Variant.FP32)
        if not report.passed:
            raise ParityFailed(
                f"{model.name}: the graph of opset {ML_COMMONS_OPSET} fails the parity check: "
                f"{describe_parity(report)}. Nothing was written",
                "Report this: it is a bug of es-sbert.",
            )
        on_progress(f"fp32: {describe_parity(report)}")
        package = folder / ZIP_NAME
        _write_zip(package, {"model.onnx": graph.read_bytes(), "tokenizer.json": _truncating_tokenizer(model).encode()})
        graph.unlink()
        request = registration_request(model, hash_file(package), (output.resolve() / ZIP_NAME).as_uri())
        write_json(folder / REQUEST_NAME, request)
    return output / REQUEST_NAME


def _check_model(model: SentenceModel) -> None:
    """Refuse a model that ml-commons would run otherwise than its libraries do.

    Raises:
        UsageError: see above.
    """
    differences = {
        "lower-cases texts before its tokenizer sees them, which ml-commons does not": model.lowercase,
        "reads texts without special tokens, which ml-commons adds": not model.adds_special_tokens,
        "cuts queries and documents at different lengths, which ml-commons does not": model.max_tokens_by_kind,
        "embeds queries and documents by different networks (Router), which ml-commons does not": model.routes,
        "leaves prompts out of its pooling, which ml-commons does not": not model.include_prompt,
    }
    for difference, is_there in differences.items():
        if is_there:
            raise UsageError(f"{model.name} {difference}", _REMEDY)


def registration_request(model: SentenceModel, sha256: str, url: str) -> dict[str, Any]:
    """The body of `POST /_plugins/_ml/models/_register`.

    Args:
        sha256: Of the zip.
        url: Where the nodes of the cluster read the zip.
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
        # ml-commons compares nothing by it, but people can: it is the beginning of the fingerprint.
        "version": model.fingerprint[:12],
        "description": f"Exported by es-sbert, fingerprint {model.fingerprint}",
        "function_name": "TEXT_EMBEDDING",
        "model_format": "ONNX",
        "model_content_hash_value": sha256,
        "model_config": config,
        "url": url,
    }


def _truncating_tokenizer(model: SentenceModel) -> str:
    """tokenizer.json that cuts by itself at the model's maximum, which ml-commons is not told."""
    tokenizer: Tokenizer = load_sentence_tokenizer(model)
    tokenizer.no_padding()
    tokenizer.enable_truncation(model.max_tokens)
    return tokenizer.to_str()


def _write_zip(package: Path, files: dict[str, bytes]) -> None:
    """A zip that depends on nothing but its files, so that the same model has the same hash."""
    with zipfile.ZipFile(package, "w") as archive:
        for name, content in files.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = 0o644 << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, content)
