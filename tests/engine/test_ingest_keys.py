"""Ids, routings and metadata fields of the documents of a source, loaded into real engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from es_sbert.engines.engine import Engine
from es_sbert.engines.index_scan import multi_get
from es_sbert.engines.rest import Json
from es_sbert.errors import SourceError, UsageError, VectorIndexError
from es_sbert.ingest.load_documents import delete_documents
from tests.conftest import ES8_IN_LONG_RUN
from tests.engine.ingest_support import Loads, letters, sentences, write_jsonl
from tests.raised import raises, raises_as_recorded

pytestmark = pytest.mark.one_engine

JOIN: Json = {"properties": {"join": {"type": "join", "relations": {"question": "answer"}}}}
PARENTS = 4


def family(count: int = 12) -> list[dict[str, Any]]:
    """Questions, then answers to them, each answer in the shard of its question."""
    documents = sentences(PARENTS + count)
    for number, document in enumerate(documents):
        parent = {"name": "answer", "parent": f"d{number % PARENTS}"}
        document["join"] = "question" if number < PARENTS else parent
    return documents


def routings(engine: Engine, index: str, ids: list[str]) -> dict[str, list[str | None]]:
    """Id → the routings under which the index holds it."""
    engine.refresh(index)
    found: dict[str, list[str | None]] = {}
    for document_id, routing in multi_get(engine, index, ids):
        found.setdefault(document_id, []).append(routing)
    return found


# The small build of es9 lacks the module.
with_join_fields = pytest.mark.parametrize("engine_url", [ES8_IN_LONG_RUN, "opensearch"], indirect=True)


@pytest.fixture
def loaded(engine: Engine, tiny_loads: Loads) -> Callable[..., Any]:
    """A function that loads documents with the routing of their parents."""
    engine.create_index(tiny_loads.index, {"settings": {"number_of_shards": 5}, "mappings": JOIN})

    def call(documents: list[dict[str, Any]], **options: Any) -> Any:
        return tiny_loads.load(
            tiny_loads.write(documents), **{"id_field": "id", "routing_field": "join.parent"} | options
        )

    return call


@with_join_fields
def test_join_children_are_written_to_the_shard_of_their_parent(
    loaded: Callable[..., Any], engine: Engine, tiny_loads: Loads
) -> None:
    documents = family()
    assert loaded(documents, passages=16).indexed == len(documents)
    answers = [document["id"] for document in documents[PARENTS:]]
    assert routings(engine, tiny_loads.index, answers) == {
        document["id"]: [document["join"]["parent"]] for document in documents[PARENTS:]
    }
    assert routings(engine, tiny_loads.index, ["d0"]) == {"d0": [None]}
    has_parent = {"has_parent": {"parent_type": "question", "query": {"match_all": {}}}}
    assert engine.count(tiny_loads.index, has_parent) == len(answers)
    # The next load finds every document again; another field is changed without another vector.
    documents[-1]["price"] = -1
    summary = loaded(documents)
    assert (summary.unchanged, summary.updated, summary.indexed) == (len(documents) - 1, 1, 0)
    documents[-1]["text"] = "The answer is another one."
    assert loaded(documents).indexed == 1
    # In place, a document is found and written by the routing that it has.
    body = b'{"update":{"_id":"%s","routing":"%s"}}\n{"doc":{"text":"Changed in place."}}\n'
    key = documents[-2]["id"].encode(), documents[-2]["join"]["parent"].encode()
    assert engine.bulk(tiny_loads.index, body % key)[0].ok
    assert tiny_loads.load().indexed == 1
    assert engine.count(tiny_loads.index, has_parent) == len(answers)
    assert delete_documents(engine, tiny_loads.index, answers[:3], 60) == 3
    assert engine.count(tiny_loads.index) == len(documents) - 3


@with_join_fields
def test_prune_removes_routed_documents_and_copies_of_moved_ones(
    loaded: Callable[..., Any], engine: Engine, index_name: str
) -> None:
    documents = family()
    loaded(documents)
    kept = documents[:-2]
    for document in kept[PARENTS:]:
        document["join"]["parent"] = "d0"
    summary = loaded(kept)
    # Two routings may lead to the same shard, in which an id is unique.
    copies = engine.count(index_name) - len(documents)
    assert (summary.missing, summary.pruned, copies > 0) == (0, 0, True)
    assert [note.partition(" also in ")[0] for note in summary.notes] == ["7 documents are"]
    summary = loaded(kept, prune=True)
    assert (summary.missing, summary.pruned, summary.notes) == (0, copies + 2, ())
    assert engine.count(index_name) == len(kept)
    children = [document["id"] for document in kept[PARENTS:]]
    assert routings(engine, index_name, children) == {key: ["d0"] for key in children}


@with_join_fields
def test_dead_letter_keeps_its_routing(loaded: Callable[..., Any], engine: Engine, tiny_loads: Loads) -> None:
    documents = family()
    documents[-1]["price"] = {"no": "number"}
    assert loaded(documents).dead == 1
    dead = tiny_loads.dead
    [letter] = letters(dead)
    assert (letter["id"], letter["routing"]) == (documents[-1]["id"], documents[-1]["join"]["parent"])
    dead.write_bytes(dead.read_bytes().replace(b'{"no":"number"}', b"1"))
    assert tiny_loads.load(dead=tiny_loads.folder / "new", retry=dead).indexed == 1
    assert routings(engine, tiny_loads.index, [letter["id"]]) == {letter["id"]: [letter["routing"]]}
    assert loaded(documents[:-1]).unchanged == len(documents) - 1


@with_join_fields
def test_missing_routing_field_is_refused(loaded: Callable[..., Any], engine: Engine, tiny_loads: Loads) -> None:
    with raises(SourceError, "routing_field", "parents"):
        loaded(family(), routing_field="parents")
    alias = f"{tiny_loads.index}-alias"
    engine.update_aliases([{"add": {"index": tiny_loads.index, "alias": alias, "routing": "one"}}])
    path = tiny_loads.write(family())
    with raises(UsageError, "routing_field"):
        tiny_loads.load(path, index=alias, routing_field="join.parent")
    assert engine.count(tiny_loads.index) == 0
    # Children without a routing are dead letters: they would be in another shard than their parents.
    summary = loaded(family(), routing_field=None)
    assert (summary.indexed, summary.dead) == (PARENTS, 12)
    assert 'set `routing_field="join.parent"`' in tiny_loads.letters()[0]["reason"]


def test_index_that_requires_a_routing_takes_it_from_a_field(engine: Engine, tiny_loads: Loads) -> None:
    engine.create_index(
        tiny_loads.index, {"settings": {"number_of_shards": 3}, "mappings": {"_routing": {"required": True}}}
    )
    documents = [{"_routing": f"r{n % 4}", "_id": n} | document for n, document in enumerate(sentences(12))]
    path = tiny_loads.write(documents)
    with raises(VectorIndexError, "routing_field"):
        tiny_loads.load(path, id_field="_id")
    options = {"id_field": "_id", "routing_field": "_routing"}
    assert tiny_loads.load(path, **options).indexed == 12
    assert tiny_loads.load(path, **options).unchanged == 12
    ids = [str(number) for number in range(12)]
    assert routings(engine, tiny_loads.index, ids) == {number: [f"r{int(number) % 4}"] for number in ids}
    hits = engine.search(tiny_loads.index, {"size": 12})["hits"]["hits"]
    assert [hit for hit in hits if {"_id", "_routing"} & hit["_source"].keys()] == []
    documents[3]["price"] = -1
    write_jsonl(path, documents)
    summary = tiny_loads.load(path, **options)
    assert (summary.updated, summary.unchanged) == (1, 11)


def test_mongodb_dump_is_refused_until_its_id_is_named(engine: Engine, tiny_loads: Loads) -> None:
    documents = [{"_id": {"$oid": f"65a{n:021}"}} | document for n, document in enumerate(sentences(5))]
    path = write_jsonl(tiny_loads.folder / "dump.json", documents)
    for dry_run in (None, 3):
        with raises_as_recorded(SourceError):
            tiny_loads.load(path, dry_run=dry_run)
    assert (engine.get_index(tiny_loads.index), tiny_loads.dead.exists()) == (None, False)
    assert tiny_loads.load(path, id_field="_id.$oid").indexed == 5
    stored = tiny_loads.contents()
    assert stored.keys() == {document["_id"]["$oid"] for document in documents}  # type: ignore[index]
    assert all("_id" not in document for document in stored.values())
