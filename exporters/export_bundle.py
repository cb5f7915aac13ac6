"""Export a sentence encoder or a cross-encoder to a bundle of parity-checked ONNX variants.

Graphs of known sentence-encoder architectures are built from the weights, without torch. Other architectures and all
cross-encoders are traced with torch (extra `train`). Running a bundle never needs torch. The output folder is written
atomically.
"""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx

from es_sbert.bundle.bundle import (
    MANIFESTS,
    DifferenceCause,
    EncoderBundle,
    EncoderManifest,
    EncoderVariant,
    GraphFile,
    ManifestT,
    ParityReport,
    RerankerBundle,
    RerankerManifest,
    RerankerVariant,
    ScoreParityReport,
    describe_model,
    hash_file,
    open_encoder_bundle,
    open_reranker_bundle,
)
from es_sbert.bundle.cross_encoder_model import CrossEncoderModel
from es_sbert.bundle.model_files import module_entry, read_module_list, write_json, write_module_entries
from es_sbert.bundle.sentence_model import SentenceModel
from es_sbert.bundle.variants import Precision, Variant
from es_sbert.errors import (
    DeviceError,
    ParityFailed,
    UnsupportedArchitecture,
    UnsupportedSetting,
    UsageError,
    require_extra,
)
from es_sbert.exporters.architectures import read_transformer_weights
from es_sbert.exporters.graph_builder import save_graph
from es_sbert.exporters.numpy_reference import ReferenceKind
from es_sbert.exporters.parity import ParityCheck, describe_parity, is_packed
from es_sbert.exporters.rotary_graph import build_rotary_graph
from es_sbert.exporters.sentence_graph import build_sentence_graph, build_static_graph
from es_sbert.exporters.static_quantization import quantize_statically, sample_batches
from es_sbert.exporters.transformer_weights import EncoderWeights, StaticWeights, read_static_weights
from es_sbert.filesystem import is_vacant, staged_folder
from es_sbert.installation import install_extra_command
from es_sbert.messages import setting
from es_sbert.runtime.batching import ModelInputs
from es_sbert.runtime.onnx_runtime import onnxruntime
from es_sbert.version import __version__

# Files that sentence-transformers reads, and the model card. Pickles and exports for other runtimes are not copied.
_KEPT_SUFFIXES = {".json", ".txt", ".safetensors", ".model", ".md", ".jinja"}
_LOG_SUFFIXES = {".csv", ".json", ".png"}


def copy_files(source: Path, target: Path) -> None:
    """Copy the configurations, tokenizer, safetensors and model card from a model folder and its modules' folders."""
    modules = read_module_list(source) if (source / "modules.json").exists() else []
    kept = dict.fromkeys(["", *(place for _, place in modules)], _KEPT_SUFFIXES)
    kept["training"] = _LOG_SUFFIXES  # of a model that es-sbert trained; leftover weights of the run are not copied
    for place, suffixes in kept.items():
        if not (source / place).is_dir():
            continue  # a Normalize module has no settings and often no folder
        (target / place).mkdir(parents=True, exist_ok=True)
        for file in (source / place).iterdir():
            if file.is_file() and file.suffix in suffixes and file.name not in MANIFESTS:
                shutil.copyfile(file, target / place / file.name)  # follows the links of a hub cache


def copy_model(model: SentenceModel | CrossEncoderModel, folder: Path) -> None:
    """Write a model's files to an empty folder, from which sentence-transformers computes the same vectors or scores.

    Files that the model folder lacks because the library can do without them are written too: the list of modules
    and tokenizer.json.
    """
    copy_files(model.folder, folder)
    if isinstance(model, SentenceModel) and not (folder / "modules.json").exists():
        write_module_entries(folder, [module_entry("Transformer", ""), module_entry("Pooling", "1_Pooling")])
        pooling = {"word_embedding_dimension": model.dimensions, "pooling_mode": str(model.pooling[0])}
        write_json(folder / "1_Pooling/config.json", pooling)
        write_json(folder / "sentence_bert_config.json", {"max_seq_length": model.max_tokens})
    if not model.tokenizer_file.exists():
        write_json(folder / model.transformer / "tokenizer.json", model.tokenizer_json())


