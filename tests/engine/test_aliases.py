"""Aliases of several indices, lists of names and patterns: searches, loads through the write index, and rollovers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch, IndexMissing, UsageError, VectorIndexError
from es_sbert.index.vector_field import ensure_vector_field, read_vector_field
from es_sbert.ingest.dry_run import dry_run
from es_sbert.ingest.ingest_settings import IngestSettings, resolve_sources
from es_sbert.ingest.load_plan import plan_load
from es_sbert.ingest.load_report import LoadReport
from es_sbert.search import SemanticIndex
from tests.engine.ingest_support import contents, letters, load, sentences, tiny_encoder, write_jsonl
from tests.engine.vectors import request_for, state_of

pytestmark = pytest.mark.one_engine

TEXT = "The river and the river met number 0."


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoder]:
    with tiny_encoder(tmp_path_factory.mktemp("model")) as encoder:
        yield encoder


@dataclass(frozen=True)
class Rolling:
    """An alias of two indices: the older one with vectors, the newer one, its write index, as a rollover makes it.

    Attributes:
        engine: The engine to use.
        url: Its address.
        alias, old, new: Names.
    """

    engine: Engine
    url: str
    alias: str
    old: str
    new: str

    def write(self, index: str, *documents: dict[str, Any]) -> None:
        lines = [line for each in documents for line in ({"index": {"_id": each["id"]}}, each)]
        assert all(item.ok for item in self.engine.bulk(index, b"".join(orjson.dumps(line) + b"\n" for line in lines)))
        self.engine.refresh(index)


@pytest.fixture
def rolling(engine_url: str, fresh_index: Callable[[str], str], encoder: Encoder, tmp_path: Path) -> Iterator[Rolling]:
    alias = f"{fresh_index(engine_url)}-logs"
    old, new = f"{alias}-000001", f"{alias}-000002"
    with closing(connect(EngineSettings(url=engine_url))) as engine:
        try:
            load(engine_url, encoder, old, write_jsonl(tmp_path / "old.jsonl", sentences(6)), dead=tmp_path / "dead",
                 id_field="id", index_type="int8_hnsw")  # fmt: skip
            engine.update_aliases([{"add": {"index": old, "alias": alias, "is_write_index": True}}])
            roll_over(engine_url, alias)
            yield Rolling(engine, engine_url, alias, old, new)
        finally:
            for index in (old, new, f"{alias}-000003"):
                engine.delete_index(index)


def roll_over(url: str, alias: str) -> None:
    httpx.post(f"{url}/{alias}/_rollover", timeout=60, trust_env=False).raise_for_status()


def opened(rolling: Rolling, name: str | Sequence[str], encoder: Encoder) -> SemanticIndex:
    return SemanticIndex(name, rolling.engine, encoder=encoder)


def test_searches_go_on_over_the_indices_with_the_field(
    rolling: Rolling, encoder: Encoder, caplog: pytest.LogCaptureFixture
) -> None:
    """After a rollover without a template; the alias, a list and a pattern are the same search."""
    rolling.write(rolling.new, {"id": "late", "text": "The river is late."})
    for name in (rolling.alias, f"{rolling.old},{rolling.new}", f"{rolling.alias}-*", [rolling.old, rolling.new]):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "es_sbert"), opened(rolling, name, encoder) as index:
            result = index.search(TEXT, 10)
            assert {hit.index for hit in result} == {rolling.old}
            assert len(result) == 6
            assert result.hits[0].cosine == pytest.approx(1.0, abs=1e-5)  # the tiny model gives most texts one vector
            assert result.indices_without_field == (rolling.new,)
            assert index.search_vector(encoder.encode(TEXT, "query"), 10).indices_without_field == (rolling.new,)
            assert {hit.id for hit in index.similar_to("d0", 10)} == {f"d{number}" for number in range(1, 6)}
        assert f"{rolling.new} lacks the vector field embedding" in caplog.text
    with opened(rolling, rolling.old, encoder) as index:
        assert index.search(TEXT).indices_without_field == ()


def test_hybrid_search_finds_words_in_indices_without_the_field(rolling: Rolling, encoder: Encoder) -> None:
    rolling.write(rolling.new, {"id": "late", "text": "A word that no other document has: hippopotamus."})
    with opened(rolling, rolling.alias, encoder) as index:
        result = index.hybrid("hippopotamus", 10)
        found = {hit.id: hit for hit in result}
        assert found["late"].cosine is None
        assert found["late"].lexical is not None
        assert found["d0"].cosine is not None
        assert result.indices_without_field == (rolling.new,)


def test_a_pattern_applies_the_filters_of_aliases(rolling: Rolling, encoder: Encoder) -> None:
    """As the engine does: the filter of an alias counts unless the index is meant by its own name too."""
    narrow = f"{rolling.alias}-narrow"
    by_price = {"range": {"price": {"lt": 0.25}}}
    rolling.engine.update_aliases([{"add": {"index": rolling.old, "alias": narrow, "filter": by_price}}])
    for name, count in ((f"{narrow}*", 2), (f"{narrow},{rolling.new}", 2), (f"{rolling.alias}-*", 6)):
        with opened(rolling, name, encoder) as index:
            assert len(index.search(TEXT, 10)) == count, name


@pytest.fixture
def tenants(engine_url: str, fresh_index: Callable[[str], str], encoder: Encoder, tmp_path: Path) -> Iterator[Rolling]:
    """An index of five shards with documents of two routings; `alias` is the first tenant's, `new` the other's."""
    index = fresh_index(engine_url)
    rows = [document | {"tenant": "one" if number % 2 else "two"} for number, document in enumerate(sentences(12))]
    with closing(connect(EngineSettings(url=engine_url))) as engine:
        engine.create_index(index, {"settings": {"index.number_of_shards": 5}})
        load(engine_url, encoder, index, write_jsonl(tmp_path / "rows.jsonl", rows), dead=tmp_path / "dead",
             id_field="id", routing_field="tenant")  # fmt: skip
        one, two = f"{index}-one", f"{index}-two"
        for alias, routing in ((one, "one"), (two, "two")):
            engine.update_aliases([{"add": {"index": index, "alias": alias, "routing": routing}}])
        yield Rolling(engine, engine_url, one, index, two)


def test_the_routing_of_an_alias_limits_searches(tenants: Rolling, encoder: Encoder) -> None:
    """To the shards that the engine itself would search by this alias."""
    with opened(tenants, tenants.alias, encoder) as index:
        for result in (
            index.search(TEXT, 20),
            index.search(TEXT, 20, min_cosine=-1.0),
            index.hybrid("river", 20),
            index.search_vector(encoder.encode(TEXT, "query"), 20),
        ):
            assert {hit.source["tenant"] for hit in result} == {"one"}
            assert {hit.id for hit in result} == {f"d{number}" for number in range(1, 12, 2)}
        assert len(index.similar_to("d1", 20)) == 5
        with pytest.raises(UsageError, match="there is no document 'd2'"):
            index.similar_to("d2")
    for names in ([tenants.alias, tenants.old], [tenants.alias, tenants.new]):
        with pytest.raises(IndexMismatch, match="have different routings"):
            opened(tenants, names, encoder)
    with pytest.raises(IndexMismatch, match="does not cover all shards"):
        opened(tenants, f"{tenants.alias},{tenants.alias}-*", encoder)
    for name in (f"{tenants.old}-*e", f"{tenants.old}*"):  # to an alias that matches a pattern, no routing applies
        with opened(tenants, name, encoder) as index:
            assert len(index.search(TEXT, 20)) == 12


@pytest.mark.long
def test_the_filter_of_an_alias_of_a_data_stream_limits_searches(
    es9_full_url: str, fresh_index: Callable[[str], str], encoder: Encoder, tmp_path: Path
) -> None:
    """OpenSearch has no such aliases."""
    stream = fresh_index(es9_full_url)
    narrow = f"{stream}-narrow"
    with httpx.Client(base_url=es9_full_url, timeout=60, trust_env=False) as client:
        template: Json = {"index_patterns": [stream], "data_stream": {}, "priority": 500}
        client.put(f"/_index_template/{stream}", json=template).raise_for_status()
        # The build lacks the API that deletes a data stream; the server ends with the run.
        lines = [
            line
            for number, each in enumerate(sentences(6))
            for line in ({"create": {}}, each | {"@timestamp": 1000 + number, "number": number})
        ]
        body = b"".join(orjson.dumps(line) + b"\n" for line in lines)
        client.post(f"/{stream}/_bulk?refresh=true", content=body, headers={"content-type": "application/x-ndjson"})
        load(es9_full_url, encoder, stream, dead=tmp_path / "dead")
        action = {"add": {"index": stream, "alias": narrow, "filter": {"range": {"number": {"lt": 2}}}}}
        client.post("/_aliases", json={"actions": [action]}).raise_for_status()
        for name in (narrow, f"{narrow}*"):
            with closing(connect(EngineSettings(url=es9_full_url))) as engine:
                index = SemanticIndex(name, engine, encoder=encoder)
                assert {hit.source["number"] for hit in index.search(TEXT, 10)} == {0, 1}
                assert {hit.source["number"] for hit in index.hybrid("river", 10)} <= {0, 1}


def test_expressions_without_an_index_are_refused(rolling: Rolling, encoder: Encoder) -> None:
    for name in (f"{rolling.alias}-none-*", f"{rolling.old},{rolling.alias}-none"):
        with pytest.raises(IndexMissing, match="does not match any index"):
            opened(rolling, name, encoder)
    with pytest.raises(IndexMismatch, match="no vector field 'embedding'"):
        opened(rolling, rolling.new, encoder)
    for name in ("a,_search", "a,b/c", "a,,b", "*,-"):
        with pytest.raises(UsageError, match="neither the name of an index nor a pattern"):
            opened(rolling, name, encoder)


def test_many_indices_are_searched_at_once(rolling: Rolling, encoder: Encoder) -> None:
    """More names than fit into a request line."""
    names = [f"{rolling.alias}-many-{'x' * 150}-{number:02}" for number in range(20)]
    try:
        for name in names:
            ensure_vector_field(rolling.engine, name, request_for(encoder, text="{text}"), shards=1, replicas=0)
        with opened(rolling, f"{rolling.alias}-*", encoder) as index:
            assert len(index.search(TEXT, 10)) == 6
            assert len(index.hybrid(TEXT, 10)) == 6
            if rolling.engine.info.engine_type is EngineType.OPENSEARCH:
                with pytest.raises(UsageError, match="names of the 20 indices of this search do not fit"):
                    rolling.engine.search(names, {}, named_scores=True)
    finally:
        for name in names:
            rolling.engine.delete_index(name)


def test_load_goes_to_the_write_index_and_adds_its_field(rolling: Rolling, encoder: Encoder, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "new.jsonl", [{"id": "n1", "text": "A storm."}, {"id": "n2", "text": 7}])
    summary = load(rolling.url, encoder, rolling.alias, path, dead=tmp_path / "dead", id_field="id")
    assert (summary.index, summary.indexed, summary.dead) == (rolling.new, 1, 1)
    [note] = summary.notes
    assert f"{rolling.new} had no vector field embedding, which {rolling.old} of the alias {rolling.alias} has" in note
    assert "Put it into the index template too" in note
    assert set(contents(rolling.url, rolling.new)) == {"n1"}
    assert set(contents(rolling.url, rolling.old)) == {f"d{number}" for number in range(6)}
    field, like = (read_vector_field(rolling.engine, index, "embedding").meta for index in (rolling.new, rolling.old))
    assert (field.fingerprint, field.text) == (like.fingerprint, like.text)
    # On OpenSearch an index without index.knn has no graph.
    elasticsearch = rolling.engine.info.engine_type is EngineType.ELASTICSEARCH
    assert field.index_type == ("int8_hnsw" if elasticsearch else "flat")
    again = load(rolling.url, encoder, rolling.alias, path, dead=tmp_path / "dead", id_field="id")
    assert (again.unchanged, again.notes) == (1, ())
    # A dead letter of the alias may be loaded after the next rollover.
    assert {letter["index"] for letter in letters(tmp_path / "dead")} == {rolling.alias}
    roll_over(rolling.url, rolling.alias)
    retried = load(rolling.url, encoder, rolling.alias, dead=tmp_path / "dead", retry=tmp_path / "dead")
    assert (retried.index, retried.dead) == (f"{rolling.alias}-000003", 1)


def test_template_of_the_docs_gives_the_next_index_the_field(rolling: Rolling, encoder: Encoder) -> None:
    page = Path("docs/commands/index.md").read_text("utf-8")
    get = page.partition("GET logs-000001/_mapping?filter_path=")[2].partition("\n")[0]
    name, template = f"{rolling.alias}-vectors", {"index_patterns": [f"{rolling.alias}-*"]}
    with httpx.Client(base_url=rolling.url, timeout=60, trust_env=False) as client:
        mappings = client.get(f"/{rolling.old}/_mapping", params={"filter_path": get}).json()[rolling.old]["mappings"]
        part: Json = {"mappings": mappings}
        if rolling.engine.info.engine_type is EngineType.OPENSEARCH:
            part["settings"] = {"index.knn": True}
        try:
            client.put(f"/_component_template/{name}", json={"template": part}).raise_for_status()
            composed = {**template, "composed_of": [name]}
            client.put(f"/_index_template/{name}", json=composed).raise_for_status()
            roll_over(rolling.url, rolling.alias)
        finally:
            client.delete(f"/_index_template/{name}")
            client.delete(f"/_component_template/{name}")
    old, new = (
        read_vector_field(rolling.engine, index, "embedding") for index in (rolling.old, f"{rolling.alias}-000003")
    )
    assert new.meta == old.meta
    state = state_of(rolling.engine, new.index)
    assert {"embedding", "embedding_meta"} == state.mappings["properties"].keys()
    assert set(state.mappings["_meta"]["es_sbert"]) == {"fields"}


def test_load_by_another_model_leaves_the_write_index_alone(rolling: Rolling, encoder: Encoder, tmp_path: Path) -> None:
    other = request_for(encoder, fingerprint="0" * 32, model_name="other", text="{text}")
    with pytest.raises(IndexMismatch, match=f"{rolling.old}.embedding holds vectors of the model"):
        ensure_vector_field(rolling.engine, rolling.alias, other)
    with pytest.raises(IndexMismatch, match="has one vector per document, so it cannot be searched together with"):
        load(rolling.url, encoder, rolling.alias, write_jsonl(tmp_path / "new.jsonl", sentences(1)),
             dead=tmp_path / "dead", id_field="id", passages=("16",))  # fmt: skip
    state = state_of(rolling.engine, rolling.new)
    assert "embedding" not in state.mappings.get("properties", {})
    field = ensure_vector_field(rolling.engine, rolling.alias, request_for(encoder))
    assert (field.index, field.meta.text) == (rolling.new, "{text}")


def test_aliases_that_no_load_can_use_are_refused(rolling: Rolling, encoder: Encoder, tmp_path: Path) -> None:
    path, dead = write_jsonl(tmp_path / "new.jsonl", sentences(1)), tmp_path / "dead"
    with pytest.raises(VectorIndexError, match="an alias of 2 indices, but documents can be embedded") as told:
        load(rolling.url, encoder, rolling.alias, dead=dead)
    assert f"`es-sbert ingest --index {rolling.old}`" in told.value.remedy
    with_model = f"`es-sbert ingest --index {rolling.new} --vector-field embedding --model {encoder.info.model} "
    assert with_model in told.value.remedy
    assert "--text-template '{text}'" in told.value.remedy

    def point(new: Json, **old: Any) -> None:
        actions = [{"add": {"index": rolling.new, "alias": rolling.alias, **new}}]
        rolling.engine.update_aliases([*actions, {"add": {"index": rolling.old, "alias": rolling.alias, **old}}])

    point({"is_write_index": False}, is_write_index=False)
    with pytest.raises(IndexMismatch, match="none of them is its write index"):
        load(rolling.url, encoder, rolling.alias, path, dead=dead, id_field="id")
    httpx.post(f"{rolling.url}/{rolling.old}/_close", timeout=60, trust_env=False).raise_for_status()
    point({"is_write_index": True}, is_write_index=False)
    with pytest.raises(VectorIndexError, match=f"{rolling.old} of the alias {rolling.alias} is closed"):
        load(rolling.url, encoder, rolling.alias, path, dead=dead, id_field="id")
    httpx.post(f"{rolling.url}/{rolling.old}/_open", timeout=60, trust_env=False).raise_for_status()
    point({"is_write_index": True, "routing": "one"}, is_write_index=False)
    with pytest.raises(VectorIndexError, match="an alias of 2 indices with an `index_routing`"):
        load(rolling.url, encoder, rolling.alias, path, dead=dead, id_field="id")
    rolling.engine.update_aliases(
        [
            {"remove": {"index": rolling.new, "alias": rolling.alias}},
            {"add": {"index": rolling.old, "alias": rolling.alias, "is_write_index": False}},
        ]
    )
    with pytest.raises(IndexMismatch, match="`is_write_index: false`"):
        load(rolling.url, encoder, rolling.alias, path, dead=dead, id_field="id")


def test_semantic_index_adds_and_deletes_through_an_alias(rolling: Rolling, encoder: Encoder, tmp_path: Path) -> None:
    with opened(rolling, rolling.alias, encoder) as index:
        report = index.add([{"id": "n1", "text": "A storm."}], id_field="id", dead_letters=tmp_path / "dead")
        assert (report.index, report.indexed) == (rolling.new, 1)
        result = index.search("A storm.", 1)
        assert [(hit.index, hit.id) for hit in result] == [(rolling.new, "n1")]
        assert result.indices_without_field == ()
        rolling.write(rolling.new, {"id": "d1", "text": "The same id in two indices."})
        assert index.delete(["d1", "n1", "d2", "d-none"]) == 4
        assert {hit.id for hit in index.search(TEXT, 10)} == {"d0", "d3", "d4", "d5"}
        with pytest.raises(VectorIndexError, match="embedded in place in only one index at a time"):
            index.embed_missing(dead_letters=tmp_path / "dead")
    with opened(rolling, f"{rolling.alias}-*", encoder) as pattern:
        for write in (lambda: pattern.add([{"text": "a"}]), lambda: pattern.delete("d0")):
            with pytest.raises(UsageError, match=r"one index only, not .*-\*"):
                write()


def test_load_by_alias_writes_no_document_that_an_older_index_holds(
    rolling: Rolling, encoder: Encoder, tmp_path: Path
) -> None:
    """Also those of later windows, and those that no search of the older index finds yet."""
    engine, old, dead, documents = rolling.engine, rolling.old, tmp_path / "dead", sentences(6)

    def load_source(index: str = rolling.alias, **options: Any) -> LoadReport:
        path = write_jsonl(tmp_path / "source.jsonl", documents)
        return load(rolling.url, encoder, index, path, dead=dead, id_field="id", batch_window=2, **options)

    def places() -> dict[str, list[str]]:
        """Id → the indices in which a search of the alias finds it."""
        engine.refresh(rolling.alias)
        found: dict[str, list[str]] = {}
        for hit in engine.search(rolling.alias, {"size": 100})["hits"]["hits"]:
            found.setdefault(hit["_id"], []).append(hit["_index"])
        return found

    engine.put_settings(old, {"index.refresh_interval": "-1"})
    assert all(item.ok for item in engine.bulk(old, b'{"index":{"_id":"unrefreshed"}}\n{"text":"A river."}\n'))
    documents.append({"id": "unrefreshed", "text": "A river."})
    before = {key: value for key, value in contents(rolling.url, old).items() if key != "unrefreshed"}
    documents[2]["text"], documents[3]["price"], documents[4]["text"] = "A storm.", 99.5, ""
    documents.append({"id": "new", "text": "A forest."})
    report = load_source()
    assert (report.index, report.indexed, report.unchanged, report.dead, report.exit_code) == (rolling.new, 1, 3, 4, 1)
    assert f"3 documents are unchanged in {old}, another index of the alias {rolling.alias}" in report.notes[-1]
    assert places() == {key: [old] for key in (*before, "unrefreshed")} | {"new": [rolling.new]}
    assert {key: contents(rolling.url, old)[key] for key in before} == before
    assert {letter["id"]: letter["index"] for letter in letters(dead)} == dict.fromkeys(
        ("d2", "d3", "d4", "unrefreshed"), old
    )
    assert f"`es-sbert ingest --index {old} --retry {dead}` updates it there" in letters(dead)[0]["reason"]
    # Through the alias they are refused again; the command of the reason updates them where they are.
    assert load(rolling.url, encoder, rolling.alias, dead=dead, retry=dead).dead == 4
    retried = load(rolling.url, encoder, old, dead=dead, retry=dead)
    assert (retried.indexed, retried.updated, retried.skipped.empty, retried.dead) == (2, 1, 1, 0)
    now = contents(rolling.url, old)
    assert (now["d2"]["text"], now["d3"]["price"], now["d4"].get("embedding")) == ("A storm.", 99.5, None)
    again = load_source()
    assert (again.unchanged, again.skipped.empty, again.dead, again.exit_code) == (7, 1, 0, 0)
    assert places() == {key: [old] for key in (*before, "unrefreshed")} | {"new": [rolling.new]}
    # A vector that is gone, though its metadata is there.
    rolling.write(old, {key: value for key, value in now["d5"].items() if key not in ("embedding", "_version")})
    lost = load_source()
    assert (lost.unchanged, lost.dead, lost.exit_code) == (6, 1, 1)
    assert (
        f"{old} of the alias {rolling.alias} holds this document without a current vector in embedding: "
        in (letters(dead)[-1]["reason"])
    )
    assert load(rolling.url, encoder, old, dead=dead, retry=dead).indexed == 1
    # Prune does not look at the older index, and says so.
    del documents[-1], documents[5]
    pruned = load_source(prune=True)
    assert pruned.pruned == 1
    assert f"`prune` checks only {rolling.new}:" in pruned.notes[-1]
    assert set(places()) == {*before, "unrefreshed"}
    # Documents that only share their ids.
    assert load_source(rolling.new).indexed == 5
    with opened(rolling, rolling.alias, encoder) as index:
        report = index.add([{"id": "d5", "text": "A guitar."}], id_field="id")
        [letter] = report.rejected
        assert letter["index"] == old
        assert f"add it to {old} to update it there" in letter["reason"]


def test_load_by_alias_compares_documents_that_were_embedded_in_place(
    rolling: Rolling, encoder: Encoder, tmp_path: Path
) -> None:
    """The metadata of their vectors has no hash of the document."""
    engine, old, dead = rolling.engine, rolling.old, tmp_path / "dead"
    found: list[dict[str, Any]] = [
        {"id": f"p{number}", "text": f"A guitar and number {number}.", "price": 1.5, "none": None, "list": [],
         "parts": [{}, {"size": 2.0, "big": 2**60}], "object": {}, "flag": True}
        for number in range(6)
    ]  # fmt: skip
    lines = [orjson.dumps(line) for one in found for line in ({"index": {"_id": one["id"]}}, one)]
    # Numbers that an engine may write differently are the same to a load.
    lines[1] = lines[1].replace(b'"price":1.5', b'"price":1.50')
    assert all(item.ok for item in engine.bulk(old, b"\n".join(lines) + b"\n"))
    assert load(rolling.url, encoder, old, dead=dead).indexed == 6
    assert load(rolling.url, encoder, old, dead=dead, vectors=("other={text}",), passages=("8",)).indexed == 12
    hashes = [source["embedding_meta"]["document_hash"] for source in contents(rolling.url, old).values()]
    assert hashes.count(None) == 6
    # Another program changes a field that is not part of the text: the hash of d0 is that of the earlier document.
    assert engine.bulk(old, b'{"update":{"_id":"d0"}}\n{"doc":{"price":4.5}}\n')[0].ok
    source = [*found, sentences(1)[0] | {"price": 4.5}]
    source[1] = found[1] | {"price": 1}
    source[2] = found[2] | {"flag": 1}
    source[3] = {name: value for name, value in found[3].items() if name != "none"}
    source[4] = found[4] | {"text": "A storm."}
    before = contents(rolling.url, old)
    path = write_jsonl(tmp_path / "source.jsonl", source)
    report = load(rolling.url, encoder, rolling.alias, path, dead=dead, id_field="id")
    assert (report.index, report.indexed, report.unchanged, report.dead) == (rolling.new, 0, 3, 4)
    assert {letter["id"] for letter in letters(dead)} == {"p1", "p2", "p3", "p4"}
    assert all("with other content" in letter["reason"] for letter in letters(dead))
    assert contents(rolling.url, old) == before
    assert contents(rolling.url, rolling.new) == {}


def test_dry_run_names_the_older_index_of_a_document(rolling: Rolling, encoder: Encoder, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "source.jsonl", [*sentences(2), {"id": "new", "text": "A forest."}, {"id": "x"}])
    settings = IngestSettings(index=rolling.alias, files=(str(path),), id_field="id", dry_run=5)
    shown = dry_run(rolling.engine, encoder, plan_load(rolling.engine, settings, resolve_sources(settings)), 5)
    assert [document.held_in for document in shown.documents] == [rolling.old, rolling.old, None, None]
    assert f"{rolling.old} of the alias {rolling.alias} holds this id" in "\n".join(shown.lines())
    settings = settings.model_copy(update={"index": rolling.new})
    shown = dry_run(rolling.engine, encoder, plan_load(rolling.engine, settings, resolve_sources(settings)), 5)
    assert {document.held_in for document in shown.documents} == {None}


def test_load_by_alias_tells_that_an_older_index_lacks_a_new_vector_field(
    rolling: Rolling, encoder: Encoder, tmp_path: Path
) -> None:
    """Of one vector and of passages; `retry` with the same fields adds it to the older index."""
    dead, path = tmp_path / "dead", tmp_path / "old.jsonl"
    for vector, passages in (("second=About {text}", ()), ("parts={text}", ("16",))):
        options: dict[str, Any] = {"vectors": (vector,), "passages": passages}
        report = load(rolling.url, encoder, rolling.alias, path, dead=dead, id_field="id", **options)
        assert (report.unchanged, report.dead, report.exit_code) == (0, 6, 2)
        reason = f"holds this document without a current vector in {vector.partition('=')[0]}: "
        found = {(letter["index"], letter["reason"].partition(reason)[1]) for letter in letters(dead)}
        assert found == {(rolling.old, reason)}, letters(dead)[0]["reason"]
        assert load(rolling.url, encoder, rolling.old, dead=dead, retry=dead, **options).indexed == 6
        again = load(rolling.url, encoder, rolling.alias, path, dead=dead, id_field="id", **options)
        assert (again.unchanged, again.dead, again.exit_code) == (6, 0, 0)


def test_retry_into_an_older_index_takes_only_its_letters(rolling: Rolling, encoder: Encoder, tmp_path: Path) -> None:
    """A letter of the alias is of its write index."""
    dead = tmp_path / "dead"
    path = write_jsonl(tmp_path / "a.jsonl", [{"id": "d0", "text": "A storm."}, {"id": "n", "text": 7}])
    assert load(rolling.url, encoder, rolling.alias, path, dead=dead, id_field="id").dead == 2
    with pytest.raises(UsageError, match=f"holds dead letters of the index {rolling.alias}\n") as told:
        load(rolling.url, encoder, rolling.old, dead=dead, retry=dead)
    assert f"""`grep '"index":"{rolling.old}"' {dead} > {rolling.old}.jsonl`""" in told.value.remedy
