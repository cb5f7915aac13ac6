"""`es_sbert.json`: what a bundle says of itself and of each of its ONNX variants."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from es_sbert.bundle.model import SentenceModel

MANIFEST_NAME = "es_sbert.json"
MANIFEST_FORMAT = 1


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


class Variant(GraphFile):
    """One ONNX file of a bundle.

    Attributes:
        attention: `plain` or `packed`; `traced` where torch's exporter wrote it.
        parity: Its parity report; None where it can only be measured on a device this machine lacks.
    """

    attention: str
    parity: ParityReport | None


class Manifest(BaseModel):
    """Contents of `es_sbert.json`.

    Attributes:
        format: Version of this file's layout.
        model: The model's settings as exported, `folder` left out.
        variants: Variant name (`fp32`, `int8`, `fp16`) → variant.
        exporter: Versions of es-sbert, onnx and onnxruntime that wrote the bundle.
    """

    model_config = ConfigDict(frozen=True)

    format: int = MANIFEST_FORMAT
    name: str
    architecture: str
    fingerprint: str
    pooling: list[str]
    normalize: bool
    max_tokens: int
    dimensions: int
    prompts: dict[str, str]
    default_prompt: str | None
    variants: dict[str, Variant]
    exporter: dict[str, str]

    @classmethod
    def of(cls, model: SentenceModel, variants: dict[str, Variant], exporter: dict[str, str]) -> Manifest:
        """The manifest of a model exported as these variants."""
        return cls(
            name=model.name, architecture=model.architecture, fingerprint=model.fingerprint,
            pooling=[str(mode) for mode in model.pooling], normalize=model.normalize,
            max_tokens=model.max_tokens, dimensions=model.dimensions, prompts=model.prompts,
            default_prompt=model.default_prompt, variants=variants, exporter=exporter,
        )  # fmt: skip
