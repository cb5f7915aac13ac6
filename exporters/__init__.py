"""ONNX export: graphs built from weights or traced with torch, int8 and fp16 variants, and the parity check.

`export_model` is the entry point. export_bundle.py writes bundles, sentence_graph.py builds graphs,
tracing.py traces them, quantization.py and fp16.py convert them, and parity.py compares them with the original model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from es_sbert.arguments import check_arguments
from es_sbert.settings import no_report

if TYPE_CHECKING:
    from es_sbert.bundle.bundle import EncoderManifest, RerankerManifest


@check_arguments
def export_model(
    model: str | Path,
    output: str | Path,
    variants: Sequence[str] | None = None,
    *,
    force: bool = False,
    ignore_settings: Sequence[str] = (),
    register: bool = False,
    report: Callable[[str], None] = no_report,
) -> EncoderManifest | RerankerManifest:
    """Export a sentence encoder or a cross-encoder to a folder with checked ONNX variants, as `es-sbert export` does.

    Every variant is compared with the original model. The folder is written only if all pass, and opens in
    sentence-transformers too. `Encoder(output)` or `Reranker(output)` runs it.

    Usage:
        ```python
        manifest = export_model("all-MiniLM-L6-v2", "minilm", ["fp32", "int8"], report=print)
        print(manifest.fingerprint)
        ```

    Args:
        model: Model folder, hub id, installed or registered name. A `Path` is always a folder.
        output: Folder to write; new, empty, or a bundle of the same model, which gains variants.
        variants: Any of `fp32`, `int8`, `openvino-fp32`, `openvino-bf16` and `openvino-int8` for CPUs, and `fp16` for
            CUDA; by default those for CPUs that run on this machine.
        force: Also write variants that miss their parity bar, marked as forced.
        ignore_settings: Accept a setting in the model's files that es-sbert does not know; the bundle keeps it.
            Repeatable.
        register: Register the model under the folder's name, so that searches find it (`es-sbert model list`).
        report: Called with progress messages and warnings.

    Returns:
        The manifest: the model's fingerprint, and each variant with its parity report.

    Raises:
        UsageError: an argument is invalid, or the output folder holds something else.
        ModelError: the model was not found, is broken, or has an architecture or a setting that is not supported.
        ParityFailed: a variant fails the parity check; nothing was written.
    """
    from es_sbert.bundle.cross_encoder_model import is_cross_encoder, read_cross_encoder
    from es_sbert.bundle.local_registry import try_register_model
    from es_sbert.bundle.model_lookup import resolve_model
    from es_sbert.bundle.sentence_model import read_sentence_model
    from es_sbert.bundle.trained_prompts import prompt_warning
    from es_sbert.bundle.variants import Variant
    from es_sbert.errors import UsageError
    from es_sbert.exporters.export_bundle import export_bundle, export_reranker
    from es_sbert.messages import setting
    from es_sbert.runtime.variant_candidates import default_exports

    if any(name not in set(Variant) for name in variants or ()):
        raise UsageError(f"{variants!r} are not variants", f"Use {', '.join(Variant)}.").about("variants", variants)
    chosen = None if variants is None else [Variant(name) for name in variants]
    folder = model if isinstance(model, Path) else resolve_model(model)
    output = Path(output)
    if is_cross_encoder(folder):
        if ignore_settings:
            remedy = f"Leave {setting('ignore_settings')} out."
            raise UsageError("no setting of a cross-encoder can be ignored", remedy).about("ignore_settings")
        wanted = default_exports() if chosen is None else chosen
        cross_encoder = read_cross_encoder(folder, str(model))
        exported = export_reranker(cross_encoder, output, wanted, force=force, on_progress=report)
        if register:
            try_register_model(output, exported.fingerprint)
        return exported
    sentence_model = read_sentence_model(folder, str(model), ignored=ignore_settings)
    wanted = default_exports(sentence_model.architecture) if chosen is None else chosen
    manifest = export_bundle(sentence_model, output, wanted, force=force, reference="auto", on_progress=report)
    if register:
        try_register_model(output, manifest.fingerprint)
    if (warning := prompt_warning(read_sentence_model(output, manifest.name))) is not None:
        report(f"Warning: {warning}")
    return manifest


__all__ = ["export_model"]
