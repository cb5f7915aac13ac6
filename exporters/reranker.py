"""`export_reranker`: from a cross-encoder's folder to a folder with checked ONNX variants.

Its graphs are traced, whatever the architecture: a classification head is spelt differently by every one, and who
trains a cross-encoder has torch (extra `train`). Running what is written needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from es_sbert.bundle.cross_encoder import CrossEncoderModel
from es_sbert.bundle.model import Precision
from es_sbert.bundle.reranker import (
    RERANKER_MANIFEST_NAME,
    RerankerManifest,
    RerankerVariant,
    open_reranker,
)
from es_sbert.errors import ParityFailed, UsageError
from es_sbert.exporters.files import describe_file, save_graph, versions
from es_sbert.exporters.pair_parity import describe
from es_sbert.exporters.staging import check_same_model, copy_files, copy_graphs, is_output, staged, write_manifest
from es_sbert.extras import require

# The device that a variant is meant for; fp32 runs on CUDA too.
_DEVICES = {Precision.FP32: "cpu", Precision.INT8: "cpu", Precision.FP16: "cuda"}


def export_reranker(
    model: CrossEncoderModel,
    output: Path,
    precisions: Sequence[Precision],
    *,
    force: bool = False,
    on_progress: Callable[[str], None] | None = None,
) -> RerankerManifest:
    """Write the model's own files, an ONNX graph for each precision, and `es_sbert_reranker.json`.

    A graph takes `input_ids`, `attention_mask` and, where the model knows the two texts of a pair apart by it,
    `token_type_ids`, int64 (batch, tokens); it gives `score`, float32 (batch, labels), before the activation.
    The folder appears whole, after every variant has passed its parity gate, or not at all. A reranker of the same
    model keeps the variants that are not exported again.

    Args:
        model: The cross-encoder.
        output: Folder to write; new, empty, or an exported reranker of the same model.
        precisions: fp32 and int8 for a CPU, fp16 for CUDA.
        force: Write variants that miss their bar too, marked as forced.
        on_progress: Told what is being done, a line at a time.

    Raises:
        UsageError: the output folder holds something else, no precision is given, or torch is not installed.
        UnsupportedArchitecture: torch cannot trace the model, or its graph cannot be written in a precision.
        BundleInvalid: the model's files do not fit each other.
        ParityFailed: a variant misses its bar; nothing was written.
    """
    if not precisions:
        raise UsageError("no precision to export is given", "Give at least one of fp32, int8, fp16.")
    require("train", "torch", "sentence_transformers")
    # Imported here: they import torch.
    from es_sbert.exporters.traced_pairs import TracedCrossEncoder

    say = on_progress or (lambda line: None)
    _previous_variants(model, output)  # refuses what is not to be written to, before the work
    variants: dict[str, RerankerVariant] = {}
    say(f"Tracing {model.name} ({model.architecture}) with torch")
    traced = TracedCrossEncoder(model)

    with staged(output) as folder:
        copy_files(model.folder, folder, [""])
        for precision in dict.fromkeys(precisions):
            path = folder / "onnx" / f"model_{precision}.onnx"
            save_graph(traced.build(precision), path)
            say(f"Comparing {precision} with the reference")
            report = traced.compare(path, precision)
            say(f"{precision}: {describe(report)}")
            if not report.passed and not force:
                raise ParityFailed(
                    f"{model.name}: {precision} misses its bar ({report.bar}): {describe(report)}. Nothing was written",
                    "Export another precision, or write it all the same with --force; it is then marked as forced.",
                )
            file = describe_file(
                path, folder, precision=precision, device=_DEVICES[precision], forced=not report.passed
            )
            variants[precision] = RerankerVariant(**file.model_dump(), parity=report)
        # Carried over last: another export may have written variants here while these were made.
        previous = _previous_variants(model, output)
        kept = {name: variant for name, variant in previous.items() if name not in variants}
        copy_graphs(kept.values(), output, folder)
        variants = kept | variants
        manifest = RerankerManifest.of(model, traced.pairs, variants, versions())
        write_manifest(manifest, folder / RERANKER_MANIFEST_NAME)
        open_reranker(folder)  # proves that the copy is the model: same fingerprint, same settings
    return manifest


def _previous_variants(model: CrossEncoderModel, output: Path) -> dict[str, RerankerVariant]:
    """The variants that an export adds to; none where it writes a new folder.

    Raises:
        UsageError: the folder holds something else, or another model's reranker.
        BundleInvalid: it was edited by hand.
    """
    if not is_output(output, RERANKER_MANIFEST_NAME):
        return {}
    manifest = open_reranker(output).manifest
    check_same_model(output, manifest, model)
    return manifest.variants
