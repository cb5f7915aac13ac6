"""What es-sbert has put into an index is taken out again, beside programs that write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.analysis.field_writer import FieldWriter
from es_sbert.diagnostics.doctor import inspect_index
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.retry import RetryPolicy
from es_sbert.errors import IndexMismatch
from es_sbert.index.adopt_field import read_adoptable_field
from es_sbert.index.index_summary import describe_index
from es_sbert.index.mapping import read_meta_entry, vector_fields, with_meta_entry
from es_sbert.migration.remove_vectors import Removal, remove_vectors
from es_sbert.search.search_scope import read_search_scope
from tests.engine.ingest_support import ask, contents, load, sentences, write_jsonl
from tests.engine.migration.support import Overheard
from tests.engine.test_ingest_beside_an_application import Application
from tests.random_writer import RandomWriters, differences, shared_documents

pytestmark = pytest.mark.one_engine

COUNT = 300


def remove(engine: Any, index: str) -> Removal:
    return remove_vectors(engine, index, policy=RetryPolicy(60))


@pytest.fixture
def app(engine: Engine, index_name: str, tiny: Encoder, tmp_path: Path) -> Application:
    """An index of an application, embedded in place: with two vector fields, one of them of passages."""
    engine.create_index(index_name, {"mappings": {"_meta": {"owner": "app"}}})
    app = Application(engine, index_name)
    app.put(sentences(COUNT))
    app.put([{"id": "routed", "text": "A document with a routing."}], routing="r")
    load(engine.info.url, tiny, index_name, dead=tmp_path / "dead", vectors=("embedding={text}",))
    load(engine.info.url, tiny, index_name, dead=tmp_path / "dead", vectors=("parts={text}",), passages=("8",))
    app.update(("d1", {"embedding": None, "embedding_meta": None}))
    return app


def plain(engine: Engine, index: str) -> dict[str, Any]:
    found = contents(engine.info.url, index)
    return {key: {name: value for name, value in source.items() if name != "_version"} for key, source in found.items()}


def expected() -> dict[str, Any]:
    documents = {document["id"]: document for document in sentences(COUNT)}
    return documents | {"routed": {"id": "routed", "text": "A document with a routing."}}


def test_documents_and_mapping_are_as_before(app: Application, engine: Engine) -> None:
    state = engine.get_index(app.index)
    assert state is not None
    killed = {"before": {"index.refresh_interval": None}, "run": "r"}  # noted by a load of an earlier version
    engine.put_mapping(app.index, {"_meta": with_meta_entry(state.mappings["_meta"], "load", killed)})
    engine.put_settings(app.index, {"index.refresh_interval": "-1"})
    done = remove(engine, app.index)
    assert set(done.fields) == {"embedding", "embedding_meta", "parts", "parts_meta"}
    assert done.documents == COUNT + 1
    assert plain(engine, app.index) == expected()
    state = engine.get_index(app.index)
    assert state is not None
    assert state.mappings["_meta"] == {"owner": "app"}
    assert done.remains[-1] == f'Send `PUT {app.index}/_settings` with {{"index.refresh_interval":null}}.'
    assert "still has the fields" in done.remains[0]
    knn = [sentence for sentence in done.remains if "index.knn" in sentence]
    assert bool(knn) == (engine.info.engine_type is EngineType.OPENSEARCH and state.settings.get("index.knn") == "true")
    with pytest.raises(IndexMismatch, match="has added nothing to"):
        remove(engine, app.index)


def test_final_pipeline_is_refused_before_anything_changes(app: Application, engine: Engine) -> None:
    """Engines run it at every write, also of a request that says `pipeline: _none`."""
    before = plain(engine, app.index)
    ask(engine, "PUT", f"/_ingest/pipeline/{app.index}", body={"processors": []})
    try:
        engine.put_settings(app.index, {"index.final_pipeline": app.index})
        with pytest.raises(IndexMismatch, match=f"through the ingest pipeline '{app.index}'") as caught:
            remove(engine, app.index)
        assert plain(engine, app.index) == before
        assert f'`PUT {app.index}/_settings {{"index.final_pipeline": "_none"}}`' in caught.value.remedy
        engine.put_settings(app.index, {"index.final_pipeline": "_none"})
        remove(engine, app.index)
        assert plain(engine, app.index) == expected()
    finally:
        engine.put_settings(app.index, {"index.final_pipeline": None})
        ask(engine, "DELETE", f"/_ingest/pipeline/{app.index}")


def test_killed_removal_is_named_and_resumed(app: Application, engine: Engine, tiny: Encoder, tmp_path: Path) -> None:
    class Killed(BaseException):
        """Nothing that a program handles."""

    sent = 0

    def die(name: str) -> None:
        nonlocal sent
        sent += name == "bulk"
        if name == "bulk" and sent == 2:
            raise Killed

    with pytest.raises(Killed):
        remove(Overheard(engine, die), app.index)
    state = engine.get_index(app.index)
    assert state is not None
    assert vector_fields(state.mappings, app.index) == {}
    assert read_meta_entry(state.mappings, "removing") == ["embedding", "embedding_meta", "parts", "parts_meta"]
    unfinished = f"removal of es-sbert's vectors from {app.index} was started"
    for attempt in (
        lambda: read_search_scope(engine, [app.index], ["embedding"]),
        # Finishing the removal would also remove a field that is added now.
        lambda: load(engine.info.url, tiny, app.index, dead=tmp_path / "dead", vectors=("embedding={text}",)),
        lambda: load(engine.info.url, tiny, app.index, dead=tmp_path / "dead", vectors=("another={text}",)),
        lambda: read_adoptable_field(engine, app.index, "embedding", None),
    ):
        with pytest.raises(IndexMismatch, match=unfinished) as caught:
            attempt()
        assert f"`es-sbert index remove {app.index}`" in caught.value.remedy
    summary = describe_index(engine, app.index)
    assert summary.plain_vector_fields == ()
    assert summary.removing == ("embedding", "embedding_meta", "parts", "parts_meta")
    assert [finding for finding in inspect_index(engine, app.index).findings if unfinished in finding.message]
    done = remove(engine, app.index)
    assert 0 < done.documents < COUNT + 1
    assert plain(engine, app.index) == expected()


def test_no_write_of_an_application_is_lost(app: Application, engine: Engine) -> None:
    app.put([{"id": name} | fields for name, fields in shared_documents().items()])
    writers = RandomWriters(engine.info.url, app.index, threads=2, seed=5, scripts=False)
    with writers.running():
        writers.wait_for(20)
        remove(engine, app.index)
        writers.wait_for(20)
    left = {name: {"id": name} | fields for name, fields in writers.expected().items() if name in shared_documents()}
    found = plain(engine, app.index)
    assert differences(expected() | writers.expected() | left, found, lambda field: False) == []


def test_template_with_our_fields_is_named(app: Application, engine: Engine) -> None:
    name = f"{app.index}-template"
    body = {"index_patterns": [f"{app.index}*"], "template": {"mappings": {"_meta": {"es_sbert": {"fields": {}}}}}}
    engine.send("PUT", f"/_index_template/{name}", body=orjson.dumps(body))
    try:
        done = remove(engine, app.index)
    finally:
        engine.send("DELETE", f"/_index_template/{name}")
    assert any(f"The index template {name} still gives" in sentence for sentence in done.remains)


RESULT = "analysis.group"
# Documents with a field that an analysis has written and with metadata, in the forms that the engines index alike, and
# what remains of them.
SPELLINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "objects": ({"analysis": {"group": "x", "n": 1}}, {"analysis": {"n": 1}}),
    "alone": ({"analysis": {"group": "x"}}, {}),
    "null": ({"analysis": {"group": None}}, {}),
    "dotted": ({RESULT: "x", "analysis.n": 1}, {"analysis.n": 1}),
    "both": ({RESULT: "x", "analysis": {"group": "y", "n": 1}}, {"analysis": {"n": 1}}),
    "list": ({"analysis": [{"group": "x", "n": 1}, {"n": 2}]}, {"analysis": [{"n": 1}, {"n": 2}]}),
    "meta": ({"embedding_meta.tokens": 3, "embedding_meta.text_hash": "0"}, {}),
    "similar": ({"embedding_meta2": 1, "analysis": {"groups": 2}}, {"embedding_meta2": 1, "analysis": {"groups": 2}}),
}  # fmt: skip


def spelled(index: int) -> dict[str, Any]:
    """The documents before the removal (0) or after it (1)."""
    return {name: {"id": name, "text": "a cat"} | SPELLINGS[name][index] for name in SPELLINGS}


def add_result_field(engine: Engine, index: str) -> None:
    """As `es-sbert cluster --write-field analysis.group` does."""
    policy = RetryPolicy(60)
    FieldWriter(engine, index, "embedding", RESULT, policy=policy).add_to_mapping()


@pytest.mark.parametrize("flat", [False, True], ids=["objects", "flat"])
def test_dotted_fields_are_removed_in_all_forms(
    engine: Engine, fresh_index: Callable[[str], str], tiny: Encoder, tmp_path: Path, flat: bool
) -> None:
    index = fresh_index(engine.info.url)
    if flat and engine.info.engine_type is not EngineType.ELASTICSEARCH:
        pytest.skip("only Elasticsearch has mappings without objects")
    engine.create_index(index, {"mappings": {"subobjects": False} if flat else {}})
    load(engine.info.url, tiny, index, sample(tmp_path), dead=tmp_path / "dead", id_field="id")
    add_result_field(engine, index)
    app = Application(engine, index)
    app.put([*spelled(0).values()])
    done = remove(engine, index)
    assert set(done.fields) == {"embedding", "embedding_meta", RESULT}
    assert done.documents == len(SPELLINGS) - 1 + 3
    assert plain(engine, index) == spelled(1) | {document["id"]: document for document in sentences(3)}
    assert engine.count(index, {"exists": {"field": RESULT}}) == 0
    [mapped] = [sentence for sentence in done.remains if "still has the fields" in sentence]
    assert "the fields embedding, embedding_meta, analysis.group:" in mapped


def sample(folder: Path) -> Path:
    return write_jsonl(folder / "docs.jsonl", sentences(3))
