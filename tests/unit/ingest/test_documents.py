"""Records to documents: what is loaded, skipped, or put aside, and that the counts add up."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
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
from es_sbert.ingest.records import Origin, Record, RejectedRecord
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


def test_document_has_hashes_and_source_bytes(outcomes: OutcomeRecorder) -> None:
    [document] = load(outcomes, {"id": 7, "text": "hello"})
    assert document == Document(
        Origin("f", 1), "7", ("hello",), b'{"id":7,"text":"hello"}', document_hash({"text": "hello", "id": 7})
    )
    assert outcomes.ledger.read == 1
    assert not outcomes.dead_letters.path.exists()


def test_default_id_is_the_content_hash(outcomes: OutcomeRecorder) -> None:
    rules = DocumentRules(RULES.targets, None)
    documents = load(outcomes, {"a": 1, "text": "x"}, {"text": "x", "a": 1}, {"text": "x", "a": 2}, rules=rules)
    assert [document.id for document in documents] == [
        document_hash({"text": "x", "a": 1}),
        document_hash({"text": "x", "a": 2}),
    ]
    assert outcomes.ledger.counts()[DocumentOutcome.DUPLICATE] == 1


def test_documents_with_empty_text_are_yielded(outcomes: OutcomeRecorder) -> None:
    documents = load(outcomes, {"id": 1, "text": ""}, {"id": 2, "text": " \n\t\u2003"}, {"id": 1, "text": ""})
    assert [document.id for document in documents] == ["1", "2"]
    assert outcomes.ledger.counts()[DocumentOutcome.DUPLICATE] == 1
    assert letters(outcomes) == []


def test_missing_null_and_blank_texts_are_equal(outcomes: OutcomeRecorder) -> None:
    rules = DocumentRules((target(template="{title}. {body}"),), "id", None)
    none = [{"id": 1}, {"id": 2, "title": None}, {"id": 3, "title": " ", "body": "\n"}, {"id": 4, "body": ""}]
    documents = load(outcomes, *none, {"id": 5, "title": "x"}, rules=rules)
    assert [document.texts for document in documents] == [("",)] * 4 + [("x.",)]
    assert letters(outcomes) == []
    assert outcomes.ledger.missing_fields == {"title": 3, "body": 4 - 1}


def test_duplicates_are_skipped_and_conflicts_are_dead_letters(outcomes: OutcomeRecorder) -> None:
    documents = load(
        outcomes, {"id": "a", "text": "x"}, {"text": "x", "id": "a"}, {"id": "a", "text": "y"}, {"id": "b", "text": "x"}
    )
    assert [document.id for document in documents] == ["a", "b"]
    assert outcomes.ledger.counts()[DocumentOutcome.DUPLICATE] == 1
    [letter] = letters(outcomes)
    assert letter["reason"] == "the id a was read before, in f:1, with another content"
    assert (letter["source"], letter["line"], letter["id"]) == ("f", 3, "a")
    assert letter["document"] == {"id": "a", "text": "y"}


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
    assert outcomes.ledger.read == len(objects) + 1 == outcomes.ledger.total + len(documents)
    assert len(letters(outcomes)) == outcomes.ledger.counts()[DocumentOutcome.DEAD]
    assert len({document.id for document in documents}) == len(documents)


def test_unbalanced_ledger_raises_ledger_error() -> None:
    ledger = Ledger()
    ledger.add_read(2)
    ledger.add_indexed([(3, 0)])
    with pytest.raises(LedgerError, match="2 documents were read, but 1 accounted for"):
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
