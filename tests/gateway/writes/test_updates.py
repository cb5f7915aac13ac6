"""Updates and lists keep texts and vectors together, whoever else writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.index.document_vectors import read_vector, text_hash
from es_sbert.index.text_template import TextTemplate
from tests.engine.ingest_support import contents, load, same_vectors
from tests.engine.vectors import field_of
from tests.gateway.writes.support import assert_vector, bulk, make


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
    lines: list[Any] = [
        ("index", {"_id": "5"}, {"title": "a", "text": "a"}),
        ("update", {"_id": "5"}, {"doc": {"text": "cat"}}),
        ("update", {"_id": "2", "routing": "r"}, {"doc": {"text": "sleeps"}}),
        ("delete", {"_id": "4"}, None),
    ]
    bulk(client, lines, empty)
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


TEMPLATE = "{tags}: {chapters.text}"
BOOK: dict[str, Any] = {
    "tags": ["a cat", "a mat"],
    "chapters": [{"text": "the man plays"}, {"text": "guitar"}, {"n": 1}],
}


@pytest.fixture
def books(engine_url: str, tiny_encoder: Encoder, fresh_index: Callable[[str], str]) -> str:
    name = fresh_index(engine_url)
    make(engine_url, name, field_of(tiny_encoder.info, text=TEMPLATE))
    return name


def test_texts_in_lists_are_embedded_and_updated(
    engine_url: str, client: httpx.Client, books: str, tiny_encoder: Encoder, tmp_path: Path
) -> None:
    written: list[Any] = [
        ("index", {"_id": "2"}, {"tags": "a man", "chapters": {"text": ["the cat", "sleeps"]}}),
        ("create", {"_id": "3"}, {"chapters": [{"text": "on"}, {"text": None}, {"text": "the mat"}]}),
        ("update", {"_id": "4"}, {"doc": {"tags": ["query"]}, "doc_as_upsert": True}),
        ("index", {"_id": "5"}, {"tags": [], "chapters": [{"n": 2}]}),
    ]
    changes: list[dict[str, Any]] = [
        {"n": 7},
        {"tags": ["a man"]},
        {"chapters": [{"text": "the cat"}, {"text": "sleeps"}]},
        {"chapters": [{"n": 3}]},
        {"tags": [], "chapters": []},
        {"tags": ["a cat", "a mat"]},
    ]
    bulk(client, written, books)
    bulk(client, [("index", {"_id": f"u{number}"}, BOOK) for number in range(len(changes))], books)
    bulk(client, [("update", {"_id": f"u{number}"}, {"doc": doc}) for number, doc in enumerate(changes)], books)
    expected = {
        "2": "a man: the cat\nsleeps",
        "3": ": on\nthe mat",
        "4": "query:",
        "5": None,
        "u0": "a cat\na mat: the man plays\nguitar",
        "u1": "a man: the man plays\nguitar",
        "u2": "a cat\na mat: the cat\nsleeps",
        "u3": "a cat\na mat:",
        "u4": None,
        "u5": "a cat\na mat: the man plays\nguitar",
    }
    held = contents(engine_url, books)
    assert held.keys() == expected.keys()
    for name, text in expected.items():
        vector = held[name].get("embedding")
        assert (vector is None) == (text is None), name
        if text is not None:
            assert same_vectors(read_vector(vector), tiny_encoder.encode([text], "document")[0])
            rendered = TextTemplate.parse(TEMPLATE).render(held[name])
            assert held[name]["embedding_meta"]["text_hash"] == text_hash(rendered)
    summary = load(engine_url, tiny_encoder, books, dead=tmp_path / "dead")
    assert (summary.indexed, summary.dead, summary.unchanged) == (0, 0, 8)
