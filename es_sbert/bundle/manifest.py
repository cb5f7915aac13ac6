"""Manifests of exported bundles: `es_sbert.json` for sentence encoders, `es_sbert_reranker.json` for rerankers."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from es_sbert.bundle.cross_encoder_model import CrossEncoderModel, ScoreActivation
from es_sbert.bundle.sentence_model import SentenceModel

ENCODER_MANIFEST_NAME = "es_sbert.json"
ENCODER_MANIFEST_FORMAT = 1


class ParityReport(BaseModel):
    """How closely a variant gives the vectors of the reference implementation.

    Attributes:
        reference: What it was compared with, with version (`transformers 5.23.0`, `numpy 2.4.6`).
        sentences: Number of sentences compared.
        mean_cosine, min_cosine: Cosine of variant and reference vector of the same sentence.
        max_abs_difference: Largest difference of one coordinate.
        rank_agreement: Spearman's ρ × 100 between the two sets of pairwise cosines.
        sts_reference, sts_variant: Spearman's ρ × 100 against gold scores, where a file of them was given.
        bar: The condition that was checked, in words.
        passed: Whether the variant meets its bar.
    """

    model_config = ConfigDict(frozen=True)

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


class GraphFile(BaseModel):
    """One ONNX file of a folder with a manifest.

    Attributes:
        file: Path inside the folder, with forward slashes.
        sha256: Hash of that file.
        data_sha256: Hash of `FILE.data`, which holds the weights where they pass protobuf's 2 GB; else None.
        precision: fp32, int8 or fp16.
        device: `cpu` or `cuda`: where it is meant to run.
        forced: Whether it was written although it missed its bar.
    """

    model_config = ConfigDict(frozen=True)

    file: str
    sha256: str
    data_sha256: str | None = None
    precision: str
    device: str
    forced: bool = False


class EncoderVariant(GraphFile):
    """One ONNX file of a bundle.

    Attributes:
        attention: `plain` or `packed`; `traced` where torch's exporter wrote it.
        parity: Its parity report; None where it can only be measured on a device this machine lacks.
    """

    attention: str
    parity: ParityReport | None


class EncoderManifest(BaseModel):
    """Contents of `es_sbert.json`.

    Attributes:
        format: Version of this file's layout.
        model: The model's settings as exported, `folder` left out.
        variants: Variant name (`fp32`, `int8`, `fp16`) → variant.
        exporter: Versions of es-sbert, onnx and onnxruntime that wrote the bundle.
    """

    model_config = ConfigDict(frozen=True)

    format: int = ENCODER_MANIFEST_FORMAT
    name: str
    architecture: str
    fingerprint: str
    pooling: list[str]
    normalize: bool
    max_tokens: int
    dimensions: int
    prompts: dict[str, str]
    default_prompt: str | None
    variants: dict[str, EncoderVariant]
    exporter: dict[str, str]

    @classmethod
    def of(cls, model: SentenceModel, variants: dict[str, EncoderVariant], exporter: dict[str, str]) -> EncoderManifest:
        """The manifest of a model exported as these variants."""
        return cls(
            name=model.name,
            architecture=model.architecture,
            fingerprint=model.fingerprint,
            pooling=[str(mode) for mode in model.pooling],
            normalize=model.normalize,
            max_tokens=model.max_tokens,
            dimensions=model.dimensions,
            prompts=model.prompts,
            default_prompt=model.default_prompt,
            variants=variants,
            exporter=exporter,
        )


RERANKER_MANIFEST_NAME = "es_sbert_reranker.json"
RERANKER_MANIFEST_FORMAT = 1


class ScoreParityReport(BaseModel):
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

    parity: ScoreParityReport


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
            name=model.name,
            architecture=model.architecture,
            fingerprint=model.fingerprint,
            labels=model.labels,
            activation=model.activation,
            max_tokens=model.max_tokens,
            lowercase=model.lowercase,
            pairs=pairs,
            variants=variants,
            exporter=exporter,
        )
