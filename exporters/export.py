"""`export_bundle`: from a sentence-transformers model to a folder with checked ONNX variants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from es_sbert.bundle.manifest import MANIFEST_NAME, Manifest, ParityReport, Variant
from es_sbert.bundle.model import Precision, SentenceModel
from es_sbert.bundle.store import open_bundle
from es_sbert.errors import DeviceError, ParityFailed, UsageError
from es_sbert.exporters.build import Recipe
from es_sbert.exporters.check import ParityCheck, read_gold_pairs
from es_sbert.exporters.files import describe_file, save_graph, versions
from es_sbert.exporters.parity import describe
from es_sbert.exporters.reference import ReferenceKind
from es_sbert.exporters.source import choose_source
from es_sbert.exporters.staging import copy_graphs, copy_model, previous_manifest, staged, write_manifest


def export_bundle(
    model: SentenceModel,
    output: Path,
    precisions: Sequence[Precision],
    *,
    force: bool = False,
    sts_file: Path | None = None,
    reference: ReferenceKind = "numpy",
    on_progress: Callable[[str], None] | None = None,
) -> Manifest:
    """Write a bundle: the model's own files, an ONNX graph for each precision, and `es_sbert.json`.

    The folder appears whole, after every variant has passed its parity gate, or not at all. An existing bundle of
    the same model keeps the variants that are not exported again.

    Args:
        model: The model to export.
        output: Folder of the bundle; new, empty, or a bundle of the same model.
        precisions: Which variants: fp32 and int8 for a CPU, fp16 for CUDA (two, with fused and packed attention).
        force: Write variants that miss their bar too, marked as forced.
        sts_file: File of sentence pairs with gold scores, on which variants are compared as well.
        reference: What to compare with. `numpy` needs nothing; `auto` takes sentence-transformers where it is
            installed, which imports torch. Models that are traced are always compared with it.
        on_progress: Told what is being done, a line at a time.

    Raises:
        UsageError: the output folder holds something else, or no precision is given.
        SourceError: the STS file cannot be read.
        UnsupportedArchitecture: no graph can be built for this transformer from its weights, and none traced
            (torch is missing, or it fails on it), or traced graphs have no such precision.
        BundleInvalid: weights are missing or of the wrong shape.
        ParityFailed: a variant misses its bar; nothing was written.
    """
    if not precisions:
        raise UsageError("no precision to export is given", "Give at least one of fp32, int8, fp16.")
    say = on_progress or (lambda line: None)
    gold = read_gold_pairs(sts_file) if sts_file else None
    previous_manifest(model, output)  # refuses what is not to be written to, before the work
    say(f"Reading the weights of {model.name} ({model.architecture})")
    source = choose_source(model)
    recipes = source.recipes(precisions)
    check = ParityCheck(model, source.transformer, reference, gold)
    if source.transformer is None:
        say(f"Tracing it with torch: no graph is built from the weights of {model.architecture}")

    with staged(output) as folder:
        copy_model(model, folder)
        variants: dict[str, Variant] = {}
        for recipe in recipes:
            say(f"Building {recipe.name}")
            path = folder / "onnx" / f"model_{recipe.name}.onnx"
            save_graph(source.build(recipe), path)
            say(f"Comparing {recipe.name} with the reference")
            try:
                report = check(path, recipe)
                say(f"{recipe.name}: {describe(report)}")
            except DeviceError as error:
                report = None
                say(f"{recipe.name}: not compared with the reference: {error.message}")
            if report is not None and not report.passed and not force:
                raise _parity_failed(model, recipe, report, precisions)
            forced = report is not None and not report.passed
            file = describe_file(path, folder, precision=recipe.precision, device=recipe.device, forced=forced)
            variants[recipe.name] = Variant(**file.model_dump(), attention=recipe.attention, parity=report)
        # Carried over last: another export may have written variants here while these were made.
        previous = previous_manifest(model, output)
        if previous is not None:
            kept = {name: variant for name, variant in previous.variants.items() if name not in variants}
            copy_graphs(kept.values(), output, folder)
            variants = kept | variants
        manifest = Manifest.of(model, variants, versions())
        write_manifest(manifest, folder / MANIFEST_NAME)
        open_bundle(folder)  # proves that the copy is the model: same fingerprint, same settings
    return manifest


def _parity_failed(
    model: SentenceModel, recipe: Recipe, report: ParityReport, precisions: Sequence[Precision]
) -> ParityFailed:
    others = ",".join(precision for precision in dict.fromkeys(precisions) if precision is not recipe.precision)
    leave = f"Leave it out (--precision {others}), or" if others else "Export another precision, or"
    return ParityFailed(
        f"{model.name}: variant {recipe.name} misses its bar ({report.bar}): {describe(report)}. Nothing was written",
        f"{leave} write it all the same with --force; every summary will then say so.",
    )
