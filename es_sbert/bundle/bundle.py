"""Open exported bundles and check them against their manifests.

A sentence encoder's manifest is `es_sbert.json`, a reranker's `es_sbert_reranker.json`. `cached_bundle_path` gives the
place of a bundle that is exported on first use.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from es_sbert.bundle.cross_encoder_model import CrossEncoderModel, ScoreActivation, is_cross_encoder, read_cross_encoder
from es_sbert.bundle.file_hashes import remembered_hash
from es_sbert.bundle.model_files import check_model_file, read_json
from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.bundle.variants import Runtime
from es_sbert.config import cache_folder
from es_sbert.errors import BundleInvalid, error_summary


class DifferenceCause(StrEnum):
    """The most likely cause of a variant's difference from the reference. Manifests contain these texts."""

    TOKENIZER = "the reference reads other tokens (tokenizer.json, tokenizer_config.json)"
    KIND = "the reference reads other tokens of this kind (prompts, query_expansion)"
    LENGTH = "the reference cuts it at another length (max_seq_length, query_length, document_length)"
    NETWORK = "the tokens are the same, the network differs (config.json, weights, modules)"
    ROUNDING = "the tokens are the same; values are rounded to fewer bits"


class ParityReport(BaseModel, frozen=True):
    """Comparison of a variant's vectors with those of the reference implementation.

    Usage:
        ```python
        parity = export_model("all-MiniLM-L6-v2", "exported", ["fp32"]).variants["fp32"].parity
        print(parity)
        ```

    Attributes:
        reference: Library that computed the reference, with version (`transformers 5.23.0`, `numpy 2.4.6`).
        sentences: Number of sentences compared.
        mean_cosine, min_cosine: Cosine of variant and reference vector of the same sentence.
        max_abs_difference: Largest difference of one coordinate.
        rank_agreement: Spearman's ρ × 100 between the two sets of pairwise cosines.
        sts_reference, sts_variant: Of exports by earlier releases: Spearman's ρ × 100 against gold scores.
        bar: The thresholds, as text.
        passed: Whether the variant meets these thresholds.
        worst, cause: The text with the lowest cosine, and the most likely cause; None if the variant passed.
        emulated: Whether the variant's number format was emulated because the intended device is missing.
    """

    reference: str
    sentences: int
    mean_cosine: float
    min_cosine: float
    max_abs_difference: float
    rank_agreement: float
    sts_reference: float | None = None
    sts_variant: float | None = None
    bar: str
    passed: bool
    worst: str | None = None
    cause: DifferenceCause | None = None
    emulated: bool = False


class GraphFile(BaseModel, frozen=True):
    """A variant in a manifest: an ONNX file, which several variants may share, and the runtime and device for it.

    Attributes:
        file: Path inside the folder, with forward slashes.
        sha256: Hash of that file.
        data_sha256: Hash of `FILE.data`, which holds the weights if they exceed protobuf's limit of 2 GB; else None.
        runtime: Library that runs the variant: `onnxruntime` or `openvino`.
        precision: Number format of the variant's matrix products: fp32, int8, fp16 or bf16.
        device: Device that the variant is intended for: `cpu` or `cuda`.
        forced: Whether the variant was written although it failed the parity check.
    """

    file: str
    sha256: str
    data_sha256: str | None = None
    runtime: str = Runtime.ONNXRUNTIME
    precision: str
    device: str
    forced: bool = False


class EncoderVariant(GraphFile, frozen=True):
    """A variant of a sentence encoder.

    Usage:
        ```python
        variant = export_model("all-MiniLM-L6-v2", "exported", ["fp32"]).variants["fp32"]
        print(variant.file, variant.precision, variant.runtime)
        ```

    Attributes:
        attention: `plain`, or for CUDA `packed` (without padding) or `fused`; `traced` if torch's exporter wrote it.
        parity: Its parity report; None if it can only be measured on a device that the exporting machine lacked.
    """

    attention: str
    parity: ParityReport | None


class EncoderManifest(BaseModel, frozen=True):
    """Contents of `es_sbert.json`.

    Usage:
        ```python
        manifest = export_model("all-MiniLM-L6-v2", "exported", ["fp32"])
        print(manifest.fingerprint, list(manifest.variants))
        ```

    Class attributes:
        FILE_NAME: Name of the file.
        FORMAT: Version of the file's layout that this release writes and reads.

    Attributes:
        format: Version of this file's layout.
        name, architecture, fingerprint, pooling, normalize, max_tokens, dimensions, prompts, default_prompt: Settings
            of the model.
        ignored_settings: Unknown settings that the user accepted.
        variants: Variants by name (`fp32`, `int8`, `openvino-bf16`, …).
        exporter: Versions of es-sbert, onnx and onnxruntime that wrote the bundle.
    """

    FILE_NAME: ClassVar = "es_sbert.json"
    FORMAT: ClassVar = 1

    format: int = FORMAT
    name: str
    architecture: str
    fingerprint: str
    pooling: list[str]
    normalize: bool
    max_tokens: int
    dimensions: int
    prompts: dict[str, str]
    default_prompt: str | None
    ignored_settings: list[str] = []
    variants: dict[str, EncoderVariant]
    exporter: dict[str, str]