def copy_graphs(graphs: Iterable[GraphFile], source: Path, target: Path) -> None:
    """Copy the ONNX files of an earlier export."""
    for graph in graphs:
        (target / graph.file).parent.mkdir(parents=True, exist_ok=True)
        for part in (graph.file, f"{graph.file}.data"):
            if (source / part).is_file():
                shutil.copyfile(source / part, target / part)


_TRACERS = ("torch", "sentence_transformers")
BuildFunction = Callable[[Precision], onnx.ModelProto]


def choose_graph_source(model: SentenceModel) -> tuple[BuildFunction, EncoderWeights | None]:
    """Return the function that builds a model's graphs, and the model's weights (None if graphs are traced).

    Graphs of known architectures are built from the weights, without torch.

    Raises:
        UnsupportedArchitecture: graphs cannot be built from the weights, and either torch is not installed or the
            model comes with code, which is never run.
        UnsupportedSetting: only transformers knows how the model's tokenizer reads texts, and it is not installed.
        BundleInvalid: weights are missing or of the wrong shape.
    """
    if model.architecture == "static":
        static = read_static_weights(model)
        return partial(build_static_graph, model, static), static
    if not model.tokenizer_is_known and importlib.util.find_spec("sentence_transformers") is None:
        raise UnsupportedSetting(
            f"{model.name} reads texts with {model.tokenizer_class}, and only transformers knows whether "
            "tokenizer.json does the same",
            f"Install transformers; the export then compares the two: {install_extra_command('train')}",
        )
    try:
        transformer = read_transformer_weights(model)
    except UnsupportedArchitecture as error:
        if "auto_map" in model.transformer_config:
            raise UnsupportedArchitecture(
                error.message,
                "es-sbert does not run code that comes with a model. Choose an architecture that transformers has.",
            ) from error
        if any(importlib.util.find_spec(name) is None for name in _TRACERS):
            raise
        # Imported here: only such models need torch.
        from es_sbert.exporters.tracing import TracedSentenceModel

        return TracedSentenceModel(model).build, None
    if transformer.is_rotary:
        return partial(build_rotary_graph, model, transformer), transformer
    return partial(build_sentence_graph, model, transformer), transformer


def export_bundle(
    model: SentenceModel,
    output: Path,
    variants: Sequence[Variant],
    *,
    force: bool = False,
    reference: ReferenceKind = "numpy",
    on_progress: Callable[[str], None] = lambda line: None,
) -> EncoderManifest:
    """Write a bundle: the model's own files, an ONNX graph for each variant, and `es_sbert.json`.

    The folder is written only if every variant passes the parity check, and then all at once. An existing bundle of
    the same model keeps the variants that are not exported again.

    Args:
        model: The model to export.
        output: Folder of the bundle; new, empty, or a bundle of the same model.
        variants: Variants to export: those of OpenVINO, fp32 and int8 for a CPU, fp16 for CUDA.
        force: Write variants that fail the parity check too, marked as forced.
        reference: Implementation to compare with. `numpy` needs no other package. `auto` takes sentence-transformers
            if it is installed, which imports torch. Traced models are always compared with sentence-transformers.
        on_progress: Called with a line before or after each step.

    Raises:
        UsageError: the output folder holds something else, or no variant is given.
        UnsupportedArchitecture: a graph can be neither built from the transformer's weights nor traced (torch is
            missing or fails), or the model does not support a variant.
        BundleInvalid: weights are missing or of the wrong shape.
        ParityFailed: a variant fails the parity check; nothing was written.
    """
    _check_variants(variants)
    _previous_manifest(model, output)  # rejects a folder that holds something else before the work starts
    if not (model.folder / "modules.json").exists():
        on_progress(f"{model.name} has no modules.json: using {model.pooling[0]} pooling like sentence-transformers")
    on_progress(f"Reading the weights of {model.name} ({model.architecture})")
    build, weights = choose_graph_source(model)
    if Variant.FP16 in variants and isinstance(weights, StaticWeights):
        raise UnsupportedArchitecture(
            f"{model.name} has no fp16 variant: it is a table of vectors without matrix products",
            "Export fp32 or int8; fp32 runs on CUDA too.",
        )
    is_traced = weights is None
    if is_traced:
        on_progress(f"Tracing it with torch: es-sbert cannot build a graph from the weights of {model.architecture}")
    writer = _GraphWriter(
        model.name,
        build,
        partial(sample_batches, model),
        ParityCheck(model, weights, reference).run,
        on_progress,
        force=force,
        cuda_attention=None if is_traced else "packed" if is_packed(weights) else "fused",
    )
    return _export(EncoderManifest, model, output, writer, variants, {})


