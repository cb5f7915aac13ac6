"""Documents that are written, and what they should have become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from prometheus_client.parser import text_string_to_metric_families

from es_sbert.encoder.encoder import Encoder
from es_sbert.index.document_vectors import read_document_meta, read_vector, text_hash
from es_sbert.index.mapping import VectorFieldMeta, index_body
from es_sbert.vectors import Vectors
from tests.engine.ingest_support import open_engine, sentences

# Two vector fields: one of the text, one of passages of a longer text, which the index keeps from `PARTS`.
FIELDS: dict[str, Any] = {"vectors": ("embedding={text}", "parts={title}. {text}"), "id_field": "id"}
PARTS: dict[str, Any] = {"vectors": FIELDS["vectors"][1:], "passages": 16, "id_field": "id"}
JSON = {"content-type": "application/json"}


def documents(count: int) -> list[dict[str, Any]]:
    """Texts of one to many passages; a few documents lack a part of them."""
    made = []
    for number, document in enumerate(sentences(count)):
        title = {} if number % 7 == 3 else {"title": f"a man plays guitar {number} " * (number % 5)}
        made.append(document | title)
    return made


def make(url: str, index: str, meta: VectorFieldMeta, field: str = "embedding") -> None:
    with open_engine(url) as engine:
        engine.create_index(index, index_body(engine.info.engine_type, field, meta))


def passages(source: dict[str, Any]) -> list[dict[str, Any]]:
    parts = source.get("parts") or []
    return parts if isinstance(parts, list) else [parts]


def vectors(source: dict[str, Any]) -> Vectors:
    """*Shape:* ``(vectors of the document, dimensions)`` float32."""
    found = [source["embedding"]] if source.get("embedding") is not None else []
    return np.array([read_vector(value) for value in [*found, *(passage["vector"] for passage in passages(source))]])


def bulk_lines(actions: Sequence[tuple[str, dict[str, Any], Any]]) -> bytes:
    lines = [value for name, said, document in actions for value in ({name: said}, document)]
    return b"".join(orjson.dumps(line) + b"\n" for line in lines if line is not None)


def assert_vector(source: dict[str, Any], encoder: Encoder, text: str) -> None:
    assert source["text"] == text
    meta = read_document_meta(source, "embedding_meta")
    assert meta is not None
    assert meta.text_hash == text_hash(text)
    expected = encoder.encode([text], "document")[0]
    np.testing.assert_allclose(read_vector(source["embedding"]), expected, rtol=0, atol=1e-6)


def documents_without_vector(metrics: str) -> int:
    """Documents that were written without a vector, by the metrics of a gateway."""
    families = {family.name: family for family in text_string_to_metric_families(metrics)}
    samples = families["es_sbert_gateway_documents"].samples
    return int(sum(sample.value for sample in samples if sample.labels.get("outcome") == "without"))