class ScoreParityReport(BaseModel, frozen=True):
    """Comparison of a variant's outputs with those of the reference implementation.

    Usage:
        ```python
        parity = export_model("my-cross-encoder", "my-reranker", ["fp32"]).variants["fp32"].parity
        print(parity)
        ```

    Differences are measured per label, in standard deviations of the reference's outputs over the pairs, so they do not
    depend on the range of a model's outputs.

    Attributes:
        reference: Library that computed the reference, with version.
        pairs: Number of pairs compared.
        mean_difference, max_difference: Difference of one output, in standard deviations.
        rank_agreement: Spearman's ρ × 100 between the two orders of the pairs; with several labels, the lowest.
        bar: The thresholds, as text.
        passed: Whether the variant meets these thresholds.
        emulated: Whether the variant's number format was emulated because the intended device is missing.
    """

    reference: str
    pairs: int
    mean_difference: float
    max_difference: float
    rank_agreement: float
    bar: str
    passed: bool
    emulated: bool = False


class RerankerVariant(GraphFile, frozen=True):
    """A variant of an exported cross-encoder.

    Usage:
        ```python
        variant = export_model("my-cross-encoder", "my-reranker", ["fp32"]).variants["fp32"]
        print(variant.file, variant.precision, variant.runtime)
        ```

    Attributes:
        parity: Its parity report; None if it can only be measured on a device that the exporting machine lacked.
    """

    parity: ScoreParityReport | None


class PairFormat(BaseModel, frozen=True):
    """Format in which the tokenizer of a cross-encoder passes pairs to its network.

    Attributes:
        inputs: Names of the graph's inputs, int64 of *shape* ``(batch, tokens)``.
        padding_id: Id of the padding token.
        padding_side: Side of the padding; XLNet's head reads the last token, so its padding is on the left.
        truncation_side: Side at which a text is truncated when a pair is too long.
    """

    inputs: tuple[str, ...]
    padding_id: int
    padding_side: Literal["left", "right"]
    truncation_side: Literal["left", "right"]


class RerankerManifest(BaseModel, frozen=True):
    """Contents of `es_sbert_reranker.json`.

    Usage:
        ```python
        manifest = export_model("my-cross-encoder", "my-reranker", ["fp32"])
        print(manifest.fingerprint, list(manifest.variants))
        ```

    Class attributes: As in `EncoderManifest`.

    Attributes:
        format: Version of this file's layout.
        name, architecture, fingerprint, labels, activation, max_tokens, lowercase: Settings of the model.
        pairs: Format of pairs for the network.
        variants: Variants by name.
        exporter: Versions of the libraries that wrote the folder.
    """

    FILE_NAME: ClassVar = "es_sbert_reranker.json"
    FORMAT: ClassVar = 1

    format: int = FORMAT
    name: str
    architecture: str
    fingerprint: str
    labels: tuple[str, ...]
    activation: ScoreActivation
    max_tokens: int
    lowercase: bool
    prompt: str = ""
    pairs: PairFormat
    variants: dict[str, RerankerVariant]
    exporter: dict[str, str]


MANIFESTS = (EncoderManifest.FILE_NAME, RerankerManifest.FILE_NAME)
ModelT = TypeVar("ModelT", SentenceModel, CrossEncoderModel)
ManifestT = TypeVar("ManifestT", EncoderManifest, RerankerManifest)


def describe_model(model: SentenceModel | CrossEncoderModel, kind: type[ManifestT]) -> dict[str, Any]:
    """Return the settings of a model that belong in a manifest of this class."""
    return model.model_dump(mode="json", include=set(kind.model_fields))


_EXPORT_AGAIN = "Export the model again: `es-sbert export MODEL -o BUNDLE`."


@dataclass(frozen=True)
class Bundle(Generic[ModelT, ManifestT]):
    """A model folder with ONNX variants.

    Attributes:
        folder: The folder.
        model: The model as read from its configuration files.
        manifest: Its manifest, which agrees with the model.
    """

    folder: Path
    model: ModelT
    manifest: ManifestT

    def variant_file(self, name: str) -> Path:
        """Check the hash of a variant's ONNX file and return its path.

        Raises:
            BundleInvalid: the file is missing or differs from what was exported.
        """
        graph = self.manifest.variants[name]
        path = self.folder / graph.file
        _check_hash(path, graph.sha256)
        if graph.data_sha256 is not None:
            _check_hash(path.with_name(f"{path.name}.data"), graph.data_sha256)
        return path