def export_reranker(
    model: CrossEncoderModel,
    output: Path,
    variants: Sequence[Variant],
    *,
    force: bool = False,
    on_progress: Callable[[str], None] = lambda line: None,
) -> RerankerManifest:
    """Write the model's own files, an ONNX graph for each variant, and `es_sbert_reranker.json`.

    A graph takes `input_ids`, `attention_mask` and, if the model distinguishes the two texts of a pair by it,
    `token_type_ids`, int64 (batch, tokens). It returns `score`, float32 (batch, labels), before the activation.
    The folder is written only if every variant passes the parity check, and then all at once. An exported reranker of
    the same model keeps the variants that are not exported again.

    Args:
        model: The cross-encoder.
        output: Folder to write; new, empty, or an exported reranker of the same model.
        variants: Variants to export: those of OpenVINO, fp32 and int8 for a CPU, fp16 for CUDA.
        force: Write variants that fail the parity check too, marked as forced.
        on_progress: Called with a line before each step.

    Raises:
        UsageError: the output folder holds something else, no variant is given, or torch is not installed.
        UnsupportedArchitecture: torch cannot trace the model, or its graph cannot be written in a precision.
        BundleInvalid: the model's files contradict each other.
        ParityFailed: a variant fails the parity check; nothing was written.
    """
    _check_variants(variants)
    require_extra("train", "torch", "sentence_transformers")
    # Imported here: it imports torch.
    from es_sbert.exporters.tracing import TracedCrossEncoder

    # Rejects a folder that holds something else before the work starts.
    previous = _previous_manifest(model, output)
    on_progress(f"Tracing {model.name} ({model.architecture}) with torch")
    traced = TracedCrossEncoder(model)
    if isinstance(previous, RerankerManifest) and previous.pairs != traced.pairs:
        raise UsageError(
            f"{output} was exported from {previous.name} with another form of pairs ({previous.pairs}) than "
            f"{model.name} has now ({traced.pairs}): its graphs would compute other scores",
            "Undo the change of tokenizer_config.json, or export to another folder.",
        )
    writer = _GraphWriter(model.name, traced.build, traced.sample, traced.compare, on_progress, force=force)
    return _export(RerankerManifest, model, output, writer, variants, {"pairs": traced.pairs})


def _check_variants(variants: Sequence[Variant]) -> None:
    if not variants:
        raise UsageError("at least one variant is required", f"Use {', '.join(Variant)}.").about("variants", variants)


