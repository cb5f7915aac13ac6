"""Texts in lists, and paths that go through lists of objects, from files and in place, on real engines."""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyarrow import parquet

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.errors import SourceError
from es_sbert.index.adopt import adopt_vectors, read_adoptable_field
from es_sbert.index.document_vectors import text_hash
from es_sbert.index.text_template import TextTemplate
from es_sbert.search import SemanticIndex
from tests.engine.ingest_support import Loads, contents, open_engine, same_vectors, vector_of, write_jsonl
from tests.engine.vectors import vector_mapping, vector_value

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
    "a cat\na mat: the man plays\nguitar",
    "a man: the cat sleeps",
    ": on\nthe mat\nplays",
    "query:",
    None,
]
CASES = pytest.mark.parametrize(
    ("options", "texts"),
    [
        ({"text_fields": ("chapters.text",)}, CHAPTERS),
        ({"text_fields": ("tags",)}, ["a cat\na mat", "a man", None, "query", None]),
        ({"text_template": "{tags}: {chapters.text}"}, TAGS_AND_CHAPTERS),
    ],
    ids=["path", "list", "template"],
)


def put(engine: Engine, index: str, documents: Documents) -> None:
    lines = [line for document in documents for line in ({"index": {"_id": document["id"]}}, document)]
    results = engine.bulk(index, b"".join(orjson.dumps(line) + b"\n" for line in lines))
    assert all(result.ok for result in results), results
    engine.refresh(index)


def assert_embedded(url: str, index: str, encoder: Encoder, texts: list[str | None]) -> None:
    held = contents(url, index)
    for number, text in enumerate(texts):
        source = held.get(f"b{number}", {})
        if text is None:
            assert source.get("embedding") is None
        else:
            assert same_vectors(vector_of(source), encoder.encode([text], "document")[0]), text


@CASES
def test_files_with_texts_in_lists(tiny_loads: Loads, options: dict[str, Any], texts: list[str | None]) -> None:
    files = write_jsonl(tiny_loads.folder / "books.jsonl", BOOKS)
    given = options | {"dead": tiny_loads.dead, "id_field": "id"}
    report = tiny_loads.load(files, **given)
    embedded = sum(text is not None for text in texts)
    assert (report.indexed, report.skipped.empty, report.dead) == (embedded, len(texts) - embedded, 0)
    assert_embedded(tiny_loads.url, tiny_loads.index, tiny_loads.encoder, texts)
    again = tiny_loads.load(files, **given)
    assert (again.unchanged, again.indexed) == (embedded, 0)
    # A change inside a list is a change of the text.
    changed = BOOKS[0] | {"tags": ["a cat", "a man"], "chapters": [{"text": "the man plays"}, {"text": "a cat"}]}
    files = write_jsonl(tiny_loads.folder / "books.jsonl", [changed, *BOOKS[1:]])
    report = tiny_loads.load(files, **given)
    assert (report.indexed, report.unchanged) == (1, embedded - 1)


@CASES
def test_documents_in_place_with_texts_in_lists(
    tiny_loads: Loads, options: dict[str, Any], texts: list[str | None]
) -> None:
    with open_engine(tiny_loads.url) as engine:
        put(engine, tiny_loads.index, BOOKS)
    report = tiny_loads.load(**options)
    embedded = sum(text is not None for text in texts)
    assert (report.indexed, report.skipped.empty, report.dead) == (embedded, len(texts) - embedded, 0)
    assert_embedded(tiny_loads.url, tiny_loads.index, tiny_loads.encoder, texts)
    again = tiny_loads.load()
    assert (again.unchanged, again.indexed) == (embedded, 0)


def test_documents_in_place_with_nested_objects(tiny_loads: Loads) -> None:
    nested = {"type": "nested", "properties": {"text": {"type": "text"}}}
    with open_engine(tiny_loads.url) as engine:
        engine.create_index(tiny_loads.index, {"mappings": {"properties": {"chapters": nested}}})
        # The first documents, in which a text is looked for, have none.
        put(engine, tiny_loads.index, [{"id": f"x{number}", "chapters": [{"text": " "}]} for number in range(100)])
        put(engine, tiny_loads.index, BOOKS[:3])
    report = tiny_loads.load(text_fields=("chapters.text",))
    assert (report.indexed, report.skipped.empty) == (3, 100)
    assert_embedded(tiny_loads.url, tiny_loads.index, tiny_loads.encoder, CHAPTERS[:3])


