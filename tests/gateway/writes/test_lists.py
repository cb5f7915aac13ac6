"""Texts in lists, and paths through lists of objects, in documents that are written through the gateway."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.index.document_vectors import read_vector, text_hash
from es_sbert.index.text_template import TextTemplate
from tests.engine.ingest_support import contents, load, same_vectors
from tests.engine.vectors import field_of
from tests.gateway.writes.support import JSON, bulk_lines, make

TEMPLATE = "{tags}: {chapters.text}"
BOOK: dict[str, Any] = {
    "tags": ["a cat", "a mat"],
    "chapters": [{"text": "the man plays"}, {"text": "guitar"}, {"n": 1}],
}


@pytest.fixture
def books(engine_url: str, tiny_encoder: Encoder, fresh_index: Callable[[str], str]) -> str:
    """An index whose text is made of a list of strings and of texts of objects in a list."""
    name = fresh_index(engine_url)
    make(engine_url, name, field_of(tiny_encoder.info, text=TEMPLATE))
    return name


def assert_current(url: str, index: str, encoder: Encoder, expected: dict[str, str | None], folder: Path) -> None:
    """The documents have the vectors of these texts, and a load finds nothing to do."""
    held = contents(url, index)
    assert set(held) == set(expected)
    for name, text in expected.items():
        vector = held[name].get("embedding")
        assert (vector is None) == (text is None), name
        if text is not None:
            assert same_vectors(read_vector(vector), encoder.encode([text], "document")[0])
            assert held[name]["embedding_meta"]["text_hash"] == text_hash(
                TextTemplate.parse(TEMPLATE).render(held[name])
            )
    summary = load(url, encoder, index, dead=folder / "dead")
    assert (summary.indexed, summary.dead) == (0, 0)
    assert summary.unchanged == sum(text is not None for text in expected.values())


def test_documents_with_texts_in_lists(
    engine_url: str, client: httpx.Client, books: str, tiny_encoder: Encoder, tmp_path: Path
) -> None:
    assert client.put(f"/{books}/_doc/1", json=BOOK).status_code == 201
    lines = bulk_lines([
        ("index", {"_id": "2"}, {"tags": "a man", "chapters": {"text": ["the cat", "sleeps"]}}),
        ("create", {"_id": "3"}, {"chapters": [{"text": "on"}, {"text": None}, {"text": "the mat"}]}),
        ("update", {"_id": "4"}, {"doc": {"tags": ["query"]}, "doc_as_upsert": True}),
        ("index", {"_id": "5"}, {"tags": [], "chapters": [{"n": 2}]}),
    ])  # fmt: skip
    assert client.post(f"/{books}/_bulk", content=lines, headers=JSON).json()["errors"] is False
    expected = {
        "1": "a cat\na mat: the man plays\nguitar",
        "2": "a man: the cat\nsleeps",
        "3": ": on\nthe mat",
        "4": "query:",
        "5": None,
    }
    assert_current(engine_url, books, tiny_encoder, expected, tmp_path)


def test_partial_updates_of_lists(
    engine_url: str, client: httpx.Client, books: str, tiny_encoder: Encoder, tmp_path: Path
) -> None:
    for number in range(6):
        assert client.put(f"/{books}/_doc/{number}", json=BOOK).status_code == 201
    changes: list[dict[str, Any]] = [
        {"n": 7},
        {"tags": ["a man"]},
        {"chapters": [{"text": "the cat"}, {"text": "sleeps"}]},
        {"chapters": [{"n": 3}]},
        {"tags": [], "chapters": []},
        {"tags": ["a cat", "a mat"]},
    ]
    lines = bulk_lines([("update", {"_id": str(number)}, {"doc": doc}) for number, doc in enumerate(changes)])
    assert client.post(f"/{books}/_bulk", content=lines, headers=JSON).json()["errors"] is False
    expected = {
        "0": "a cat\na mat: the man plays\nguitar",
        "1": "a man: the man plays\nguitar",
        "2": "a cat\na mat: the cat\nsleeps",
        "3": "a cat\na mat:",
        "4": None,
        "5": "a cat\na mat: the man plays\nguitar",
    }
    assert_current(engine_url, books, tiny_encoder, expected, tmp_path)