@dataclass(frozen=True)
class _GraphWriter:
    """Builds the graphs of one network and compares each with the reference.

    Attributes:
        name: Name of the model.
        build: Builds the graph in a precision.
        sample: Makes inputs from sample texts for an fp32 graph.
        compare: Compares a written graph with the reference; raises DeviceError if this machine lacks the device.
        say: Called with a line before each step.
        force: Whether variants that fail the parity check are written too.
        cuda_attention: Form of attention in fp16 graphs that are built from the weights; None if torch writes the
            graphs.
    """

    name: str
    build: BuildFunction
    sample: Callable[[onnx.ModelProto], Iterable[ModelInputs]]
    compare: Callable[[Path, Variant], ParityReport | ScoreParityReport]
    say: Callable[[str], None]
    force: bool
    cuda_attention: str | None = None

    def write_variant(self, bundle: Path, variant: Variant, exported: Sequence[Variant]) -> dict[str, Any]:
        """Write a variant's graph, unless another variant wrote it already, and return its entry in the manifest."""
        attention = "traced" if self.cuda_attention is None else "plain"
        if variant.precision is Precision.FP16 and self.cuda_attention is not None:
            attention = self.cuda_attention
        path = bundle / "onnx" / f"model_{variant.graph}.onnx"
        if not path.exists():
            begun = time.perf_counter()
            save_graph(self._build(variant), path)
            self.say(f"Built {variant.graph} in {time.perf_counter() - begun:.1f} s")
        report = self._check(path, variant)
        forced = report is not None and not report.passed
        if report is not None and forced and not self.force:
            if variant is not Variant.FP32:
                report = self._with_cause_of_fp32(path, report)
            raise _parity_failed(self.name, variant, report, exported)
        data = path.with_name(f"{path.name}.data")
        return {
            "file": path.relative_to(bundle).as_posix(),
            "sha256": hash_file(path),
            "data_sha256": hash_file(data) if data.exists() else None,
            "runtime": variant.runtime,
            "precision": variant.precision,
            "device": variant.precision.device,
            "forced": forced,
            "attention": attention,
            "parity": report,
        }

    def carry_over(
        self,
        previous: Mapping[str, EncoderVariant | RerankerVariant],
        source: Path,
        bundle: Path,
        entries: dict[str, Any],
    ) -> dict[str, Any]:
        """Copy the variants of an earlier export that were not exported again, and return the entries of all variants.

        Variants share files. If the file of an earlier variant has changed, perhaps because another release wrote it,
        the variant is checked again.

        Args:
            previous: The variants of the earlier export.
            source: Folder of the earlier export.
            bundle: The new folder.
            entries: The entries of this export.
        """
        files = {entry["file"]: entry["sha256"] for entry in entries.values()}
        kept: dict[str, Any] = {}
        for name, variant in previous.items():
            if name in entries:
                continue
            if files.get(variant.file, variant.sha256) == variant.sha256:
                copy_graphs([variant], source, bundle)
                kept[name] = variant
            else:
                kept[name] = self.write_variant(bundle, Variant(name), [Variant(name)])
        return {**kept, **entries}

    def _build(self, variant: Variant) -> onnx.ModelProto:
        if variant is not Variant.OPENVINO_INT8:
            return self.build(Precision(variant.graph))
        exact = self.build(Precision.FP32)
        return quantize_statically(exact, self.sample(exact))

    def _with_cause_of_fp32(self, path: Path, report: Any) -> Any:
        """Return the report of a variant that failed, with the network as the cause if fp32 fails as well."""
        if not isinstance(report, ParityReport) or report.cause is not DifferenceCause.ROUNDING:
            return report
        exact = path.with_name("exact.onnx")
        save_graph(self.build(Precision.FP32), exact)
        fp32 = self.compare(exact, Variant.FP32)
        return report if fp32.passed else report.model_copy(update={"cause": DifferenceCause.NETWORK})

    def _check(self, path: Path, variant: Variant) -> ParityReport | ScoreParityReport | None:
        self.say(f"Comparing {variant} with the reference")
        begun = time.perf_counter()
        try:
            report = self.compare(path, variant)
        except DeviceError as error:
            self.say(f"{variant}: not compared with the reference: {error.message}")
            return None
        self.say(f"{variant}: {describe_parity(report)} ({time.perf_counter() - begun:.1f} s)")
        return report


