"""Every command on OpenSearch indices whose default search pipeline drops, renames and collapses hits.

Two sets of indices hold the same documents. An index template gives each index of the second set the pipeline, also
those that commands create. Each command must do and print the same with both.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_scan import multi_get, scan_index
from es_sbert.index.document_sample import DocumentSelection, read_documents
from es_sbert.ingest.load_report import LoadReport
from es_sbert.search.semantic_index import SemanticIndex
from es_sbert.training.adapt import rank_by_bm25
from tests.conftest import delete_index
from tests.e2e.cli_support import Cli
from tests.engine.ingest_support import Loads, contents, open_engine, write_jsonl
from tests.engine.sources import read_sources
from tests.engine.test_ingest_watch import until, watching
from tests.engine.vectors import vector_value
from tests.faults.servers import call
from tests.gateway.serving import gateway
from tests.tiny import WORDS

COUNT = 240
KEPT = ["1", "2", "3"]
HOSTILE = {
    "request_processors": [
        {"filter_query": {"query": {"ids": {"values": KEPT}}}},
        {"script": {"source": "ctx._source['size'] = 2"}},
        {"oversample": {"sample_factor": 2.0}},
    ],
    "response_processors": [
        {"rename_field": {"field": "text", "target_field": "renamed", "ignore_failure": True}},
        {"rename_field": {"field": "embedding", "target_field": "gone", "ignore_failure": True}},
        {"collapse": {"field": "group", "ignore_failure": True}},
        {"truncate_hits": {"target_size": 1}},
    ],
}
# Members of reports that differ from run to run; the languages are those of a random sample.
_VARYING = (
    "seconds", "_ms", "per_second", "bytes", "created", "loaded_at", "date", "time", "uuid", "_at", "rate", "languages",
)  # fmt: skip


def document(number: int) -> dict[str, Any]:
    words = [WORDS[number // 6**place % 6] for place in range(4)]
    text = f"{' '.join(words)}. {' '.join(reversed(words))}"
    return {"text": text, "group": "same", "number": number, "day": f"2026-01-{number % 28 + 1:02}"}


class Indices:
    """Indices whose names begin with a prefix."""

    def __init__(self, url: str, prefix: str, cli: Cli, model: Path, folder: Path) -> None:
        self.url, self.prefix, self.model, self.folder = url, prefix, model, folder
        self._cli = cli

    def name(self, index: str) -> str:
        return f"{self.prefix}-{index}"

    def run(self, *arguments: str | Path, code: int = 0, with_model: bool = True, cut: str = "") -> Any:
        """Run a command and return what it printed, without the prefix."""
        chosen = ["--model", f"{self.model}{cut}", "--precision", "fp32", "--threads", "1"] if with_model else []
        done = self._cli(*arguments, *chosen, "--url", self.url)
        assert done.code == code, (arguments, done.err)
        shown = done.out.replace(self.prefix, "PREFIX")
        return [orjson.loads(line) for line in shown.splitlines()] if "--json" in arguments else shown

    def contents(self, index: str) -> dict[str, Any]:
        return contents(self.url, self.name(index))

    def fill(self, engine: Engine, index: str, vectors: Any = None, aliases: tuple[str, ...] = ()) -> str:
        """Create an index by plain requests."""
        properties: dict[str, Any] = {"group": {"type": "keyword"}, "day": {"type": "date"}}
        if vectors is not None:
            method = {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil"}
            properties["embedding"] = {"type": "knn_vector", "dimension": vectors.shape[1], "method": method}
        name = self.name(index)
        engine.create_index(
            name,
            {
                "mappings": {"properties": properties},
                "settings": {"number_of_shards": 2, "number_of_replicas": 0, "index.knn": vectors is not None},
                "aliases": {self.name(alias): {} for alias in aliases},
            },
        )
        lines = b""
        for number in range(COUNT):
            source = document(number)
            if vectors is not None:
                source["embedding"] = vector_value(engine.info, vectors[number])
            lines += orjson.dumps({"index": {"_id": str(number)}}) + b"\n" + orjson.dumps(source) + b"\n"
        assert all(item.ok for item in engine.bulk(name, lines))
        engine.refresh(name)
        return name


@contextmanager
def indices(url: str, cli: Cli, model: Path, folder: Path, pipeline: dict[str, Any] | None) -> Iterator[Indices]:
    prefix = f"test-{uuid.uuid4().hex[:12]}"
    folder.mkdir()
    settings = {}
    if pipeline is not None:
        call(url, "PUT", f"/_search/pipeline/{prefix}", pipeline)
        settings = {"index.search.default_pipeline": prefix}
    template = {"index_patterns": [f"{prefix}-*"], "template": {"settings": settings}, "priority": 500}
    call(url, "PUT", f"/_index_template/{prefix}", template)
    try:
        yield Indices(url, prefix, cli, model, folder)
    finally:
        for name in call(url, "GET", f"/{prefix}-*", None):
            delete_index(url, name)
        call(url, "DELETE", f"/_index_template/{prefix}", None)
        if pipeline is not None:
            call(url, "DELETE", f"/_search/pipeline/{prefix}", None)


@pytest.fixture
def both(opensearch_url: str, cli: Cli, model: Path, tmp_path: Path) -> Iterator[list[Indices]]:
    """Indices without and with the pipeline."""
    with (
        indices(opensearch_url, cli, model, tmp_path / "plain", None) as plain,
        indices(opensearch_url, cli, model, tmp_path / "hostile", HOSTILE) as hostile,
    ):
        yield [plain, hostile]


def loads(at: Indices) -> Iterator[Any]:
    documents = [document(number) | {"id": str(number)} for number in range(COUNT)]
    whole = write_jsonl(at.folder / "docs.jsonl", documents)
    load = ("ingest", "--index", at.name("files"), "--id-field", "id", "--json", "--dead-letters", at.folder / "dead")
    yield at.run(*load, whole)
    yield at.run(*load, whole)
    write_jsonl(whole, documents[: COUNT // 2])
    yield at.run(*load, "--prune", "--yes", whole)
    yield at.contents("files")
    with open_engine(at.url) as engine:
        place = at.fill(engine, "place")
        yield at.run("ingest", "--index", place, "--json", "--dry-run", "1")
        yield at.run("ingest", "--index", place, "--json")
        yield at.contents("place")
        with (
            Encoder(str(at.model), precision="fp32", threads=1) as encoder,
            watching(Loads(at.url, place, encoder, at.folder)) as (done, _),
        ):
            engine.bulk(place, b'{"index":{"_id":"new"}}\n{"text":"a cat sleeps"}\n')
            until(
                lambda: "embedding" in read_sources(engine, place, ["new"], source_includes=["embedding"])["new"], done
            )
        assert isinstance(done[0], LoadReport)
        yield done[0].indexed, done[0].lacking


def vectors_of(at: Indices) -> Any:
    with Encoder(str(at.model), precision="fp32", threads=1) as encoder:
        return encoder.encode([document(number)["text"] for number in range(COUNT)], "document")


def analyses(at: Indices) -> Iterator[Any]:
    documents = [document(number) | {"id": str(number)} for number in range(COUNT)]
    name, folder = at.name("read"), at.folder
    load = ("ingest", "--index", name, "--id-field", "id", "--dead-letters", folder / "dead")
    at.run(*load, write_jsonl(folder / "docs.jsonl", documents))
    asked = [document(number)["text"] for number in range(0, 60, 2)]
    labeled = [{"query": text, "ids": [str(2 * number)]} for number, text in enumerate(asked)]
    labels = write_jsonl(folder / "labeled.jsonl", labeled)
    exact: list[tuple[str | Path, ...]] = [
        ("index", "show", name),
        ("pairs", "--index", name),
        ("duplicates", "--index", name, "--num-candidates", "100"),
        ("duplicates", "--index", name, "--write-field", "copy_of"),
        ("cluster", "--index", name, "-k", "3"),
    ]
    for command in exact:
        yield at.run(*command, "--json", with_model=False)
    yield at.run("doctor", "--index", name, "--json")
    # Random samples differ from index to index, but not how many documents they have.
    advise = ("index", "advise", name, "--dimensions", "8")
    yield counts(at.run(*advise, "--json", with_model=False))
    yield counts(at.run("index", "calibrate", name, "--queries", labels, "--json"))
    with open_engine(at.url) as engine:
        selection = DocumentSelection(name, sample=COUNT)
        yield [(found.key, found.source) for found in read_documents(engine, selection, ["text"])]
        yield rank_by_bm25(engine, selection, asked, ["text"], {str(n): n for n in range(COUNT)}, depth=5).tolist()
        yield sorted(multi_get(engine, name, ["1", "200"], source={"includes": ["text"]}))
        yield sum(len(page.hits) for page in scan_index(engine, name, query={"match_all": {}}, source_includes=[]))


def counts(reports: list[dict[str, Any]]) -> dict[str, int]:
    return {name: value for report in reports for name, value in report.items() if isinstance(value, int)}


@pytest.mark.parametrize("commands", [loads, analyses])
def test_commands(both: list[Indices], commands: Callable[[Indices], Iterator[Any]]) -> None:
    plain, hostile = both
    for expected, found in zip(commands(plain), commands(hostile), strict=True):
        assert_equal(found, expected)


def test_migrations_lose_no_document(both: list[Indices]) -> None:
    _, at = both
    with open_engine(at.url) as engine:
        adopted = at.fill(engine, "adopted", vectors_of(at), aliases=("alias",))
        alias, options = at.name("alias"), ("--json", "--yes")

        def check(has_vectors: bool) -> None:
            """All documents are there, as they were, by a read that no pipeline changes."""
            ids = [str(number) for number in range(COUNT)]
            found = read_sources(engine, alias, ids, source_includes=["*"])
            assert found.keys() == set(ids)
            for number, source in ((int(id), source) for id, source in found.items()):
                assert source.items() >= document(number).items()
                assert ("embedding" in source, "embedding_meta" in source) == (has_vectors, has_vectors)

        [report] = at.run("index", "adopt", adopted, "--text-field", "text", "--json")
        assert report["documents"] == COUNT
        [report] = at.run("index", "migrate", alias, *options, "--name", at.name("second"), cut="@8")
        assert report["copied"] == report["documents"] == COUNT
        check(has_vectors=True)
        [report] = at.run("index", "migrate", at.name("second"), "--replace-index", *options, cut="@4")
        check(has_vectors=True)


def test_searches_of_users_keep_the_pipeline(both: list[Indices]) -> None:
    plain, hostile = ([*answers(at)] for at in both)
    for (expected, full), (found, cut) in zip(plain, hostile, strict=True):
        assert found == expected
        assert len(full) >= 5
        assert len(cut) <= 2  # rrf fuses the hits of two searches


def answers(at: Indices) -> Iterator[tuple[Any, list[Any]]]:
    """Something that es-sbert reads itself, and the hits of a search of the user."""
    with (
        open_engine(at.url) as engine,
        gateway(at.url, at.model) as proxy,
        httpx.Client(base_url=proxy, timeout=60) as client,
    ):
        name, text = at.fill(engine, "docs"), document(7)["text"]
        at.run("ingest", "--index", name, "--json")
        around = {"search_pipeline": "_none"}

        def search(body: dict[str, Any], target: str = f"/{name}/_search") -> list[str]:
            answer = client.post(target, json=body).raise_for_status().json()
            return [hit["_id"] for hit in answer["hits"]["hits"]]

        # First a point in time: nothing is known of the engine yet.
        opened = client.post(f"/{name}/_search/point_in_time?keep_alive=1m").raise_for_status().json()
        semantic = {"query": {"match": {"semantic": {"query": text, "k": 5}}}, "size": 100}
        pit = {"pit": {"id": opened["pit_id"]}}
        yield search(semantic | pit | around, "/_search"), search(semantic | pit, "/_search")
        yield search(semantic | around), search(semantic)
        client.post(f"/{name}/_update/9?refresh=true", json={"doc": {"text": text}}).raise_for_status()
        found = read_sources(engine, name, ["9", "7"], source_includes=["embedding", "text"])
        assert found["9"]["embedding"] == pytest.approx(found["7"]["embedding"], abs=1e-5)
        with SemanticIndex(name, engine, model=str(at.model), precision="fp32", threads=1) as index:
            yield None, list(index.search(text, k=5))
            yield client.get("/ui/api/facets", params={"index": name}).json(), list(index.hybrid(text, k=5))
            yield engine.count(name), list(index.search(text, k=5, exact=True))
            yield None, list(index.similar_to("100", k=5))
        yield None, at.run("search", "--index", name, text, "-k", "5", "--json")


def assert_equal(found: Any, expected: Any) -> None:
    """Equal but for what differs from run to run, and what an approximate search misses."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            if not any(part in key for part in _VARYING):
                assert_equal(found[key], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, two in zip(found, expected, strict=True):
            assert_equal(one, two)
    else:
        assert found == (pytest.approx(expected, rel=0.01, abs=0.05) if isinstance(expected, float | int) else expected)
