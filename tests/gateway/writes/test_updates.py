"""Updates keep texts and vectors together, whoever else writes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from es_sbert.encoder.encoder import Encoder
from es_sbert.index.document_vectors import text_hash
from tests.engine.ingest_support import contents, load
from tests.gateway.writes.support import JSON, assert_vector, bulk_lines


def test_updates_keep_text_and_vectors_consistent(
    engine_url: str, client: httpx.Client, empty: str, tiny_encoder: Encoder, tmp_path: Path
) -> None:
    def update(document: str, body: dict[str, Any], **params: Any) -> int:
        return client.post(f"/{empty}/_update/{document}", json=body, params=params).status_code

    for document in ("1", "2", "3"):
        body = {"title": "a man", "text": "plays guitar", "n": 1}
        assert client.put(f"/{empty}/_doc/{document}", json=body, params={"routing": "r"}).status_code == 201
    before = contents(engine_url, empty)
    assert update("1", {"doc": {"n": 2}}, routing="r") == 200
    assert update("2", {"doc": {"title": "the cat"}}, routing="r") == 200
    assert update("3", {"doc": {"title": None, "text": ""}}, routing="r") == 200
    assert update("4", {"doc": {"title": "a mat"}}) == 404
    assert update("4", {"doc": {"title": "a mat"}, "doc_as_upsert": True}) == 201
    lines = bulk_lines([
        ("index", {"_id": "5"}, {"title": "a", "text": "a"}),
        ("update", {"_id": "5"}, {"doc": {"text": "cat"}}),
        ("update", {"_id": "2", "routing": "r"}, {"doc": {"text": "sleeps"}}),
        ("delete", {"_id": "4"}, None),
    ])  # fmt: skip
    assert client.post(f"/{empty}/_bulk", content=lines, headers=JSON).json()["errors"] is False
    held = contents(engine_url, empty)
    assert held["1"] == before["1"] | {"n": 2, "_version": 2}
    assert set(held) == {"1", "2", "3", "5"}
    for document, title, text in (("2", "the cat", "sleeps"), ("5", "a", "cat")):
        assert_vector(held[document], tiny_encoder, text)
        assert held[document]["parts_meta"]["text_hash"] == text_hash(f"{title}. {text}")
    assert held["3"].get("embedding") is None
    assert held["3"]["embedding_meta"] is None
    # Nothing is left to do for a load that embeds what lacks a current vector.
    summary = load(engine_url, tiny_encoder, empty, dead=tmp_path / "dead")
    assert (summary.read, summary.indexed, summary.dead) == (4, 0, 0)


def test_concurrent_writers_keep_text_and_vector_consistent(
    engine_url: str, client: httpx.Client, empty: str, tiny_encoder: Encoder
) -> None:
    start = threading.Barrier(8)

    def write(writer: int) -> None:
        start.wait(60)
        for number in range(12):
            text = f"{'a man plays guitar' if writer % 2 else 'the cat sleeps'} {writer} {number}"
            path = f"/{empty}/_doc/{number % 3}" if number % 2 else f"/{empty}/_update/{number % 3}"
            body = {"text": text} if number % 2 else {"doc": {"text": text}, "doc_as_upsert": True}
            answer = client.post(path, json=body, params={} if number % 2 else {"retry_on_conflict": 50})
            assert answer.status_code in (200, 201), answer.text

    with ThreadPoolExecutor(8) as writers:
        list(writers.map(write, range(8)))
    held = contents(engine_url, empty)
    assert set(held) == {"0", "1", "2"}
    for source in held.values():
        assert_vector(source, tiny_encoder, source["text"])