EncoderBundle = Bundle[SentenceModel, EncoderManifest]
RerankerBundle = Bundle[CrossEncoderModel, RerankerManifest]


def rename_bundle(bundle: EncoderBundle, name: str) -> EncoderBundle:
    """Return the bundle with a different name for its model."""
    return replace(bundle, model=bundle.model.model_copy(update={"name": name}))


def is_encoder_bundle(folder: Path) -> bool:
    """Whether the folder has a sentence encoder's manifest."""
    return (folder / EncoderManifest.FILE_NAME).is_file()


def is_reranker_bundle(folder: Path) -> bool:
    """Whether the folder has a reranker's manifest."""
    return (folder / RerankerManifest.FILE_NAME).is_file()


def open_encoder_bundle(folder: Path) -> EncoderBundle:
    """Open an exported sentence encoder.

    Raises:
        BundleInvalid: the manifest is broken or of a newer format, or weights, tokenizer, pooling or prompts have
            changed since the export.
    """
    return _open_bundle(folder, EncoderManifest, read_sentence_model)


def open_reranker_bundle(folder: Path) -> RerankerBundle:
    """Open an exported cross-encoder.

    Raises:
        BundleInvalid: the folder is not an exported cross-encoder, its manifest is broken, or its files have changed
            since the export.
    """
    if not is_reranker_bundle(folder):
        if folder.is_dir() and is_cross_encoder(folder):
            raise BundleInvalid(
                f"{folder} is a cross-encoder that has not been exported yet",
                f"Export it: `es-sbert export {folder} -o RERANKER`",
            )
        raise BundleInvalid(
            f"{folder} is not a reranker: it has no {RerankerManifest.FILE_NAME}",
            "Use the folder that `es-sbert export CROSS_ENCODER -o RERANKER` wrote.",
        )
    return _open_bundle(folder, RerankerManifest, read_cross_encoder)


def _open_bundle(
    folder: Path, kind: type[ManifestT], read_model: Callable[[Path, str], ModelT]
) -> Bundle[ModelT, ManifestT]:
    """Read the manifest and the model, and check that the model's files still have the settings in the manifest."""
    manifest = _read_manifest(folder, kind)
    model = read_model(folder, manifest.name)
    actual = kind.model_validate(manifest.model_dump() | describe_model(model, kind))
    changed = [name for name in kind.model_fields if getattr(actual, name) != getattr(manifest, name)]
    if changed:
        raise BundleInvalid(
            f"{folder} was edited after its export, or exported by an earlier es-sbert that read it differently: "
            f"{', '.join(changed)} no longer agree with {kind.FILE_NAME}",
            "Undo an edit, or export the edited model to a new folder: `es-sbert export MODEL -o BUNDLE`.",
        )
    return Bundle(folder, model, manifest)


def _read_manifest(folder: Path, kind: type[ManifestT]) -> ManifestT:
    """Read the manifest of a folder.

    Raises:
        BundleInvalid: the manifest is missing, broken, of an unknown format, or names a file outside the folder.
    """
    path = folder / kind.FILE_NAME
    raw = read_json(path)
    if raw.get("format") != kind.FORMAT:
        raise BundleInvalid(
            f"{path} has format {raw.get('format')!r}, but this es-sbert reads format {kind.FORMAT}",
            "Upgrade es-sbert, or export the model again with this version.",
        )
    try:
        manifest = kind.model_validate(raw)
    except ValidationError as error:
        raise BundleInvalid(f"{path}: {error_summary(error)}", _EXPORT_AGAIN) from error
    for variant in manifest.variants.values():
        file = Path(variant.file)
        if file.is_absolute() or ".." in file.parts:
            raise BundleInvalid(f"{path} names {variant.file!r}, outside the bundle", "Do not use this bundle.")
    return manifest


def _check_hash(path: Path, sha256: str) -> None:
    if not path.is_file():
        raise BundleInvalid(f"{path} is missing", _EXPORT_AGAIN)
    check_model_file(path)
    if remembered_file_hash(path) != sha256:
        raise BundleInvalid(f"{path} was changed after its export", _EXPORT_AGAIN)


def remembered_file_hash(path: Path) -> str:
    """SHA-256 of a file, as from `hash_file`, cached for as long as the file does not change."""
    return remembered_hash("sha256", [path], lambda: hash_file(path))


def hash_file(path: Path) -> str:
    """Compute the SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached_bundle_path(fingerprint: str) -> Path:
    """Path in the cache for the bundle of the model with a fingerprint; it may not exist."""
    return cache_folder() / "bundles" / fingerprint
