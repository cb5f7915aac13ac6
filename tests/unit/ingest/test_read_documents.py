"""Records to documents: what is loaded, skipped, or put aside, and that the counts add up."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.index.document_vectors import document_hash
from es_sbert.ingest.checkpoint import LoadCheckpoint, LoadIdentity
from es_sbert.ingest.dead_letters import DeadLetters
from es_sbert.ingest.ledger import DocumentOutcome, Ledger, LedgerError, OutcomeRecorder
from es_sbert.ingest.read_documents import Document, DocumentRules, document_windows, read_documents
from es_sbert.ingest.sources.document_source import InvalidId, Origin, Record, RejectedRecord, document_id
from tests.raised import raises_as_recorded
from tests.unit.ingest.support import target

RULES = DocumentRules((target(),), "id")


@pytest.fixture
def outcomes(tmp_path: Path) -> Iterator[OutcomeRecorder]:
    letters = DeadLetters(tmp_path / "dead.jsonl", run="now")
    with closing(letters):
        yield OutcomeRecorder(letters)


def records(*objects: dict[str, Any]) -> list[Record]:
    return [Record(Origin("f", line), fields, orjson.dumps(fields)) for line, fields in enumerate(objects, 1)]


def load(outcomes: OutcomeRecorder, *objects: dict[str, Any], rules: DocumentRules = RULES) -> list[Document]:
    with closing(fresh_state(outcomes.dead_letters.path.parent)) as state:
        return list(read_documents(records(*objects), rules, state, outcomes))


def fresh_state(folder: Path) -> LoadCheckpoint:
    identity = LoadIdentity("uuid", "model", (("embedding", "{text}", None),), "id")
    return LoadCheckpoint(folder / f"{uuid.uuid4()}.state", identity)


def letters(outcomes: OutcomeRecorder) -> list[dict[str, Any]]:
    path = outcomes.dead_letters.path
    return [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def test_default_id_is_the_content_hash(outcomes: OutcomeRecorder) -> None:
    rules = DocumentRules(RULES.targets, None)
    documents = load(outcomes, {"a": 1, "text": "x"}, {"text": "x", "a": 1}, {"text": "x", "a": 2}, rules=rules)
    assert [document.id for document in documents] == [
        document_hash({"text": "x", "a": 1}),
        document_hash({"text": "x", "a": 2}),
    ]
    assert outcomes.ledger.counts()[DocumentOutcome.DUPLICATE] == 1


def test_duplicates_are_skipped_and_conflicts_are_dead_letters(outcomes: OutcomeRecorder) -> None:
    documents = load(
        outcomes, {"id": "a", "text": "x"}, {"text": "x", "id": "a"}, {"id": "a", "text": "y"}, {"id": "b", "text": "x"}
    )
    assert [document.id for document in documents] == ["a", "b"]
    assert outcomes.ledger.counts()[DocumentOutcome.DUPLICATE] == 1
    [letter] = letters(outcomes)
    assert letter["reason"] == "the id a was read before, in f:1, with different content"
    assert (letter["source"], letter["line"], letter["id"]) == ("f", 3, "a")
    assert letter["document"] == {"id": "a", "text": "y"}


def test_superseded_dead_letter_is_counted_and_not_sent(outcomes: OutcomeRecorder) -> None:
    [old] = records({"id": "a", "text": "x"})
    with closing(fresh_state(outcomes.dead_letters.path.parent)) as state:
        assert list(read_documents([old._replace(superseded=True)], RULES, state, outcomes)) == []
    assert outcomes.ledger.counts()[DocumentOutcome.SUPERSEDED] == 1


def test_rejected_document_does_not_reserve_its_id(outcomes: OutcomeRecorder) -> None:
    documents = load(outcomes, {"id": "a", "text": 5}, {"id": "a", "text": "x"})
    assert [document.texts for document in documents] == [("x",)]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"id": 1, "text": 5}, "the text field text is a JSON number, not a string"),
        ({"text": "x"}, "the id field id is missing"),
        ({"id": "x" * 600, "text": "x"}, "the id has 600 bytes; engines take at most 512"),
        ({"id": 1, "text": "x", "embedding": [1]}, "already has a field embedding, which"),
        ({"id": 1, "text": "x", "embedding_meta": None}, "already has a field embedding_meta, which"),
    ],
)
def test_invalid_documents_become_dead_letters(outcomes: OutcomeRecorder, fields: dict[str, Any], reason: str) -> None:
    assert load(outcomes, fields) == []
    [letter] = letters(outcomes)
    assert reason in letter["reason"]
    assert letter["document"] == fields
    assert letter["run"] == "now"
    outcomes.ledger.verify()


@given(
    st.lists(
        st.fixed_dictionaries(
            {}, optional={"id": st.sampled_from(["a", "b", 1, None, ""]), "text": st.sampled_from(["", "x", "y", 3])}
        )
    )
)
def test_every_document_read_is_counted_once(tmp_path_factory: pytest.TempPathFactory, objects: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("dead")
    outcomes = OutcomeRecorder(DeadLetters(folder / "dead.jsonl", run="now"))
    rejects = [RejectedRecord(Origin("f", 99), "broken", b"{", 1)]
    with closing(fresh_state(folder)) as state, closing(outcomes.dead_letters):
        documents = list(read_documents([*records(*objects), *rejects], RULES, state, outcomes))
    assert outcomes.ledger.read == len(objects) + 1 == outcomes.ledger.outcomes.total() + len(documents)
    assert len(letters(outcomes)) == outcomes.ledger.counts()[DocumentOutcome.DEAD]
    assert len({document.id for document in documents}) == len(documents)


def test_unbalanced_ledger_raises_ledger_error() -> None:
    ledger = Ledger()
    ledger.add(read=2)
    ledger.add_indexed([(3, 0)])
    with raises_as_recorded(LedgerError):
        ledger.verify()
    ledger.add_outcome(DocumentOutcome.UNCHANGED)
    ledger.verify()
    assert (ledger.truncated, ledger.lost_tokens) == (1, 3)


@given(st.lists(st.integers(0, 3000)), st.integers(1, 5), st.integers(1, 5000))
def test_windows_are_bounded_by_count_and_bytes(sizes: list[int], count: int, max_bytes: int) -> None:
    documents = [Document(Origin("f"), str(n), ("",), b"x" * size, None) for n, size in enumerate(sizes)]
    groups = list(document_windows(documents, count, max_bytes))
    assert [document for group in groups for document in group] == documents
    for group in groups:
        assert 1 <= len(group) <= count
        assert len(group) == 1 or sum(document.size for document in group) <= max_bytes


METADATA = DocumentRules(RULES.targets, None, metadata_fields=frozenset({"_id", "_index", "_routing", "_version"}))


def test_metadata_field_becomes_the_id_and_leaves_the_source(outcomes: OutcomeRecorder) -> None:
    rules = replace(METADATA, id_field="_id")
    lines = [b'{"_id": 7, "text" : "x", "price": 1.10}', b'{"text":"y","_id":"a"}']
    read = [Record(Origin("f", line), orjson.loads(data), data) for line, data in enumerate(lines, 1)]
    with closing(fresh_state(outcomes.dead_letters.path.parent)) as state:
        documents = list(read_documents(read, rules, state, outcomes))
    assert [document.id for document in documents] == ["7", "a"]
    # All other bytes are those of the source.
    assert [document.source for document in documents] == [b'{"text" : "x","price": 1.10}', b'{"text":"y"}']
    assert documents[0].document_hash == document_hash({"text": "x", "price": 1.1})


@pytest.mark.parametrize("fields", [{"_id": {"$oid": "65a0"}, "text": "x"}, {"_id.$oid": "65a0", "text": "x"}])
def test_nested_id_of_mongodb_leaves_the_source(outcomes: OutcomeRecorder, fields: dict[str, Any]) -> None:
    [document] = load(outcomes, fields, rules=replace(METADATA, id_field="_id.$oid"))
    assert (document.id, document.source) == ("65a0", b'{"text":"x"}')


@pytest.mark.parametrize(
    ("rules", "fields", "remedy"),
    [
        (METADATA, {"_id": "a"}, 'set `id_field="_id"`'),
        (METADATA, {"_routing": "a"}, 'set `routing_field="_routing"`'),
        (METADATA, {"_index.name": "a"}, "remove it from the documents"),
        (replace(METADATA, id_field="id"), {"id": 1, "_id": "a"}, "remove it from the documents"),
    ],
)
def test_metadata_fields_are_dead_letters_with_the_way_out(
    outcomes: OutcomeRecorder, rules: DocumentRules, fields: dict[str, Any], remedy: str
) -> None:
    assert load(outcomes, {"text": "x"} | fields, rules=rules) == []
    [letter] = letters(outcomes)
    assert "a metadata field that engines refuse in documents" in letter["reason"]
    assert remedy in letter["reason"]
    assert letter["document"] == {"text": "x"} | fields


def test_routing_comes_from_its_field(outcomes: OutcomeRecorder) -> None:
    rules = replace(METADATA, id_field="id", routing_field="join.parent")
    documents = load(
        outcomes,
        {"id": "p", "text": "x", "join": "question"},
        {"id": "c", "text": "y", "join": {"name": "answer", "parent": 7}},
        {"id": "n", "text": "z", "join": {"name": "answer", "parent": None}},
        rules=rules,
    )
    assert [(document.id, document.routing) for document in documents] == [("p", None), ("c", "7"), ("n", None)]
    [document] = load(outcomes, {"_routing": "r", "text": "x"}, rules=replace(METADATA, routing_field="_routing"))
    assert (document.routing, document.source) == ("r", b'{"text":"x"}')


def test_same_id_with_another_routing_is_a_dead_letter(outcomes: OutcomeRecorder) -> None:
    rules = replace(METADATA, id_field="id", routing_field="_routing")
    documents = load(outcomes, *({"id": 1, "text": "x", "_routing": name} for name in "aab"), rules=rules)
    assert [document.routing for document in documents] == ["a"]
    assert outcomes.ledger.counts()[DocumentOutcome.DUPLICATE] == 1
    [letter] = letters(outcomes)
    assert letter["reason"] == "the id 1 was read before, in f:1, with different content or routing"
    assert (letter["id"], letter["routing"], letter["document"]) == ("1", "b", {"id": 1, "text": "x"})


@pytest.mark.parametrize("value", ["", True, 1.5, ["a"], {"a": 1}])
def test_invalid_routing_is_a_dead_letter(outcomes: OutcomeRecorder, value: Any) -> None:
    rules = replace(METADATA, routing_field="r")
    assert load(outcomes, {"text": "x", "r": value}, rules=rules) == []
    assert letters(outcomes)[0]["reason"].startswith("the routing field r is ")


def id_of(value: str) -> str:
    data = b'{"id":' + value.encode() + b"}"
    return document_id(Record(Origin("f", 1), orjson.loads(data), data), "id")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("7", "7"), ("1.0", "1"), ("-0.0", "0"), ("9007199254740991.0", "9007199254740991"),
        ("18446744073709551615", "18446744073709551615"), ("18446744073709551616", "18446744073709551616"),
        ("-" + "9" * 308, "-" + "9" * 308), ('"1.0"', "1.0"),
    ],
)  # fmt: skip
def test_ids_are_strings_and_integers_of_any_length(value: str, text: str) -> None:
    assert id_of(value) == text


@pytest.mark.parametrize("value", ["1.5", "1e30", "9007199254740993.0", "true", "null", "[1]", '"%s"' % ("9" * 600)])
def test_other_numbers_are_not_ids(value: str) -> None:
    with raises_as_recorded(InvalidId):
        id_of(value)
