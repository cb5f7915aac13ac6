"""What becomes of the vectors of documents that are written, and their bytes with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.errors import EsSbertError, ModelError
from es_sbert.gateway.writes.bulk_items import BulkItem, OpType
from es_sbert.gateway.writes.destinations import Destination
from es_sbert.gateway.writes.document_changes import (
    NoPreviousDocument,
    PreviousDocument,
    WriteKey,
    detect_vector_changes,
)
from es_sbert.gateway.writes.missing_vectors import NoVectorReason
from es_sbert.gateway.writes.prepare_items import EmbeddedText, add_vectors, parse_items
from es_sbert.index.document_vectors import ChunkedText, DocumentMeta, EmbeddingTargets, document_hash, text_hash
from tests.unit.gateway.writes.test_bulk_items import read_bulk
from tests.unit.ingest.support import target

INFO = EngineInfo(EngineType.OPENSEARCH, (3, 6, 0), "http://localhost:9200")
NOW = "2026-01-31T12:00:00.000Z"
PLAIN = (target(),)
TITLED = (target(template="{title}. {body}"),)
TWO = (target(), target("other", "{text} {more}", model="another"))
MISSING = NoPreviousDocument.MISSING


def meta_of(text: str, model: str = "model", content: Any = None) -> dict[str, Any]:
    return DocumentMeta(
        fingerprint=model,
        text_hash=text_hash(text),
        document_hash=content,
        tokens=len(text),
        truncated=False,
        embedded_at=NOW,
    ).as_json()


def vector_of(text: str) -> list[float]:
    return [float(len(text)), 0.5, 0.0, 1.0]


def read(body: bytes) -> list[BulkItem]:
    """All items of a bulk request."""
    bulk = read_bulk(body, "docs")
    assert bulk is not None
    return bulk.window(0, lambda name, size, listed: 0, 1000, 1000)[0]


class Ready(NamedTuple):
    """A request with vectors, the errors of its items, and the number of documents that got vectors."""

    items: list[BulkItem]
    errors: dict[int, EsSbertError]
    embedded: int


def passed(
    body: bytes,
    targets: EmbeddingTargets = PLAIN,
    found: Mapping[WriteKey, PreviousDocument] | None = None,
    error: EsSbertError | None = None,
) -> Ready:
    """A bulk request through all pure steps, with a model whose vectors tell the length of the text."""
    items = read(body)
    parsed = parse_items(items, {"docs": Destination("docs", targets)})
    detect_vector_changes(parsed, found or {})
    changed = [item for item in parsed if item.is_changed]
    wanted = [one for item in changed for one in item.to_embed]
    made: list[EmbeddedText | EsSbertError] = [
        error or EmbeddedText(ChunkedText(to, text), np.array([vector_of(text)], np.float32), [len(text)], 100)
        for to, text in wanted
    ]
    with_vectors, errors = add_vectors(items, changed, made, INFO, NOW)
    embedded = sum(bool(item.to_embed) and item.number not in errors for item in changed)
    return Ready(with_vectors, errors, embedded)


def index(document: Any) -> bytes:
    return (
        b'{"index":{"_id":"1"}}\n'
        + (document if isinstance(document, bytes) else json.dumps(document).encode())
        + b"\n"
    )


def update(body: Any, id: str = "1") -> bytes:
    return b'{"update":{"_id":"%s"}}\n' % id.encode() + json.dumps(body).encode() + b"\n"


def written(ready: Ready, number: int = 0) -> Any:
    return json.loads(ready.items[number].source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (b'{"text":"half \\ud83d","n":1e400}', "half \ufffd"),
        (b'{"text":"a cat","other":["\\udc00"],"n":123456789012345678901234567890}', "a cat"),
        (b'{"text":"a cat","\\ud83d":1}', "a cat"),
    ],
)
def test_lone_surrogates_are_embedded(source: bytes, text: str) -> None:
    """Engines take lone surrogates, and index U+FFFD in their place."""
    ready = passed(index(source) + b'{"update":{"_id":"2"}}\n{"doc":%s}\n' % source)
    for number, start in enumerate((source[:-1], b'{"doc":' + source[:-1])):
        assert ready.items[number].source.startswith(start + b',"embedding":[')
    assert written(ready)["embedding_meta"]["text_hash"] == text_hash(text)
    assert ready.embedded == 2


def test_indexed_document_gets_vector_and_keeps_its_bytes() -> None:
    source = b'{"text": "a cat", "n": 1.000000000000000000001 , "u":"\\u00e9" }'
    ready = passed(index(source))
    assert ready.items[0].source.startswith(source[:-1] + b',"embedding":[5.0,')
    assert written(ready) == json.loads(source) | {
        "embedding": vector_of("a cat"),
        "embedding_meta": meta_of("a cat", content=document_hash(json.loads(source))),
    }
    assert (ready.embedded, ready.errors) == (1, {})


@pytest.mark.parametrize(
    "document",
    [
        {}, {"other": 1}, {"text": None}, {"text": ""}, {"text": " \n"}, {"text": 5}, {"text": ["a", 7]},
        b"", b"[]", b'"text"', b'{"text": "a', b'{"text": "a \xff"}', b"\xff", b'{"text":"a","n":NaN}',
        b'{"text":"a","deep":' + b"[" * 300 + b"]" * 300 + b"}",
        {"text": "a cat", "embedding": [1, 2, 3, 4]},
        {"text": "a cat", "embedding": "AAAA", "embedding_meta": meta_of("a cat")},
        {"text": "a cat", "embedding": [1, 2, 3, 4], "embedding_meta": {"mine": True}},
        {"other": 1, "embedding": None, "embedding_meta": None},
    ],
)  # fmt: skip
def test_document_without_text_or_with_own_vector_is_unchanged(document: Any) -> None:
    ready = passed(index(document))
    assert ready.items[0].body == index(document)
    assert (ready.embedded, ready.errors) == (0, {})


@pytest.mark.parametrize(
    "copied",
    [
        {"embedding": [1, 2, 3, 4], "embedding_meta": meta_of("a dog")},
        {"embedding": [1, 2, 3, 4], "embedding_meta": meta_of("a cat", "another")},
        {"embedding_meta": meta_of("a dog")},
        {"embedding_meta": meta_of("a cat")},
        {"embedding": None},
    ],
)
def test_copied_vector_and_meta_are_replaced(copied: dict[str, Any]) -> None:
    fields = {"n": 1, "text": "a cat"}
    ready = passed(index(copied | fields))
    assert written(ready) == fields | {
        "embedding": vector_of("a cat"),
        "embedding_meta": meta_of("a cat", content=document_hash(fields)),
    }


@pytest.mark.parametrize("unknown", ["document_hash", "text_hash", "fingerprint", "tokens", "embedded_at"])
def test_vector_whose_metadata_lacks_a_member_is_not_the_clients(unknown: str) -> None:
    """A synthetic `_source` has no null."""
    meta = {name: value for name, value in meta_of("a dog").items() if name != unknown}
    ready = passed(index({"text": "a cat", "embedding": [1, 2, 3, 4], "embedding_meta": meta}))
    assert written(ready)["embedding"] == vector_of("a cat")
    assert written(ready)["embedding_meta"]["text_hash"] == text_hash("a cat")


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize(
    ("before", "copied"),
    [
        ({"text": "a dog", "embedding": [1, 2, 3, 4]}, True),
        ({"text": "a cat", "embedding": [1, 2, 3, 4]}, False),
        ({"text": "a dog", "embedding": [1, 2, 3, 5]}, False),
        (MISSING, False),
        (NoPreviousDocument.UNKNOWN, False),
    ],
)
def test_vector_copied_without_its_metadata_is_replaced(before: Any, copied: bool, partial: bool) -> None:
    fields = {"text": "a cat", "embedding": [1, 2, 3, 4]}
    body = update({"doc": fields}) if partial else index(fields)
    [item] = parse_items(read(body), {"docs": Destination("docs", PLAIN)})
    assert item.compared == ("text", "embedding")
    ready = passed(body, PLAIN, {("docs", "1", None): before})
    assert (ready.embedded == 1) is copied
    if copied:
        document = written(ready)["doc"] if partial else written(ready)
        assert document["embedding"] == vector_of("a cat")
        assert document["embedding_meta"]["text_hash"] == text_hash("a cat")


def test_vector_of_removed_text_is_removed() -> None:
    fields = {"n": 1, "embedding": [1, 2, 3, 4], "embedding_meta": meta_of("a dog")}
    ready = passed(index(fields))
    assert written(ready) == {"n": 1}
    assert ready.embedded == 0


def test_every_vector_field_is_embedded() -> None:
    ready = passed(index({"text": "a", "more": "cat", "other": [1, 1, 1, 1]}), TWO)
    assert set(written(ready)) == {"text", "more", "other", "embedding", "embedding_meta"}
    ready = passed(index({"text": "a"}), TWO)
    assert written(ready)["other"] == vector_of("a")
    assert written(ready)["other_meta"]["fingerprint"] == "another"


@pytest.mark.parametrize(
    ("doc", "text"),
    [({"title": "New"}, "New. old body"), ({"body": "new"}, "Old. new"), ({"title": None}, ". old body"),
     ({"body": "new", "n": 2, "embedding_meta": meta_of("x")}, "Old. new")],
)  # fmt: skip
def test_partial_text_is_completed_from_previous_document(doc: dict[str, Any], text: str) -> None:
    before = {"title": "Old", "body": "old body", "embedding_meta": meta_of("Old. old body")}
    ready = passed(update({"doc": doc}), TITLED, {("docs", "1", None): before})
    assert written(ready)["doc"]["embedding_meta"] == meta_of(text)
    assert written(ready)["doc"]["embedding"] == vector_of(text)


@pytest.mark.parametrize(
    ("body", "before"),
    [
        ({"doc": {"n": 1}}, MISSING),
        ({"doc": {"title": "T"}}, MISSING),
        ({"doc": {"title": "T"}}, {"title": "T", "body": "b", "embedding_meta": meta_of("T. b")}),
        ({"script": {"source": "x"}}, {}),
        ({"script": "x", "upsert": {"title": "T"}, "scripted_upsert": True}, MISSING),
        ({"doc": {"title": "T", "body": "b", "embedding": [1, 2, 3, 4]}}, {}),
        ({"doc": {"embedding": [1, 2, 3, 4], "embedding_meta": meta_of("x")}}, {}),
        ({}, {}),
    ],
)
def test_updates_without_text_changes_are_unchanged(body: dict[str, Any], before: PreviousDocument) -> None:
    ready = passed(update(body), TITLED, {("docs", "1", None): before})
    assert ready.items[0].body == update(body)


@pytest.mark.parametrize("doc", [{"title": None, "body": ""}, {"title": 5, "body": "b"}])
def test_update_removing_text_removes_its_vector(doc: dict[str, Any]) -> None:
    ready = passed(update({"doc": doc}), TITLED)
    assert written(ready)["doc"] == doc | {"embedding": None, "embedding_meta": None}


def test_update_of_unknown_text_removes_its_vector() -> None:
    ready = passed(update({"doc": {"title": "T"}}), TITLED, {("docs", "1", None): NoPreviousDocument.UNKNOWN})
    assert written(ready)["doc"] == {"title": "T", "embedding": None, "embedding_meta": None}


def test_replacing_the_parent_object_removes_the_text() -> None:
    nested = (target(template="{a.b}"),)
    assert written(passed(update({"doc": {"a": None}}), nested))["doc"]["embedding"] is None
    assert (
        passed(update({"doc": {"a": {"c": 1}}}), nested).items[0].source
        == update({"doc": {"a": {"c": 1}}}).splitlines()[1]
    )
    assert written(passed(update({"doc": {"a": {"b": "x"}}}), nested))["doc"]["embedding"] == vector_of("x")


@pytest.mark.parametrize("yes", [True, "true"])
def test_upserts_are_embedded(yes: Any) -> None:
    ready = passed(update({"doc": {"title": "T"}, "doc_as_upsert": yes}), TITLED, {("docs", "1", None): MISSING})
    assert written(ready)["doc"]["embedding"] == vector_of("T.")
    scripted = {"script": "x", "scripted_upsert": yes, "upsert": {"title": "T"}}
    assert written(passed(update(scripted), TITLED)) == scripted
    both = {"doc": {"n": 2}, "upsert": {"title": "T", "body": "b", "n": 1}}
    ready = passed(update(both), TITLED)
    assert written(ready)["doc"] == {"n": 2}
    assert written(ready)["upsert"]["embedding_meta"] == meta_of("T. b", content=document_hash(both["upsert"]))
    ready = passed(update({"script": "x", "upsert": {"title": "T"}}), TITLED)
    assert written(ready)["upsert"]["embedding"] == vector_of("T.")


def test_items_see_earlier_writes_of_the_same_request() -> None:
    before = {"title": "Old", "body": "old"}
    body = (
        update({"doc": {"title": "One"}})
        + update({"doc": {"body": "two"}})
        + index({"title": "Three", "body": "three"})
        + update({"doc": {"body": "four"}})
        + b'{"create":{"_id":"1"}}\n{"title":"conflict"}\n'
        + update({"doc": {"title": "Five"}})
        + b'{"delete":{"_id":"1"}}\n'
        + update({"doc": {"title": "Six"}, "upsert": {"title": "Seven", "body": "seven"}})
        + update({"doc": {"body": "eight"}})
        + update({"script": "x"})
        + update({"doc": {"title": "Nine"}})
        + update({"doc": {"title": "another document"}}, "2")
    )
    ready = passed(body, TITLED, {("docs", "1", None): before, ("docs", "2", None): MISSING})

    def text_of(number: int) -> Any:
        meta = written(ready, number)["doc"].get("embedding_meta", "untouched")
        return meta and (meta if isinstance(meta, str) else meta["text_hash"])

    assert [text_of(number) for number in (0, 1, 3, 5, 7, 8, 10, 11)] == [
        text_hash("One. old"),
        text_hash("One. two"),
        text_hash("Three. four"),
        text_hash("Five. four"),
        "untouched",
        text_hash("Seven. eight"),
        None,
        "untouched",
    ]


def test_items_that_cannot_be_embedded_have_errors() -> None:
    error = ModelError("m", "r")
    body = index({"text": "a"}) + index({"n": 1}) + update({"doc": {"text": "b"}, "upsert": {"text": "c"}})
    ready = passed(body, PLAIN, error=error)
    assert ready.errors == {0: error, 2: error}
    assert ready.embedded == 0


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_document_in_utf16_or_utf32_is_refused(encoding: str) -> None:
    items = read(b'{"index":{"_id":"1"}}\n' + '{"text":"a"}'.encode(encoding) + b"\n")
    [item] = parse_items(items, {"docs": Destination("docs", PLAIN)})
    assert item.unreadable is not None
    assert "UTF-8" in str(item.unreadable)


UNSOURCED = (replace(PLAIN[0], meta=PLAIN[0].meta.model_copy(update={"in_source": False})),)


@pytest.mark.parametrize(
    ("doc", "previous", "text", "lacking"),
    [
        ({"n": 1}, {"text": "a cat", "embedding_meta": meta_of("a cat")}, "a cat", False),
        # The text does not change, but the update loses the vector.
        ({"text": "a cat"}, {"text": "a cat", "embedding_meta": meta_of("a cat")}, "a cat", False),
        ({"n": 1}, {"embedding_meta": meta_of("a cat")}, None, True),
        ({"n": 1}, NoPreviousDocument.UNKNOWN, None, True),
        # There is no vector to lose.
        ({"n": 1}, {}, None, False),
        # The client sets the vector.
        ({"embedding": [0.0] * 4}, {"text": "a cat", "embedding_meta": meta_of("a cat")}, None, False),
        ({"embedding": None}, {"text": "a cat", "embedding_meta": meta_of("a cat")}, None, False),
    ],
)
def test_update_makes_vector_again_that_source_lacks(
    doc: dict[str, Any], previous: PreviousDocument, text: str | None, lacking: bool
) -> None:
    [item] = parse_items(read(update({"doc": doc})), {"docs": Destination("docs", UNSOURCED)})
    if not isinstance(doc.get("text"), str):
        assert item.needed == (() if "embedding" in doc else ("text", "embedding_meta"))
    item.detect_changes(previous)
    change = item.changes.get("doc")
    assert [embedded for _, embedded in change.to_embed] == [text] if text else not (change and change.to_embed)
    assert (change is not None and change.lacking == {NoVectorReason.NOT_IN_SOURCE}) is lacking
    assert not (change and change.cleared)


_FIELDS = st.dictionaries(
    st.sampled_from(["text", "more", "n", "embedding", "other", "embedding_meta"]),
    st.none()
    | st.text("ab ", max_size=3)
    | st.integers()
    | st.lists(st.floats(0, 1), max_size=2)
    | st.sampled_from([meta_of("a"), meta_of("b", "another")]),
    max_size=5,
)
_BODIES = st.one_of(
    _FIELDS,
    st.fixed_dictionaries(
        {}, optional={"doc": _FIELDS, "upsert": _FIELDS, "doc_as_upsert": st.booleans(), "script": st.text(max_size=2)}
    ),
)


@given(
    st.lists(
        st.tuples(st.sampled_from(list(OpType)), st.sampled_from(["docs", "plain"]), st.sampled_from("12"), _BODIES),
        max_size=8,
    ),
    st.data(),
)
def test_only_vector_fields_change(actions: list[tuple[OpType, str, str, Any]], data: st.DataObject) -> None:
    body = b"".join(
        json.dumps({operation: {"_index": index, "_id": id}}).encode()
        + b"\n"
        + (b"" if operation is OpType.DELETE else json.dumps(source).encode() + b"\n")
        for operation, index, id, source in actions
    )
    standing = st.sampled_from([NoPreviousDocument.MISSING, NoPreviousDocument.UNKNOWN]) | _FIELDS
    found = {("docs", id): data.draw(standing) for id in "12"}
    ready = passed(body or b"\n", TWO, found)
    own = {"embedding", "embedding_meta", "other", "other_meta"}

    def without_vectors(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: without_vectors(inner) for key, inner in value.items() if key not in own}

    for item, (operation, name, _, source) in zip(ready.items, actions, strict=True):
        if operation is OpType.DELETE:
            assert item.source == b""
        elif name == "plain":
            assert item.source == json.dumps(source).encode(), "an index without vectors"
        else:
            assert without_vectors(json.loads(item.source)) == without_vectors(source)
            if operation is not OpType.UPDATE:
                fields = json.loads(item.source)
                for one in TWO:
                    meta = fields.get(one.meta_field)
                    if isinstance(meta, dict):
                        assert fields.get(one.field) is not None
                        assert meta["fingerprint"] == one.meta.fingerprint