def _export(
    kind: type[ManifestT],
    model: SentenceModel | CrossEncoderModel,
    output: Path,
    writer: _GraphWriter,
    variants: Sequence[Variant],
    settings: Mapping[str, Any],
) -> ManifestT:
    """Export variants to a folder, which is written completely or not at all, and return its manifest.

    Args:
        kind: Class of the manifest.
        model: The model.
        output: Folder of the bundle.
        writer: Writes its graphs.
        variants: The variants to export.
        settings: Further entries of the manifest.
    """
    variants = list(dict.fromkeys(map(Variant, variants)))
    with staged_folder(output) as folder:
        copy_model(model, folder)
        entries = {name.value: writer.write_variant(folder, name, variants) for name in variants}
        # Carried over last: another export may have written variants here in the meantime.
        previous = _previous_manifest(model, output)
        if previous is not None:
            entries = writer.carry_over(previous.variants, output, folder, entries)
        # Versions of the packages that determine the contents of a graph.
        versions = {"es-sbert": __version__, "onnx": version("onnx"), "onnxruntime": str(onnxruntime.__version__)}
        about = {**describe_model(model, kind), **settings, "variants": entries, "exporter": versions}
        manifest = kind.model_validate(about)
        write_json(folder / manifest.FILE_NAME, manifest.model_dump(mode="json"))
        # Opening it verifies that the copy has the model's fingerprint and settings.
        _open_bundle(model, folder)
    return manifest


def _open_bundle(model: SentenceModel | CrossEncoderModel, folder: Path) -> EncoderBundle | RerankerBundle:
    return open_encoder_bundle(folder) if isinstance(model, SentenceModel) else open_reranker_bundle(folder)


def _previous_manifest(
    model: SentenceModel | CrossEncoderModel, output: Path
) -> EncoderManifest | RerankerManifest | None:
    """Read the manifest of the bundle that an export adds to; None if there is no bundle yet.

    Raises:
        UsageError: the folder holds something else, or a bundle of another model.
        BundleInvalid: the folder holds a bundle that was edited by hand.
    """
    kind = EncoderManifest if isinstance(model, SentenceModel) else RerankerManifest
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output} is a file", "Use a folder that does not exist yet.").about("output", output)
    if not (output / kind.FILE_NAME).is_file():
        if not is_vacant(output):
            raise UsageError(
                f"{output} is neither empty nor an es-sbert bundle",
                "Use a folder that is empty or does not exist yet.",
            ).about("output", output)
        return None
    manifest = _open_bundle(model, output).manifest
    if manifest.fingerprint != model.fingerprint:
        raise UsageError(
            f"{output} is a bundle of {manifest.name} (fingerprint {manifest.fingerprint}), "
            f"not of {model.name} ({model.fingerprint})",
            "Export to another folder, or delete this one first.",
        ).about("output", output)
    return manifest


def _parity_failed(
    name: str, variant: Variant, report: ParityReport | ScoreParityReport, exported: Sequence[Variant]
) -> ParityFailed:
    message = f"{name}: variant {variant} fails the parity check ({report.bar}): {describe_parity(report)}. "
    message += "Nothing was written"
    read_differently = isinstance(report, ParityReport) and report.cause is not DifferenceCause.ROUNDING
    if variant is Variant.FP32 or read_differently:
        return ParityFailed(
            message,
            "es-sbert reads this model differently from sentence-transformers. Please report it, attaching the model's "
            "*.json files, and serve the model with sentence-transformers until it is fixed.",
        )
    others = [str(other) for other in exported if other is not variant]
    leave = f"Leave it out ({setting('variants', others)}), or" if others else "Export another variant, or"
    return ParityFailed(message, f"{leave} write it anyway with {setting('force')}; every summary will then say so.")
