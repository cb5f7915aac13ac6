"""A model as OpenSearch's ml-commons registers it: a zip of graph and tokenizer, and the request that names it.

What ml-commons does with it (3.6.0, ONNXSentenceTransformerTextEmbeddingTranslator): tokenise by tokenizer.json, run
`input_ids` and `attention_mask` of one text through onnxruntime 1.16.3, pool by `pooling_mode` and normalise by
`normalize_result`. Pooling and normalisation are in our graph already, so it is told to do neither.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from es_sbert.bundle.model import Precision, SentenceModel
from es_sbert.bundle.store import hash_file
from es_sbert.encoder.tokenizer import load_tokenizer
from es_sbert.errors import ParityFailed, UsageError
from es_sbert.exporters.check import ParityCheck
from es_sbert.exporters.files import save_graph
from es_sbert.exporters.opset import lower_opset
from es_sbert.exporters.parity import describe
from es_sbert.exporters.reference import ReferenceKind
from es_sbert.exporters.source import choose_source
from es_sbert.exporters.staging import is_output, staged

OPSET = 19  # the newest that onnxruntime 1.16 reads
ZIP_NAME = "model.zip"
REQUEST_NAME = "register.json"

# The graph has no token type ids, and ml-commons sends them to every model of type bert or albert.
_MODEL_TYPE = "sentence-bert"

# ml-commons takes letters, digits, spaces and little else in a name.
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9 .,!?():@\-_'/]")


def export_opensearch_ml(
    model: SentenceModel,
    output: Path,
    *,
    reference: ReferenceKind = "numpy",
    on_progress: Callable[[str], None] | None = None,
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
        UsageError: the output folder holds something else, or ml-commons has no way to run such a model.
        UnsupportedArchitecture: there is no graph, or it needs a newer runtime.
        ParityFailed: the graph misses its bar.
    """
    is_output(output, REQUEST_NAME)
    if model.lowercase:
        raise UsageError(
            f"{model.name} lower-cases texts before its tokenizer sees them, which ml-commons does not",
            "Let the gateway make its vectors: es-sbert serve.",
        )
    say = on_progress or (lambda line: None)
    source = choose_source(model)
    [recipe] = source.recipes([Precision.FP32])
    with staged(output) as folder:
        graph = folder / "model.onnx"
        say(f"Building the graph of {model.name}, opset {OPSET}")
        save_graph(lower_opset(source.build(recipe), OPSET), graph)
        if graph.with_name(f"{graph.name}.data").exists():
            raise UsageError(
                f"the weights of {model.name} do not fit into one file, and ml-commons takes one",
                "Let the gateway make its vectors: es-sbert serve.",
            )
        say("Comparing it with the reference")
        report = ParityCheck(model, source.transformer, reference, None)(graph, recipe)
        if report is None or not report.passed:
            raise ParityFailed(
                f"{model.name}: the graph of opset {OPSET} misses its bar: "
                f"{describe(report) if report else 'not checked'}. Nothing was written",
                "Report this: it is a bug of es-sbert.",
            )
        say(f"fp32: {describe(report)}")
        package = folder / ZIP_NAME
        _pack(package, {"model.onnx": graph.read_bytes(), "tokenizer.json": _tokenizer(model).encode()})
        graph.unlink()
        request = registration(model, hash_file(package), (output.resolve() / ZIP_NAME).as_uri())
        text = json.dumps(request, indent=2, ensure_ascii=False)
        (folder / REQUEST_NAME).write_text(text + "\n", encoding="utf-8")
    return output / REQUEST_NAME


def registration(model: SentenceModel, sha256: str, url: str) -> dict[str, Any]:
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
        "name": _NOT_ALLOWED.sub("-", model.name),
        # ml-commons compares nothing by it, but people can: it is the beginning of the fingerprint.
        "version": model.fingerprint[:12],
        "description": f"Exported by es-sbert, fingerprint {model.fingerprint}",
        "function_name": "TEXT_EMBEDDING",
        "model_format": "ONNX",
        "model_content_hash_value": sha256,
        "model_config": config,
        "url": url,
    }


def _tokenizer(model: SentenceModel) -> str:
    """tokenizer.json that cuts by itself at the model's maximum, which ml-commons is not told."""
    tokenizer: Tokenizer = load_tokenizer(model.tokenizer_file)
    tokenizer.no_padding()
    tokenizer.enable_truncation(model.max_tokens)
    return tokenizer.to_str()


def _pack(package: Path, files: dict[str, bytes]) -> None:
    """A zip that depends on nothing but its files, so that the same model has the same hash."""
    with zipfile.ZipFile(package, "w") as archive:
        for name, content in files.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = 0o644 << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, content)
