"""Compare new documents of an index with a baseline, by their stored vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from es_sbert.bundle.model_lookup import find_index_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.diagnostics.drift import DriftReport, DriftSample, TokenCounts, compare_samples
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.errors import ModelError
from es_sbert.index.document_sample import random_hits
from es_sbert.index.mapping import and_query, document_meta_field, has_vector_query, vector_path
from es_sbert.index.text_template import TextTemplate
from es_sbert.index.vector_field import VectorField, read_vector_field
from es_sbert.index.vector_reading import doc_value_request, hit_vectors
from es_sbert.runtime.tokenizer import load_sentence_tokenizer

# Hits per request: with vectors of 384 dimensions, they take 2 MB.
_PAGE = 250


def since_query(field: str, since: str) -> Json:
    """Build a query for documents dated on or after a date.

    Args:
        field: The date field.
        since: A date or a date math expression, such as `2026-01-31` or `now-7d`.
    """
    return {"range": {field: {"gte": since}}}


def embedded_at_field(vector_field: str) -> str:
    """Name of the field with the time at which a document was embedded."""
    return f"{document_meta_field(vector_field)}.embedded_at"


def measure_drift(
    engine: Engine,
    index: str,
    vector_field: str,
    new: Json,
    baseline: Json | None = None,
    *,
    sample: int = 500,
    seed: int = 0,
    report: Callable[[str], None] = lambda message: None,
) -> DriftReport:
    """Draw samples of new documents and of the baseline, and compare them.

    Args:
        engine: The engine.
        index: Index or alias.
        vector_field: Field that holds the vectors. If a document has passages, the first one counts.
        new: Query for the new documents.
        baseline: Query for the baseline; None for all other documents.
        sample: Maximum number of new documents, and half the maximum number of baseline documents.
        seed: Seed of the samples and of the test.
        report: Called with messages.

    Raises:
        IndexMissing, IndexMismatch: the index or the field does not exist, or there are too few documents.
        EngineError: the engine failed.
    """
    field = read_vector_field(engine, index, vector_field)
    others = {"bool": {"must_not": [new]}} if baseline is None else baseline
    drawn_new = _draw(engine, field, index, new, sample, seed)
    drawn_baseline = _draw(engine, field, index, others, 2 * sample, seed)
    tokens = _count_tokens(field, (drawn_baseline.texts, drawn_new.texts), report)
    return compare_samples(index, field.name, field.meta.model, drawn_new, drawn_baseline, tokens=tokens, seed=seed)


def _draw(engine: Engine, field: VectorField, index: str, query: Json, count: int, seed: int) -> DriftSample:
    """Read documents with a vector, in random order."""
    matching = and_query(has_vector_query(field.name, field.meta), query)
    template = None if field.meta.text is None else TextTemplate.parse(field.meta.text)
    fields = [field.name, vector_path(field.name, field.meta), *(() if template is None else template.fields)]
    source = engine.info.source_with_vectors(list(dict.fromkeys(fields)))
    ids, texts, vectors = [], [], []
    extra = doc_value_request(engine.info.engine_type, [field])
    for hit in random_hits(engine, index, matching, count, seed, source=source, extra=extra, page=_PAGE):
        ids.append(hit["_id"])
        texts.append("" if template is None else template.readable_text(hit["_source"]))
        vectors.append(hit_vectors(hit, field)[0][2])
    found = np.array(vectors, dtype=np.float32).reshape(len(vectors), field.meta.dimensions)  # (documents, dimensions)
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    unit = np.divide(found, lengths, out=np.zeros_like(found), where=lengths > 0)
    return DriftSample(ids, texts, unit, engine.count(index, matching))


def _count_tokens(
    field: VectorField, samples: tuple[Sequence[str], Sequence[str]], report: Callable[[str], None]
) -> tuple[TokenCounts, TokenCounts] | None:
    """Count the tokens of both samples; None if the texts are not known, or the model is not on this machine."""
    if not any(map(any, samples)):
        return None
    try:
        located = find_index_model(field.index, field.meta.model, field.meta.fingerprint)
        model = read_sentence_model(located.folder, located.name)
    except ModelError as error:
        report(f"Tokens are not counted: {error.message}")
        return None
    tokenizer = load_sentence_tokenizer(model)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    unknown = getattr(tokenizer.model, "unk_token", None)
    unknown_id = tokenizer.token_to_id(unknown) if isinstance(unknown, str) else None

    def count(texts: Sequence[str]) -> TokenCounts:
        encoded = [encoding.ids for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False)]
        return TokenCounts(
            sum(map(len, encoded)),
            sum(ids.count(unknown_id) for ids in encoded) if unknown_id is not None else 0,
            sum(len(text.split()) for text in texts),
        )

    before, after = samples
    return count(before), count(after)
