"""Read the record that `es-sbert model pair` writes: the two models, and how well their vectors agree.

The folder of a pair is a Router of sentence-transformers, plus this file. An index holds vectors of the document model,
so a pair has that model's fingerprint. The record identifies the query model that was compared with it.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar

import pydantic
from pydantic import BaseModel

from es_sbert.bundle.model_files import read_json
from es_sbert.errors import BundleInvalid
from es_sbert.messages import pluralize

PAIR_AGAIN = "Make it again: `es-sbert model pair --documents MODEL --queries MODEL -o FOLDER`."


class PairedModel(BaseModel, frozen=True):
    """One of the two models of a pair.

    Attributes:
        name: Name by which it was opened.
        fingerprint: Fingerprint of this model alone.
        prompts, default_prompt: Prompts of this model alone. The pair's folder has one list of prompts for both.
    """

    name: str
    fingerprint: str
    prompts: dict[str, str] = {}
    default_prompt: str | None = None

    @property
    def prompt_settings(self) -> dict[str, Any]:
        """The prompts as settings of a `SentenceModel`."""
        return self.model_dump(include={"prompts", "default_prompt"})


class PairAgreement(BaseModel, frozen=True):
    """Agreement of the query model with the document model, on texts that both embed as queries.

    Attributes:
        texts: Number of texts.
        mean_cosine: Mean cosine of the two vectors of a text.
        centered_cosine: The same after subtracting the mean vector of the document model, so that what all texts have
            in common does not count.
        rank_agreement: Spearman's ρ × 100 between the cosines of the two models, with each text as query and all other
            texts as documents.
        bar: The thresholds, as text.
        passed: Whether the thresholds are met; if not, the user accepted the disagreement.
    """

    texts: int
    mean_cosine: float
    centered_cosine: float
    rank_agreement: float
    bar: str
    passed: bool

    def describe(self) -> str:
        """Format the metrics as one line of text."""
        return (
            f"mean cosine {self.mean_cosine:.3f}, centered {self.centered_cosine:.3f}, rank agreement "
            f"{self.rank_agreement:.1f} on {pluralize(self.texts, 'text')}"
        )


class PairRecord(BaseModel, frozen=True):
    """Contents of `es_sbert_pair.json`.

    Class attributes:
        FILE_NAME: Name of the file.
        FORMAT: Version of its layout that this release writes and reads.

    Attributes:
        format: Version of its layout.
        documents, queries: The two models.
        agreement: Agreement of their vectors.
    """

    FILE_NAME: ClassVar = "es_sbert_pair.json"
    FORMAT: ClassVar = 1

    format: int = FORMAT
    documents: PairedModel
    queries: PairedModel
    agreement: PairAgreement

    def model_for(self, kinds: Collection[str | None]) -> PairedModel:
        """The model that embeds texts of these kinds."""
        return self.queries if "query" in kinds else self.documents


def read_pair_record(folder: Path) -> PairRecord | None:
    """Read the record in a model folder; None for a model that is not a pair.

    Raises:
        BundleInvalid: the record is broken, or has an unknown format.
    """
    path = folder / PairRecord.FILE_NAME
    if not path.exists():
        return None
    raw = read_json(path)
    if raw.get("format") != PairRecord.FORMAT:
        raise BundleInvalid(
            f"{path} has format {raw.get('format')!r}, but this es-sbert reads format {PairRecord.FORMAT}",
            f"Upgrade es-sbert. Or {PAIR_AGAIN[0].lower()}{PAIR_AGAIN[1:]}",
        )
    try:
        return PairRecord.model_validate(raw)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise BundleInvalid(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}", PAIR_AGAIN) from error
