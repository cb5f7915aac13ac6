"""Change detection without an engine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.index.meta import DocumentMeta, stored_meta, text_hash
from es_sbert.ingest.documents import Document
from es_sbert.ingest.records import Origin
from es_sbert.ingest.triage import (
    Sorting,
    StoredVector,
    Verdict,
    is_superseded,
    lost_fields,
    triage,
)
from tests.unit.ingest.support import target

DOCUMENT = Document(Origin("f", 1), "a", ("text",), b"{}", "dochash")
META: dict[str, Any] = {
    "fingerprint": "model", "text_hash": text_hash("text"), "document_hash": "dochash", "tokens": 3,
    "truncated": False, "embedded_at": "now",
}  # fmt: skip
# A title of this load's model, a body of the same, a summary of another's.
THREE = (target("title", "{title}"), target("body", "{body}"), target("other", "{summary}", filled=False, model="old"))


def meta(**change: Any) -> dict[str, Any]:
    return META | change


def there(meta: dict[str, Any] | None, *, text_changed: bool = False) -> StoredVector:
    """A vector and its metadata, or neither."""
    return StoredVector(meta is not None, meta, text_changed)


@pytest.mark.parametrize(
    ("stored", "sorting"),
    [
        (there(meta()), Sorting(Verdict.UNCHANGED)),
        (there(meta(document_hash="other")), Sorting(Verdict.WRITE, (), (0,))),
        (there(meta(document_hash=None)), Sorting(Verdict.WRITE, (), (0,))),
        (there(meta(text_hash="other")), Sorting(Verdict.WRITE, (0,))),
        (there(meta(fingerprint="other")), Sorting(Verdict.WRITE, (0,))),
        (StoredVector(), Sorting(Verdict.WRITE, (0,))),
        # The vector is gone, or its metadata, or another program has changed the text.
        (StoredVector(False, meta()), Sorting(Verdict.WRITE, (0,))),
        (StoredVector(True, None), Sorting(Verdict.WRITE, (0,))),
        (there(meta(), text_changed=True), Sorting(Verdict.WRITE, (), (0,))),
        (there(meta(text_hash="other"), text_changed=True), Sorting(Verdict.WRITE, (0,))),
    ],
)
def test_what_changed_decides(stored: StoredVector, sorting: Sorting) -> None:
    assert triage(DOCUMENT, [stored], (target(),)) == sorting


def test_a_document_without_text_is_cleared_where_the_index_has_its_vector() -> None:
    empty = DOCUMENT._replace(texts=("",))
    assert triage(empty, [StoredVector()], (target(),)) == Sorting(Verdict.EMPTY)
    for left in (there(meta()), StoredVector(True, None), StoredVector(False, meta())):
        assert triage(empty, [left], (target(),)) == Sorting(Verdict.CLEAR)
    letter = empty._replace(written="earlier")
    assert triage(letter, [there(meta())], (target(),)) == Sorting(Verdict.SUPERSEDED)


def test_each_field_is_embedded_kept_or_dropped_for_itself() -> None:
    document = DOCUMENT._replace(texts=("a title", "a body", "a summary"))
    title, body = there(meta(text_hash=text_hash("a title"))), there(meta(text_hash=text_hash("a body")))
    other, none = there(meta(text_hash=text_hash("a summary"), fingerprint="old")), StoredVector()
    assert triage(document, [title, body, other], THREE) == Sorting(Verdict.UNCHANGED)
    # A vector of another model is no matter of this load's, as long as the document stays as it is.
    assert triage(document, [title, body, none], THREE) == Sorting(Verdict.UNCHANGED)
    assert triage(document, [title, none, other], THREE) == Sorting(Verdict.WRITE, (1,), (0, 2))
    changed = document._replace(texts=("a title", "a new body", "a new summary"), document_hash="new")
    assert triage(changed, [title, body, other], THREE) == Sorting(Verdict.WRITE, (1,), (0,), (2,))
    lost = document._replace(texts=("a title", "", "a summary"), document_hash="new")
    assert triage(lost, [title, body, other], THREE) == Sorting(Verdict.WRITE, (), (0, 2))
    gone = document._replace(texts=("", "", "a summary"), document_hash="new")
    assert triage(gone, [title, body, other], THREE) == Sorting(Verdict.CLEAR, (), (2,))


@given(
    st.lists(st.sampled_from(["", "x", "y"]), min_size=3, max_size=3),
    st.lists(st.sampled_from([None, "x", "y"]), min_size=3, max_size=3),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.lists(st.sampled_from(["", "x", "y"]), min_size=3, max_size=3),
    st.booleans(),
)
def test_afterwards_every_text_has_its_vector_and_no_other(
    texts: list[str], stored: list[str | None], gone: list[bool], indexed: list[str], same: bool
) -> None:
    document = DOCUMENT._replace(texts=tuple(texts), document_hash="dochash" if same else "new")
    metas = [
        None if text is None else meta(text_hash=text_hash(text), fingerprint=one.meta.fingerprint)
        for text, one in zip(stored, THREE, strict=True)
    ]
    held = [
        StoredVector(one is not None and not lost, one, text_changed=there != text)
        for one, lost, there, text in zip(metas, gone, indexed, texts, strict=True)
    ]
    sorting = triage(document, held, THREE)
    if sorting.verdict in (Verdict.WRITE, Verdict.CLEAR):
        after = {number: texts[number] for number in (*sorting.wanted, *sorting.kept)}
        assert all(stored[number] == texts[number] and not gone[number] for number in sorting.kept)
        indexed = texts
    else:
        after = {number: text for number, text in enumerate(stored) if text is not None and not gone[number]}
    for number in (0, 1):
        assert after.get(number, "") == texts[number]
    if any(texts[:2]):
        assert indexed == texts
    if sorting.verdict in (Verdict.WRITE, Verdict.CLEAR):
        assert after.get(2, "") in ("", texts[2])


@pytest.mark.parametrize("value", [None, "text", {}, {**META, "tokens": "many"}, [META]])
def test_meta_of_other_programs_counts_as_none(value: Any) -> None:
    assert stored_meta({"embedding_meta": value}, "embedding_meta") is None
    assert stored_meta({}, "embedding_meta") is None


def test_meta_is_read_back() -> None:
    assert stored_meta({"embedding_meta": META}, "embedding_meta") == DocumentMeta.model_validate(META)


@pytest.mark.parametrize(
    ("source", "lost"),
    [({}, None), ({"enabled": True}, None), ({"enabled": False}, "_source"), ({"excludes": ["embedding"]}, None),
     ({"excludes": ["body", "embedding", "raw.*"]}, "body, raw.* in its _source"),
     ({"includes": ["text", "embed*"]}, "fields in its _source but text, embed*")],
)  # fmt: skip
def test_what_is_not_in_the_source_is_named(source: dict[str, Any], lost: str | None) -> None:
    assert lost_fields({"_source": source}, ["embedding"]) == lost


@pytest.mark.parametrize(("written", "later"), [(None, False), ("mow", True), ("now", False), ("of late", False)])
def test_a_dead_letter_gives_way_to_a_later_version(written: str | None, later: bool) -> None:
    document = DOCUMENT._replace(written=written)
    assert is_superseded(document, META) is later
    assert not is_superseded(document, None)