def test_each_value_of_a_list_is_a_passage(tiny_loads: Loads) -> None:
    books = [
        BOOKS[0] | {"title": "query"},
        {"id": "b1", "title": "a mat", "chapters": [{"text": "the cat sleeps on the mat " * 3}, {"text": "a man"}]},
        {"id": "b2", "chapters": {"text": "the man plays\nguitar"}},
    ]
    given: dict[str, Any] = {"passages": 16, "dead": tiny_loads.dead, "id_field": "id"}
    template = {"text_template": "{title}. {chapters.text}"}
    report = tiny_loads.load(write_jsonl(tiny_loads.folder / "b.jsonl", books), **given, **template)
    assert report.indexed == 3

    def passages(number: int, held: dict[str, Any]) -> list[str]:
        text = TextTemplate.parse(template["text_template"]).render(books[number])
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
    report = tiny_loads.load(write_jsonl(tiny_loads.folder / "b.jsonl", books), **given, **template)
    assert (report.indexed, report.unchanged) == (1, 2)
    assert passages(2, tiny_loads.contents()) == [". the man plays", "guitar"]
    assert tiny_loads.load().unchanged == 3


@CASES
def test_parquet_with_lists(tiny_loads: Loads, options: dict[str, Any], texts: list[str | None]) -> None:
    text = pa.list_(pa.struct([("text", pa.string()), ("n", pa.int64())]))
    schema = pa.schema([("id", pa.string()), ("tags", pa.list_(pa.string())), ("chapters", text)])
    rows = [
        book | {"tags": [book["tags"]] if isinstance(book["tags"], str) else book["tags"]}
        for book in (BOOKS[0], BOOKS[1] | {"chapters": [BOOKS[1]["chapters"]]}, *BOOKS[3:])
    ]
    parquet.write_table(pa.Table.from_pylist(rows, schema), tiny_loads.folder / "books.parquet")
    report = tiny_loads.load(tiny_loads.folder / "books.parquet", id_field="id", **options)
    expected = [*texts[:2], None, *texts[3:]]
    embedded = sum(text is not None for text in expected)
    assert (report.indexed, report.skipped.empty, report.dead) == (embedded, 4 - embedded, 0)
    assert_embedded(tiny_loads.url, tiny_loads.index, tiny_loads.encoder, expected)


def test_vectors_of_lists_are_adopted(engine: Engine, engine_url: str, index_name: str, tiny: Encoder) -> None:
    books = [BOOKS[0], BOOKS[1], BOOKS[2]]
    vectors = tiny.encode([text or "" for text in CHAPTERS[:3]], "document")
    mapping = {"properties": {"vector": vector_mapping(engine, 16)}}
    knn = {"index.knn": True} if engine.info.engine_type == "opensearch" else {}
    engine.create_index(index_name, {"mappings": mapping, "settings": knn})
    written = [book | {"vector": vector_value(engine.info, row)} for book, row in zip(books, vectors, strict=True)]
    put(engine, index_name, written)
    adoptable = read_adoptable_field(engine, index_name, "vector", TextTemplate.from_fields(["chapters.text"]))
    report = adopt_vectors(engine, adoptable, tiny)
    assert report.written is not None
    assert (report.written.adopted, report.without_text) == (3, 0)
    meta = contents(engine_url, index_name)["b0"]["vector_meta"]
    assert meta["text_hash"] == text_hash(TextTemplate.from_fields(["chapters.text"]).render(BOOKS[0]))


@pytest.mark.parametrize(
    ("field", "problem", "remedy"),
    [
        ("chapters", "is a JSON array with an object, not a string or an array of strings", "chapters.text"),
        ("chapters.txt", "none of the first 3 records has the field chapters.txt", "Did you mean chapters.text?"),
        ("chapters.n", "is a JSON array with a number, not a string or an array of strings", "chapters.text"),
    ],
)
def test_message_names_the_field_inside_the_list(tiny_loads: Loads, field: str, problem: str, remedy: str) -> None:
    books = [book | {"chapters": [*book["chapters"], {"n": 3}]} for book in (BOOKS[0], BOOKS[2], BOOKS[4])]
    files = write_jsonl(tiny_loads.folder / "books.jsonl", books)
    with pytest.raises(SourceError) as refused:
        tiny_loads.load(files, id_field="id", text_fields=(field,))
    assert problem in refused.value.message
    assert remedy in refused.value.remedy
