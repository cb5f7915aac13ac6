"""Hybrid search over text fields in objects of the mapping type `nested`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.e2e.cli_support import Cli
from tests.engine.ingest_support import open_engine, write_jsonl

DOCUMENTS = [
    {"id": "a", "title": "one", "chapters": [{"text": "the cat sleeps"}, {"text": "a storm on the sea"}]},
    {"id": "b", "title": "two", "chapters": [{"text": "a man plays guitar", "notes": [{"text": "zither"}]}]},
    {"id": "c", "title": "three", "chapters": [{"text": "the storm the storm"}, {"text": "the mat"}]},
]
TEXT = {"type": "text"}
CHAPTERS: dict[str, Any] = {
    "nested": {
        "type": "nested",
        "properties": {"text": TEXT, "notes": {"type": "nested", "properties": {"text": TEXT}}},
    },
    "plain": {"properties": {"text": TEXT, "notes": {"properties": {"text": TEXT}}}},
}
Search = Callable[..., dict[str, float | None]]
TEMPLATE = "{title} {chapters.text} {chapters.notes.text}"


@pytest.fixture
def load(cli: Cli, model: Path, engine_url: str, fresh_index: Callable[[str], str]) -> Callable[..., str]:
    """Load the documents into a new index whose chapters are of one of the kinds."""

    def call(kind: str) -> str:
        index = fresh_index(engine_url)
        with open_engine(engine_url) as engine:
            engine.create_index(index, {"mappings": {"properties": {"title": TEXT, "chapters": CHAPTERS[kind]}}})
        write_jsonl(Path("docs.jsonl"), DOCUMENTS)
        options = ("--index", index, "--url", engine_url, "--model", model, "--precision", "fp32", "--id-field", "id")
        assert cli("ingest", *options, "--text-template", TEMPLATE, "docs.jsonl").code == 0
        return index

    return call


@pytest.fixture
def search(cli: Cli, model: Path, engine_url: str) -> Search:
    """Id → score of the keyword search."""

    def call(index: str, text: str) -> dict[str, float | None]:
        options = ("--index", index, "--url", engine_url, "--model", model, "--precision", "fp32", "--hybrid", "--json")
        done = cli("search", text, *options)
        assert done.code == 0, done.err
        hits = [orjson.loads(line) for line in done.out.splitlines()]
        return {f"{hit['index']}/{hit['id']}": hit["lexical"] for hit in hits}

    return call


def found(index: str, scores: dict[str, float | None]) -> list[str]:
    """Ids of the hits of an index that the keyword search found, the best first."""
    own = {name.partition("/")[2]: score for name, score in scores.items() if name.startswith(f"{index}/")}
    return sorted((name for name, score in own.items() if score), key=lambda name: -(own[name] or 0.0))


def test_words_in_nested_objects_are_found(load: Callable[..., str], search: Search) -> None:
    index = load("nested")
    # The best of the objects counts.
    expected = {"storm": ["c", "a"], "guitar": ["b"], "zither": ["b"], "three": ["c"]}
    assert {word: found(index, search(index, word)) for word in expected} == expected


def test_field_that_is_nested_in_one_index_only_is_found_in_both(load: Callable[..., str], search: Search) -> None:
    nested, plain = (load(kind) for kind in ("nested", "plain"))
    scores = search(f"{nested},{plain}", "storm")
    assert found(nested, scores) == ["c", "a"]
    assert found(plain, scores) == ["c", "a"]
