"""Vectors that do not match a text: which other text of the same documents do they match?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from es_sbert.adoption.comparison import SampleCheck, row_cosines
from es_sbert.adoption.plain_field import AdoptableField
from es_sbert.adoption.sample import vector_of
from es_sbert.bundle.model import PromptKind
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.hits import key_of
from es_sbert.engines.look_up import look_up
from es_sbert.engines.protocol import Engine, Json
from es_sbert.index.field_names import document_names
from es_sbert.index.meta import document_meta_field
from es_sbert.index.text import NoText, TextTemplate, find_field

# Documents that are tried, and texts that each of them is embedded as.
_DOCUMENTS = 8
_MOST_FIELDS = 5
# A text must match better by this much than one that was tried before: rounding differs from batch to batch.
_CLEARLY = 1e-4
_SEPARATORS = (" ", "\n", ". ")


@dataclass(frozen=True)
class TextVariant:
    """A text, other than the one that was given, that gives the stored vectors.

    Attributes:
        template: Its template.
        prompt: What was put in front of the text; None for the model's prompt for documents, as es-sbert does it.
        median: Median cosine of the vectors.
    """

    template: str
    prompt: str | None
    median: float

    def as_json(self) -> Json:
        return {"text": self.template, "prompt": self.prompt, "median_cosine": round(self.median, 6)}


def find_variant(engine: Engine, adoptable: AdoptableField, encoder: Encoder, check: SampleCheck) -> TextVariant | None:
    """Embed a few of the failing documents by each of their text fields, by pairs of them, and without the prompt.

    Returns:
        The text whose vectors match best; None where none reaches the check's minimum cosine.

    Raises:
        EngineError: the engine failed.
    """
    ids = [one.key[0] for one in check.failing[:: max(1, len(check.failing) // _DOCUMENTS)]][:_DOCUMENTS]
    hits = list(look_up(engine, adoptable.state.name, ids, source=engine.info.source_with_vectors()).values())
    keys = {one.key for one in check.failing}
    hits = [hit for hit in hits if key_of(hit) in keys and find_field(hit["_source"], adoptable.name) is not None]
    own = (adoptable.name, document_meta_field(adoptable.name))
    sources = [{name: value for name, value in hit["_source"].items() if name not in own} for hit in hits]
    vectors = [vector_of(hit, adoptable.name) for hit in hits]
    best: TextVariant | None = None
    for template, kind in _candidates(adoptable.template, sources, encoder):
        pairs = [(text, vector) for source, vector in zip(sources, vectors, strict=True)
                 if (text := _text(template, source))]  # fmt: skip
        # A field that only a few documents have says nothing about the others.
        if 2 * len(pairs) < len(hits) or not pairs:
            continue
        made = encoder.encode([text for text, _ in pairs], kind).vectors
        median = float(np.median(row_cosines(np.stack([vector for _, vector in pairs]), made)))
        if median >= check.min_cosine and (best is None or median > best.median + _CLEARLY):
            best = TextVariant(template.template, None if kind == "document" else encoder.prompt(kind), median)
    return best


def _candidates(
    given: TextTemplate, sources: Sequence[Json], encoder: Encoder
) -> Iterator[tuple[TextTemplate, PromptKind | None]]:
    """Texts to try: other prompts for the text that was given, single fields, and pairs of fields."""
    others: tuple[PromptKind | None, ...] = (None, "query")
    kinds: list[PromptKind | None] = ["document"]
    kinds += [kind for kind in others if encoder.prompt(kind) != encoder.prompt("document")]
    yield from ((given, kind) for kind in kinds[1:])
    names = [name for name in _string_fields(sources) if not set(name) & set("{}!:")][:_MOST_FIELDS]
    single = [TextTemplate.of_fields([name]) for name in names]
    yield from ((template, kind) for template in single if template.template != given.template for kind in kinds)
    pairs = permutations(names, 2)
    joined = (f"{{{one}}}{separator}{{{two}}}" for one, two in pairs for separator in _SEPARATORS)
    yield from ((TextTemplate.parse(text), "document") for text in joined if text != given.template)


def _string_fields(sources: Sequence[Json]) -> list[str]:
    """Fields with a text in at least half of the documents, the longest texts first."""
    lengths: dict[str, list[int]] = {}
    for source in sources:
        for name in document_names(source):
            value: Any = find_field(source, name)
            if isinstance(value, str) and value.strip():
                lengths.setdefault(name, []).append(len(value))
    common = [name for name, found in lengths.items() if 2 * len(found) >= len(sources)]
    return sorted(common, key=lambda name: -float(np.median(lengths[name])))


def _text(template: TextTemplate, source: Json) -> str | None:
    try:
        text = template.text_of(source)
    except NoText:
        return None
    return None if not text or text.isspace() else text
