"""Texts in lists, and paths that go through lists of objects, from files and in place, on real engines."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert import SemanticIndex
from es_sbert.engines.engine import Engine
from es_sbert.index.text_template import TextTemplate
from tests.engine.ingest_support import Loads, put, same_vectors, vector_of

pytestmark = pytest.mark.one_engine

Documents = list[dict[str, Any]]
BOOKS: Documents = [
    {"id": "b0", "tags": ["a cat", "a mat"], "chapters": [{"text": "the man plays"}, {"text": "guitar"}, {"n": 1}]},
    {"id": "b1", "tags": "a man", "chapters": {"text": "the cat sleeps"}},
    {"id": "b2", "tags": [], "chapters": [{"text": ["on", "the mat"]}, {"text": None}, {"text": "plays"}]},
    {"id": "b3", "tags": ["query", None], "chapters": []},
    {"id": "b4", "tags": None, "chapters": [{"n": 2}]},
]
CHAPTERS = ["the man plays\nguitar", "the cat sleeps", "on\nthe mat\nplays", None, None]
TAGS_AND_CHAPTERS = [
    "a cat\na mat: the man plays\nguitar", "a man: the cat sleeps", ": on\nthe mat\nplays", "query:", None,
]  # fmt: skip
CASES = pytest.mark.parametrize(
    ("options", "texts"),
    [
        ({"text_fields": ("chapters.text",)}, CHAPTERS),
        ({"text_fields": ("tags",)}, ["a cat\na mat", "a man", None, "query", None]),
        ({"text_template": "{tags}: {chapters.text}"}, TAGS_AND_CHAPTERS),
    ],
    ids=["path", "list", "template"],
)


def assert_embedded(loads: Loads, texts: list[str | None]) -> None:
    held = loads.contents()
    for number, text in enumerate(texts):
        source = held.get(f"b{number}", {})
        if text is None:
            assert source.get("embedding") is None
        else:
            assert same_vectors(vector_of(source), loads.encoder.encode([text], "document")[0]), text


@CASES
def test_files_with_texts_in_lists(tiny_loads: Loads, options: dict[str, Any], texts: list[str | None]) -> None:
    files = tiny_loads.write(BOOKS)
    given = options | {"id_field": "id"}
    report = tiny_loads.load(files, **given)
    embedded = sum(text is not None for text in texts)
    assert (report.indexed, report.skipped.empty, report.dead) == (embedded, len(texts) - embedded, 0)
    assert_embedded(tiny_loads, texts)
    again = tiny_loads.load(files, **given)
    assert (again.unchanged, again.indexed) == (embedded, 0)
    # A change inside a list is a change of the text.
    changed = BOOKS[0] | {"tags": ["a cat", "a man"], "chapters": [{"text": "the man plays"}, {"text": "a cat"}]}
    report = tiny_loads.load(tiny_loads.write([changed, *BOOKS[1:]]), **given)
    assert (report.indexed, report.unchanged) == (1, embedded - 1)


@CASES
def test_documents_in_place_with_texts_in_lists(
    engine: Engine, tiny_loads: Loads, options: dict[str, Any], texts: list[str | None]
) -> None:
    put(engine, tiny_loads.index, BOOKS)
    engine.refresh(tiny_loads.index)
    report = tiny_loads.load(**options)
    embedded = sum(text is not None for text in texts)
    assert (report.indexed, report.skipped.empty, report.dead) == (embedded, len(texts) - embedded, 0)
    assert_embedded(tiny_loads, texts)
    again = tiny_loads.load()
    assert (again.unchanged, again.indexed) == (embedded, 0)


def test_documents_in_place_with_nested_objects(engine: Engine, tiny_loads: Loads) -> None:
    nested = {"type": "nested", "properties": {"text": {"type": "text"}}}
    engine.create_index(tiny_loads.index, {"mappings": {"properties": {"chapters": nested}}})
    # The first documents, in which a text is looked for, have none.
    put(engine, tiny_loads.index, [{"id": f"x{number}", "chapters": [{"text": " "}]} for number in range(100)])
    engine.refresh(tiny_loads.index)
    put(engine, tiny_loads.index, BOOKS[:3])
    engine.refresh(tiny_loads.index)
    report = tiny_loads.load(text_fields=("chapters.text",))
    assert (report.indexed, report.skipped.empty) == (3, 100)
    assert_embedded(tiny_loads, CHAPTERS[:3])


def test_each_value_of_a_list_is_a_passage(tiny_loads: Loads) -> None:
    books = [
        BOOKS[0] | {"title": "query"},
        {"id": "b1", "title": "a mat", "chapters": [{"text": "the cat sleeps on the mat " * 3}, {"text": "a man"}]},
        {"id": "b2", "chapters": {"text": "the man plays\nguitar"}},
    ]
    given: dict[str, Any] = {"passages": 16, "id_field": "id", "text_template": "{title}. {chapters.text}"}
    report = tiny_loads.load(tiny_loads.write(books), **given)
    assert report.indexed == 3

    def passages(number: int, held: dict[str, Any]) -> list[str]:
        text = TextTemplate.parse(given["text_template"]).render(books[number])
        value = held[f"b{number}"]["embedding"]
        chunks = value if isinstance(value, list) else [value]
        found = [text[chunk["start"] : chunk["end"]] for chunk in chunks]
        vectors = tiny_loads.encoder.encode(found, "document")
        assert all(
            same_vectors(vector_of(chunk, "vector"), vector) for chunk, vector in zip(chunks, vectors, strict=True)
        )
        return found

    held = tiny_loads.contents()
    assert passages(0, held) == ["query. the man plays", "guitar"]
    *long, last = passages(1, held)
    assert (len(long) > 1, last, long[0][:6]) == (True, "a man", "a mat.")
    assert passages(2, held) == [". the man plays\nguitar"]
    with SemanticIndex(tiny_loads.index, tiny_loads.url, encoder=tiny_loads.encoder) as index:
        [hit] = index.search("guitar", 1).hits
        assert hit.passage is not None
        assert (hit.id, hit.passage.text) == ("b0", "guitar")
    # The same characters in two values are two passages.
    books[2] = {"id": "b2", "chapters": [{"text": "the man plays"}, {"text": "guitar"}]}
    report = tiny_loads.load(tiny_loads.write(books), **given)
    assert (report.indexed, report.unchanged) == (1, 2)
    assert passages(2, tiny_loads.contents()) == [". the man plays", "guitar"]
    assert tiny_loads.load().unchanged == 3
