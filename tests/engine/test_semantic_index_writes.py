"""`SemanticIndex` and `AsyncSemanticIndex` create, fill and empty an index on each real engine."""

from __future__ import annotations

import asyncio
import datetime
import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.errors import EngineUnreachable, IndexMismatch, SourceError, UsageError
from es_sbert.search import AsyncSemanticIndex, SemanticIndex
from tests.engine.ingest_support import tiny_encoder

pytestmark = pytest.mark.one_engine

WORDS = ["a", "man", "plays", "guitar", "the", "cat", "sleeps", "on", "mat", "query"]  # that the model knows


def sentences(count: int) -> list[dict[str, Any]]:
    """Documents whose texts all differ."""
    texts = (" ".join(WORDS[int(digit)] for digit in f"{number:03}") for number in range(count))
    return [{"id": f"d{number}", "text": text, "price": number / 8} for number, text in enumerate(texts)]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoder]:
    with tiny_encoder(tmp_path_factory.mktemp("model")) as encoder:
        yield encoder


@pytest.fixture
def engine(engine_url: str) -> Iterator[Engine]:
    with closing(connect(EngineSettings(url=engine_url))) as engine:
        yield engine


@pytest.fixture
def name(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Name of an index that is deleted after the test; the working folder takes dead letters."""
    monkeypatch.chdir(tmp_path)
    name = f"test-writes-{os.getpid()}"
    engine.delete_index(name)
    yield name
    engine.delete_index(name)


@pytest.fixture
def index(engine: Engine, encoder: Encoder, name: str) -> Iterator[SemanticIndex]:
    """A new index whose field `text` is embedded."""
    with SemanticIndex.create(name, engine, encoder=encoder, text_fields=["text"]) as index:
        yield index


def ids(result: Any) -> set[str]:
    return {hit.id for hit in result}


def test_create_add_search_and_delete(engine_url: str, engine: Engine, encoder: Encoder, name: str) -> None:
    documents = sentences(120)
    with SemanticIndex.create(name, engine_url, encoder=encoder, text_fields=["text"], shards=1) as index:
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
    with SemanticIndex(name, engine_url, encoder=encoder) as index:
        assert index.field.meta.text == "{text}"
    with pytest.raises(IndexMismatch, match="were made from the text"):
        SemanticIndex.create(name, engine, encoder=encoder, text_template="{text}. {price}")


def test_add_accepts_python_values(index: SemanticIndex, engine: Engine, name: str) -> None:
    document = {"text": "a cat on the mat", "when": datetime.date(2026, 2, 3), "gone": float("nan"), "ids": (1, 2)}
    report = index.add([document])
    assert report.indexed == 1
    [hit] = index.search("a cat", 3)
    hit.source.pop("embedding_meta")
    assert hit.source == {"text": "a cat on the mat", "when": "2026-02-03", "gone": None, "ids": [1, 2]}
    assert engine.count(name) == 1  # a given engine stays open


def test_rows_of_a_data_frame_are_added(index: SemanticIndex) -> None:
    pd = pytest.importorskip("pandas")
    columns = {
        "key": [1, None, 3],
        "text": ["a cat", "a man", b"the mat"],
        "at": pd.to_datetime(["2026-01-31", None, None]),
    }
    with pytest.raises(UsageError, match=r"to_dict"):
        index.add(pd.DataFrame(columns))
    report = index.add(pd.DataFrame(columns).to_dict("records"), id_field="key", max_errors="off")
    assert (report.indexed, report.dead) == (2, 1)
    found = {hit.id: hit.source for hit in index.search("a cat", 3)}
    assert {key: (source["text"], source["at"]) for key, source in found.items()} == {
        "1": ("a cat", "2026-01-31T00:00:00"),
        "3": ("the mat", None),
    }
    [letter] = report.rejected
    assert letter["reason"] == "the id field key is null, not a string or an integer"


def test_field_id_of_documents_is_their_id(index: SemanticIndex) -> None:
    documents: list[dict[str, Any]] = [{"_id": 7, "text": "a cat"}, {"_id": "x", "text": "a man"}, {"text": "the mat"}]
    assert index.add(documents).indexed == 3
    assert index.add(documents).unchanged == 3
    found = {hit.id: hit.source for hit in index.search("a cat", 3)}
    assert {"7", "x"} < found.keys()
    assert all("_id" not in source for source in found.values())
    assert index.delete("7") == 1


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (
            [{"_id": 1, "_index": "docs", "text": "a cat"}],
            "the field _index, .*: remove it from the documents",
        ),
        ([{"_routing": "r", "text": "a cat"}], 'set `routing_field="_routing"`'),
        (
            [{"_index": "docs", "_id": "1", "_source": {"text": "a cat"}}],
            "the hits of a search.*\n.*each hit",
        ),
        ([{"index": {"_id": "1"}}, {"text": "a cat"}], 'a _bulk body.*\n.*`id_field="_id"`'),
        ([{"text": b"caf\xe9"}], "the field text holds bytes .*: decode it first"),
        ([{"body": "a cat"}], "has the field text, .*\n.*text_fields"),
        ([{"text": 7}], "is a JSON number.*\n.*text_fields"),
    ],
)
def test_documents_are_refused_in_words_of_python(
    index: SemanticIndex, engine: Engine, name: str, documents: Any, message: str
) -> None:
    with pytest.raises(SourceError, match=message) as refused:
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
    with pytest.raises(SourceError, match="text"):
        index.add([{"title": "nothing to embed"}])


def test_report_has_unloadable_documents_and_the_folder_stays_empty(
    index: SemanticIndex, engine: Engine, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The working folder of a service is often read-only."""
    documents: list[Any] = [*sentences(30), {"id": "odd", "text": 5}, {"id": "none"}]
    Path().chmod(0o500)
    report = index.add(documents, id_field="id")
    assert (report.indexed, report.dead, report.dead_letters) == (30, 1, None)
    [letter] = report.rejected
    assert (letter["id"], letter["line"], letter["document"]) == ("odd", 31, {"id": "odd", "text": 5})
    assert "JSON number" in letter["reason"]
    assert "1  not loaded: see LoadReport.rejected" in repr(report)
    assert "this one and others: LoadReport.rejected" in caplog.text
    engine.bulk(name, b'{"index":{"_id":"wrong"}}\n{"text":5}\n{"index":{"_id":"new"}}\n{"text":"x"}\n')
    again = index.embed_missing(max_errors="off")
    assert (again.indexed, [letter["id"] for letter in again.rejected]) == (1, ["wrong"])
    assert index.embed_missing(max_errors=5).indexed == 0
    assert list(Path().iterdir()) == []


def test_failing_iterator_ends_the_load(index: SemanticIndex) -> None:
    def rows(error: Exception) -> Iterator[dict[str, Any]]:
        yield from sentences(5)
        raise error

    with pytest.raises(SourceError, match="failed after 5 of them: no more rows"):
        index.add(rows(OSError("no more rows")), id_field="id")
    with pytest.raises(ZeroDivisionError):
        index.add(rows(ZeroDivisionError()), id_field="id")
    # What was written before the failure is kept; the same documents complete it.
    index.add(sentences(5), id_field="id")
    assert len(index.search("a cat", 10)) == 5


def test_embed_missing(index: SemanticIndex, engine: Engine, name: str) -> None:
    bare = sentences(25)
    index.add(bare[:10], id_field="id")
    lines = [line for row in bare[10:] for line in ({"index": {"_id": row["id"]}}, row)]
    engine.bulk(name, b"".join(orjson.dumps(line) + b"\n" for line in lines))
    report = index.embed_missing()
    assert (report.indexed, report.source) == (15, "index")
    assert len(index.search("a cat", 25)) == 25
    assert index.embed_missing().indexed == 0


def test_passages_with_named_model(
    engine: Engine, encoder: Encoder, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with SemanticIndex.create(
        name, engine, encoder=encoder, text_fields=["text"], passages=12, passage_overlap=2, index_type="flat"
    ) as index:
        report = index.add([{"text": "the cat sleeps on the mat. " * 6}])
        assert report.passages > 1
        assert index.search("a cat", 1).hits[0].passage is not None
    with pytest.raises(UsageError, match="tokens"):
        SemanticIndex.create(name, engine, encoder=encoder, passages=10_000)


def test_writes_require_a_single_index(engine: Engine, encoder: Encoder, name: str) -> None:
    SemanticIndex.create(name, engine, encoder=encoder, text_fields=["text"]).close()
    SemanticIndex.create(f"{name}-2", engine, encoder=encoder, text_fields=["text"]).close()
    try:
        with SemanticIndex([name, f"{name}-2"], engine, encoder=encoder) as both:
            with pytest.raises(UsageError, match="written to one index"):
                both.add(sentences(1))
            with pytest.raises(UsageError, match="deleted from one index"):
                both.delete("d1")
    finally:
        engine.delete_index(f"{name}-2")


def test_async_index_creates_adds_searches_and_deletes(engine: Engine, encoder: Encoder, name: str) -> None:
    documents = sentences(60)

    async def write_and_search() -> None:
        index = await AsyncSemanticIndex.create(name, engine.info.url, encoder=encoder, text_fields=["text"])
        async with index:
            assert (await index.add(documents, id_field="id")).indexed == 60
            assert (await index.search(documents[44]["text"], 1)).hits[0].id == "d44"
            assert "d44" not in ids(await index.similar_to("d44", 60))
            assert await index.delete(["d44", "d45"]) == 2
            assert (await index.embed_missing()).indexed == 0
            with pytest.raises(UsageError, match="not an iterable of dicts"):
                await index.add({"text": "one document"})

    asyncio.run(write_and_search())
    assert engine.count(name) == 58


def test_create_without_engine_raises_engine_unreachable(encoder: Encoder) -> None:
    nowhere = "http://127.0.0.1:9"
    with pytest.raises(EngineUnreachable):
        SemanticIndex.create("docs", nowhere, encoder=encoder)

    async def create() -> None:
        await AsyncSemanticIndex.create("docs", nowhere, encoder=encoder)

    with pytest.raises(EngineUnreachable):
        asyncio.run(create())
