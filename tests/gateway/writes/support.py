"""Documents that are written, and what they should have become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.index.document_vectors import read_document_meta, read_vector, text_hash
from es_sbert.index.mapping import VectorFieldMeta, index_body
from es_sbert.vectors import Vectors
from tests.engine.ingest_support import open_engine, sentences
from tests.gateway.patient import ndjson

# Two vector fields: one of the text, one of passages of a longer text, which the index keeps from `PARTS`.
FIELDS: dict[str, Any] = {"vectors": ("embedding={text}", "parts={title}. {text}"), "id_field": "id"}
PARTS: dict[str, Any] = {"vectors": FIELDS["vectors"][1:], "passages": 16, "id_field": "id"}
JSON = {"content-type": "application/json"}
OUTCOMES = "es_sbert_gateway_documents_total"
UNREAD = "es_sbert_gateway_unread_writes_total"
WITHOUT = "es_sbert_gateway_documents_without_vector_total"


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


def body_like(engine: Engine, index: str, **settings: Any) -> dict[str, Any]:
    """Settings and mappings of another index with the fields of this one."""
    state = engine.get_index(index)
    assert state is not None
    knn = {"knn": True} if engine.info.engine_type is EngineType.OPENSEARCH else {}
    return {"mappings": state.mappings, "settings": {"index": knn | settings}}


def passages(source: dict[str, Any]) -> list[dict[str, Any]]:
    parts = source.get("parts") or []
    return parts if isinstance(parts, list) else [parts]


def vectors(source: dict[str, Any]) -> Vectors:
    """*Shape:* ``(vectors of the document, dimensions)`` float32."""
    found = [source["embedding"]] if source.get("embedding") is not None else []
    return np.array([read_vector(value) for value in [*found, *(passage["vector"] for passage in passages(source))]])


def bulk_lines(actions: Sequence[tuple[str, dict[str, Any], Any]]) -> bytes:
    lines = [value for name, said, document in actions for value in ({name: said}, document)]
    return ndjson(*(line for line in lines if line is not None))


def bulk(client: httpx.Client, actions: Sequence[tuple[str, dict[str, Any], Any]], index: str = "") -> None:
    path = f"/{index}/_bulk" if index else "/_bulk"
    answer = client.post(path, content=bulk_lines(actions), headers=JSON).json()
    assert answer["errors"] is False, answer


def assert_vector(source: dict[str, Any], encoder: Encoder, text: str) -> None:
    assert source["text"] == text
    meta = read_document_meta(source, "embedding_meta")
    assert meta is not None
    assert meta.text_hash == text_hash(text)
    expected = encoder.encode([text], "document")[0]
    np.testing.assert_allclose(read_vector(source["embedding"]), expected, rtol=0, atol=1e-6)


class Counters:
    """Counters of a gateway by their label, since the last look."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._before: dict[str, dict[str, float]] = {}
        for name in (WITHOUT, UNREAD, OUTCOMES):
            self.increase(name)

    def increase(self, name: str) -> dict[str, int]:
        now: dict[str, float] = {}
        for family in text_string_to_metric_families(self._client.get("/metrics").text):
            now |= {next(iter(one.labels.values())): one.value for one in family.samples if one.name == name}
        before = self._before.get(name, {})
        self._before[name] = now
        grown = {label: int(value - before.get(label, 0)) for label, value in now.items()}
        return {label: count for label, count in grown.items() if count}

    def documents(self) -> dict[str, int]:
        """Reason → documents without a vector."""
        return self.increase(WITHOUT)


def told(caplog: pytest.LogCaptureFixture, index: str) -> list[str]:
    names = [record.args[-1] for record in caplog.records if "logged once" in record.msg and index in record.message]  # type: ignore[index]
    return [str(name) for name in names]
