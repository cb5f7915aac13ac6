"""Verify the new index before the swap: document counts, a sample of documents, and a sample of vectors."""

from __future__ import annotations

import numpy as np

from es_sbert.encoder.embeddings import Vectors
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.protocol import Json, document_key
from es_sbert.errors import IndexMismatch
from es_sbert.index.mapping import random_order_query
from es_sbert.index.serialization import read_stored_vectors
from es_sbert.index.text_template import TextTemplate
from es_sbert.index.vector_meta import VectorFieldMeta
from es_sbert.migration.document_copy import MigrationContext, shard_number
from es_sbert.migration.migration_state import vector_field_names

SAMPLE_SIZE = 50
# Batches differ in their padding, precisions in their rounding; another model's vectors are far off.
_MIN_COSINE = 0.999


def verify_copy(context: MigrationContext, encoder: Encoder, fields: dict[str, VectorFieldMeta], seed: int = 0) -> int:
    """Compare counts, and a random sample of documents and of vectors, which are embedded once more.

    Documents that were written in the old index since they were copied may differ.

    Returns:
        Vectors that were compared.

    Raises:
        IndexMismatch: the indices differ.
        EngineError: the engine failed.
    """
    engine = context.engine
    engine.refresh(context.source)
    engine.refresh(context.target)
    old, new = engine.count(context.source), engine.count(context.target)
    numbers = engine.sequence_numbers(context.source)
    copied = context.state_store.state.copied
    since = sum(number.max_seq_no - done for number, done in zip(numbers, copied, strict=True))
    if abs(old - new) > since:
        raise _mismatch_error(
            context, f"it holds {new:,} documents, {context.source} {old:,} ({since:,} writes are to come)"
        )
    sample = _read_sample(context, seed)
    _verify_documents(context, sample)
    return sum(_verify_vectors(context, encoder, sample, name, meta) for name, meta in fields.items())


def verify_counts(context: MigrationContext, *, surplus_ok: bool = False) -> bool:
    """Compare counts while the old index takes no writes; both can be searched up to the last write afterwards.

    Args:
        surplus_ok: Whether the new index may still hold documents that were deleted from the old one.

    Returns:
        Whether they are equal.

    Raises:
        IndexMismatch: the new index holds too few documents, or too many.
        EngineError: the engine failed.
    """
    engine = context.engine
    engine.refresh(context.source)
    engine.refresh(context.target)
    old, new = engine.count(context.source), engine.count(context.target)
    if new < old or (new > old and not surplus_ok):
        raise _mismatch_error(context, f"it holds {new:,} documents, {context.source} {old:,}")
    return new == old


def _read_sample(context: MigrationContext, seed: int) -> list[Json]:
    """Documents of the new index taken at random, whole, with vectors."""
    body: Json = {
        "query": random_order_query(None, seed),
        "size": SAMPLE_SIZE,
        "_source": context.engine.info.source_with_vectors(),
    }
    hits: list[Json] = context.engine.search(context.target, body)["hits"]["hits"]
    return hits


def _verify_documents(context: MigrationContext, sample: list[Json]) -> None:
    """The copies are equal, unless the old document was written since."""
    if not sample:
        return
    copied, dropped = context.state_store.state.copied, vector_field_names(context.state_store.state.fields)
    # In one search: between two, a document may be written again.
    originals = context.find(context.source, [hit["_id"] for hit in sample], context.engine.info.source_with_vectors())
    for hit in sample:
        original = originals.get(document_key(hit))
        if original is None:
            continue  # deleted meanwhile; the counts tell if many are
        if original["_seq_no"] <= copied[shard_number(original)] and _without_fields(
            hit["_source"], dropped
        ) != _without_fields(original["_source"], dropped):
            raise _mismatch_error(context, f"the document {hit['_id']!r} is not as it is in {context.source}")


def _verify_vectors(
    context: MigrationContext, encoder: Encoder, sample: list[Json], name: str, meta: VectorFieldMeta
) -> int:
    """The vectors of one field are those that the encoder gives."""
    if meta.text is None:
        return 0
    template = TextTemplate.parse(meta.text)
    ids, texts, vectors = [], [], []
    for hit in sample:
        value = hit["_source"].get(name)
        if value is None:
            continue
        text = template.render(hit["_source"])
        for start, end, vector in read_stored_vectors(value, len(text)):
            ids.append(hit["_id"])
            texts.append(text[start:end])
            vectors.append(vector)
    if not ids:
        return 0
    expected = encoder.encode(texts, "document")  # (vectors, dimensions)
    for document_id, cosine in zip(ids, _cosines(np.stack(vectors), expected), strict=True):
        if cosine < _MIN_COSINE:
            raise _mismatch_error(
                context,
                f"the vector of the document {document_id!r} in {name} is not the one that {encoder.info.model} gives "
                f"(cosine {cosine:.4f})",
            )
    return len(ids)


def _cosines(one: Vectors, two: Vectors) -> Vectors:
    """Cosine of each pair of rows. *Shape:* ``(rows,)``."""
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
    cosines: Vectors = (one * two).sum(axis=1) / lengths
    return cosines


def _without_fields(source: Json, fields: frozenset[str]) -> Json:
    return {key: value for key, value in source.items() if key not in fields}


def _mismatch_error(context: MigrationContext, how: str) -> IndexMismatch:
    alias = context.state_store.state.alias
    return IndexMismatch(
        f"the new index {context.target} is not fit to take the place of {context.source}: {how}",
        f"Nothing was swapped. Make sure that only this migration writes to {context.target}, remove it with "
        f"`es-sbert index migrate {alias} --rollback`, and begin again.",
    )
