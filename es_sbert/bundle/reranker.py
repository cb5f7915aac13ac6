"""`es_sbert_reranker.json`: what an exported cross-encoder says of itself; opening one proves it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from es_sbert.bundle.cross_encoder import CrossEncoderModel, ScoreActivation, is_cross_encoder, read_cross_encoder
from es_sbert.bundle.manifest import GraphFile
from es_sbert.bundle.store import check_inside, checked_file, read_manifest
from es_sbert.errors import BundleInvalid

RERANKER_MANIFEST_NAME = "es_sbert_reranker.json"
RERANKER_MANIFEST_FORMAT = 1


class ScoreParity(BaseModel):
    """How closely a variant gives the outputs of the reference implementation.

    Differences are in standard deviations of the reference's outputs over the pairs, label by label: how far a pair
    moves among the others, whatever range a model's outputs have.

    Attributes:
        reference: What it was compared with, with version.
        pairs: Number of pairs compared.
        mean_difference, max_difference: Of one output, in standard deviations.
        rank_agreement: Spearman's ρ × 100 between the two orders of the pairs; of several labels the least.
        bar: The condition that was checked, in words.
        passed: Whether the variant meets its bar.
        emulated: Whether the variant's number format was emulated, for want of the device that it is meant for.
    """

    model_config = ConfigDict(frozen=True)

    reference: str
    pairs: int
    mean_difference: float
    max_difference: float
    rank_agreement: float
    bar: str
    passed: bool
    emulated: bool = False


class RerankerVariant(GraphFile):
    """One ONNX file of an exported cross-encoder.

    Attributes:
        parity: Its parity report.
    """

    parity: ScoreParity


class PairFormat(BaseModel):
    """How the tokenizer of a cross-encoder hands pairs to its network.

    Attributes:
        inputs: Names of the graph's inputs, int64 of *shape* ``(batch, tokens)``.
        padding_id: Token in padded places.
        padding_side: Where padding stands; XLNet's head reads the last place, so its padding is on the left.
        truncation_side: Where a text loses tokens when a pair is too long.
    """

    model_config = ConfigDict(frozen=True)

    inputs: tuple[str, ...]
    padding_id: int
    padding_side: Literal["left", "right"]
    truncation_side: Literal["left", "right"]


class RerankerManifest(BaseModel):
    """Contents of `es_sbert_reranker.json`.

    Attributes:
        format: Version of this file's layout.
        name, architecture, fingerprint, labels, activation, max_tokens, lowercase: Of the model.
        pairs: How pairs become inputs.
        variants: Precision → variant.
        exporter: Versions that wrote the folder.
    """

    model_config = ConfigDict(frozen=True)

    format: int = RERANKER_MANIFEST_FORMAT
    name: str
    architecture: str
    fingerprint: str
    labels: tuple[str, ...]
    activation: ScoreActivation
    max_tokens: int
    lowercase: bool
    pairs: PairFormat
    variants: dict[str, RerankerVariant]
    exporter: dict[str, str]

    @classmethod
    def of(
        cls, model: CrossEncoderModel, pairs: PairFormat, variants: dict[str, RerankerVariant], exporter: dict[str, str]
    ) -> RerankerManifest:
        """The manifest of a model exported as these variants."""
        return cls(
            name=model.name, architecture=model.architecture, fingerprint=model.fingerprint, labels=model.labels,
            activation=model.activation, max_tokens=model.max_tokens, lowercase=model.lowercase, pairs=pairs,
            variants=variants, exporter=exporter,
        )  # fmt: skip


@dataclass(frozen=True)
class RerankerBundle:
    """An exported cross-encoder.

    Attributes:
        folder: Where it is.
        model: What its configuration files say.
        manifest: What `es_sbert_reranker.json` says; the two agree.
    """

    folder: Path
    model: CrossEncoderModel
    manifest: RerankerManifest

    def variant_file(self, name: str) -> Path:
        """The ONNX file of a variant, after its hash was checked.

        Raises:
            BundleInvalid: the file is missing or differs from what was exported.
        """
        return checked_file(self.folder, self.manifest.variants[name])


def is_reranker(folder: Path) -> bool:
    """Whether the folder has a reranker's manifest."""
    return (folder / RERANKER_MANIFEST_NAME).is_file()


def open_reranker(folder: Path) -> RerankerBundle:
    """Open an exported cross-encoder.

    Raises:
        BundleInvalid: it is none, its manifest is broken, or its files are not those that were exported.
    """
    path = folder / RERANKER_MANIFEST_NAME
    if not is_reranker(folder):
        if folder.is_dir() and is_cross_encoder(folder):
            raise BundleInvalid(
                f"{folder} is a cross-encoder that was not exported yet", f"es-sbert export {folder} -o RERANKER"
            )
        raise BundleInvalid(
            f"{folder} is no reranker: it has no {RERANKER_MANIFEST_NAME}",
            "Give the folder that `es-sbert export CROSS_ENCODER -o RERANKER` wrote.",
        )
    manifest = read_manifest(path, RerankerManifest, RERANKER_MANIFEST_FORMAT)
    for variant in manifest.variants.values():
        check_inside(path, variant)
    model = read_cross_encoder(folder, manifest.name)
    actual = RerankerManifest.of(model, manifest.pairs, manifest.variants, manifest.exporter)
    changed = [name for name in RerankerManifest.model_fields if getattr(actual, name) != getattr(manifest, name)]
    if changed:
        raise BundleInvalid(
            f"{folder} was edited after its export: {', '.join(changed)} no longer agree with {path.name}",
            "Undo the edit, or export the edited model to a new folder: es-sbert export MODEL -o RERANKER.",
        )
    return RerankerBundle(folder, model, manifest)
