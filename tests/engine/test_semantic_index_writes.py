"""`SemanticIndex` and `AsyncSemanticIndex` create, fill and empty an index on each real engine."""

from __future__ import annotations

import asyncio
import datetime
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert import AsyncSemanticIndex, SemanticIndex
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.errors import IndexMismatch, SourceError, UsageError
from tests.engine.ingest_support import put
from tests.raised import raises, raises_as_recorded

pytestmark = pytest.mark.one_engine

WORDS = ["a", "man", "plays", "guitar", "the", "cat", "sleeps", "on", "mat", "query"]  # that the model knows


def sentences(count: int) -> list[dict[str, Any]]:
    """Documents whose texts all differ."""
    texts = (" ".join(WORDS[int(digit)] for digit in f"{number:03}") for number in range(count))
    return [{"id": f"d{number}", "text": text, "price": number / 8} for number, text in enumerate(texts)]


@pytest.fixture
def name(index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of an index; the working folder takes dead letters."""
    monkeypatch.chdir(tmp_path)
    return index_name


@pytest.fixture
def index(engine: Engine, tiny: Encoder, name: str) -> Iterator[SemanticIndex]:
    """A new index whose field `text` is embedded."""
    with SemanticIndex.create(name, engine, encoder=tiny, text_fields=["text"]) as index:
        yield index


def ids(result: Any) -> set[str]:
    return {hit.id for hit in result}


def test_create_add_search_and_delete(engine_url: str, engine: Engine, tiny: Encoder, name: str) -> None:
    documents = sentences(120)
    with SemanticIndex.create(name, engine_url, encoder=tiny, text_fields=["text"], shards=1) as index:
        report = index.add(iter(documents), id_field="id")
        assert (report.read, report.indexed, report.dead, report.stopped) == (120, 120, 0, None)
        assert index.search(documents[7]["text"], 1).hits[0].id == "d7"
        assert documents[7].items() <= index.search(documents[7]["text"], 1).hits[0].source.items()
        assert len(index.hybrid(documents[7]["text"], 5)) == 5
        assert "d7" not in ids(index.similar_to("d7", 10))
        # What the index holds already is neither embedded nor written again.
        changed = [*documents[:50], {**documents[50], "text": "the cat plays the guitar"}]
        report = index.add(changed, id_field="id")
        assert (report.unchanged, report.indexed) == (50, 1)
        assert index.delete("d7") == 1
        assert index.delete(["d7", "d8", "d9", "d9", "none"]) == 2
        assert not ids(index.search("a cat", 120)) & {"d7", "d8", "d9"}
    assert engine.count(name) == 117
    assert not list(Path().iterdir())  # neither dead letters nor a state file
    with SemanticIndex(name, engine_url, encoder=tiny) as index:
        assert index.field.meta.text == "{text}"
    with raises(IndexMismatch, "text_template"):
        SemanticIndex.create(name, engine, encoder=tiny, text_template="{text}. {price}")


def test_add_accepts_python_values(index: SemanticIndex, engine: Engine, name: str) -> None:
    document = {"text": "a cat on the mat", "when": datetime.date(2026, 2, 3), "gone": float("nan"), "ids": (1, 2)}
    report = index.add([document])
    assert report.indexed == 1
    [hit] = index.search("a cat", 3)
    hit.source.pop("embedding_meta")
    assert hit.source == {"text": "a cat on the mat", "when": "2026-02-03", "gone": None, "ids": [1, 2]}
    assert engine.count(name) == 1  # a given engine stays open


def test_field_id_of_documents_is_their_id(index: SemanticIndex) -> None:
    documents: list[dict[str, Any]] = [{"_id": 7, "text": "a cat"}, {"_id": "x", "text": "a man"}, {"text": "the mat"}]
    assert index.add(documents).indexed == 3
    assert index.add(documents).unchanged == 3
    found = {hit.id: hit.source for hit in index.search("a cat", 3)}
    assert {"7", "x"} < found.keys()
    assert all("_id" not in source for source in found.values())
    assert index.delete("7") == 1


@pytest.mark.parametrize(
    "documents",
    [
        [{"_routing": "r", "text": "a cat"}],
        [{"_index": "docs", "_id": "1", "_source": {"text": "a cat"}}],
        [{"body": "a cat"}],
        ["a cat", None],
    ],
)
def test_documents_are_refused_in_words_of_python(
    index: SemanticIndex, engine: Engine, name: str, documents: Any
) -> None:
    with raises_as_recorded(SourceError) as refused:
        index.add(documents)
    assert not re.search("--|jq|query|column|file", str(refused.value))
    assert (engine.count(name), list(Path().iterdir())) == (0, [])


def test_unloadable_documents_are_dead_lettered(index: SemanticIndex) -> None:
    documents: list[Any] = [*sentences(30), {"id": "odd", "text": "a cat", "value": object()}, 7, {"text": "no id"}]
    report = index.add(documents, id_field="id", dead_letters=Path("bad.jsonl"), max_errors="off")
    assert (report.indexed, report.dead, report.dead_letters) == (30, 3, "bad.jsonl")
    letters = [orjson.loads(line) for line in Path("bad.jsonl").read_bytes().splitlines()]
    assert {letter["line"] for letter in letters} == {31, 32, 33}
    stopped = index.add([*sentences(40)[30:], *documents[30:]], id_field="id", max_errors=1)
    assert stopped.stopped is not None
    assert "They are in LoadReport.rejected" in stopped.stopped
    assert "add the documents again" in stopped.stopped


def test_report_has_unloadable_documents_and_the_folder_stays_empty(
    index: SemanticIndex, caplog: pytest.LogCaptureFixture
) -> None:
    """The working folder of a service is often read-only."""
    documents: list[Any] = [*sentences(30), {"id": "odd", "text": 5}, {"id": "none"}]
    Path().chmod(0o500)
    report = index.add(documents, id_field="id")
    assert (report.indexed, report.dead, report.dead_letters) == (30, 1, None)
    [letter] = report.rejected
    assert (letter["id"], letter["line"], letter["document"]) == ("odd", 31, {"id": "odd", "text": 5})
    assert "JSON number" in letter["reason"]
    assert "this one and others: LoadReport.rejected" in caplog.text
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("error", "kind"), [(OSError("no rows"), SourceError), (ZeroDivisionError("odd"), ZeroDivisionError)]
)
def test_failing_iterator_ends_the_load(index: SemanticIndex, error: Exception, kind: type[Exception]) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield from sentences(5)
        raise error

    with raises_as_recorded(kind):
        index.add(rows(), id_field="id")


def test_passages_with_named_model(
    engine: Engine, tiny: Encoder, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with SemanticIndex.create(
        name, engine, encoder=tiny, text_fields=["text"], passages=12, passage_overlap=2, index_type="flat"
    ) as index:
        report = index.add([{"text": "the cat sleeps on the mat. " * 6}])
        assert report.passages > 1
        assert index.search("a cat", 1).hits[0].passage is not None


def test_writes_require_a_single_index(engine: Engine, tiny: Encoder, name: str) -> None:
    SemanticIndex.create(name, engine, encoder=tiny, text_fields=["text"]).close()
    SemanticIndex.create(f"{name}-2", engine, encoder=tiny, text_fields=["text"]).close()
    try:
        with SemanticIndex([name, f"{name}-2"], engine, encoder=tiny) as both:
            with raises_as_recorded(UsageError):
                both.add(sentences(1))
            with raises_as_recorded(UsageError):
                both.delete("d1")
    finally:
        engine.delete_index(f"{name}-2")


def test_async_index_creates_adds_searches_and_deletes(engine: Engine, tiny: Encoder, name: str) -> None:
    documents = sentences(60)

    async def write_and_search() -> None:
        index = await AsyncSemanticIndex.create(name, engine.info.url, encoder=tiny, text_fields=["text"])
        async with index:
            assert (await index.add(documents, id_field="id")).indexed == 60
            assert (await index.search(documents[44]["text"], 1)).hits[0].id == "d44"
            assert "d44" not in ids(await index.similar_to("d44", 60))
            assert await index.delete(["d44", "d45"]) == 2
            put(engine, name, sentences(2))
            engine.refresh(name)
            report = await index.embed_missing()
            assert (report.indexed, report.source) == (2, "index")

    asyncio.run(write_and_search())
    assert engine.count(name) == 58
