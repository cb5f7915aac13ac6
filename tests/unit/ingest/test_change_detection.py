"""Change detection without an engine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.index.document_vectors import DocumentMeta, StoredVector, text_hash
from es_sbert.ingest.change_detection import ChangeDecision, Decision, detect_changes, is_superseded
from es_sbert.ingest.read_documents import Document
from es_sbert.ingest.sources.document_source import Origin
from tests.unit.ingest.support import target

DOCUMENT = Document(Origin("f", 1), "a", ("text",), b"{}", "dochash")
META = DocumentMeta("model", text_hash("text"), "dochash", 3, False, "2026-01-31T12:00:00.000Z")
EMBED, KEEP = ChangeDecision(Decision.WRITE, (0,)), ChangeDecision(Decision.WRITE, (), (0,))
# A title of this load's model, a body of the same, a summary of another's.
THREE = (target("title", "{title}"), target("body", "{body}"), target("other", "{summary}", filled=False, model="old"))


def meta(**change: Any) -> DocumentMeta:
    return META._replace(**change)


def there(meta: DocumentMeta | None, *, text_changed: bool = False) -> StoredVector:
    """A vector and its metadata, or neither."""
    return StoredVector(meta is not None, meta, text_changed)


@pytest.mark.parametrize(
    ("stored", "sorting"),
    [
        (there(meta()), ChangeDecision(Decision.UNCHANGED)), (StoredVector(), EMBED),
        (there(meta(document_hash="other")), KEEP), (there(meta(document_hash=None)), KEEP),
        (there(meta(text_hash="other")), EMBED), (there(meta(text_hash=None)), EMBED),
        (there(meta(fingerprint="other")), EMBED), (there(meta(fingerprint=None)), EMBED),
        # The vector is gone, or its metadata, or another program has changed the text.
        (StoredVector(False, meta()), EMBED), (StoredVector(True, None), EMBED),
        (there(meta(), text_changed=True), KEEP), (there(meta(text_hash="other"), text_changed=True), EMBED),
    ],
)  # fmt: skip
def test_decision_by_what_changed(stored: StoredVector, sorting: ChangeDecision) -> None:
    assert detect_changes(DOCUMENT, [stored], (target(),)) == sorting


def test_empty_text_clears_a_stored_vector() -> None:
    empty = DOCUMENT._replace(texts=("",))
    assert detect_changes(empty, [StoredVector()], (target(),)) == ChangeDecision(Decision.EMPTY)
    for left in (there(meta()), StoredVector(True, None), StoredVector(False, meta())):
        assert detect_changes(empty, [left], (target(),)) == ChangeDecision(Decision.CLEAR)
    letter = empty._replace(written="2026-01-31T11:59:59.000Z")
    assert detect_changes(letter, [there(meta())], (target(),)) == ChangeDecision(Decision.SUPERSEDED)


def test_each_field_is_embedded_kept_or_dropped() -> None:
    document = DOCUMENT._replace(texts=("a title", "a body", "a summary"))
    title, body = there(meta(text_hash=text_hash("a title"))), there(meta(text_hash=text_hash("a body")))
    other, none = there(meta(text_hash=text_hash("a summary"), fingerprint="old")), StoredVector()
    assert detect_changes(document, [title, body, other], THREE) == ChangeDecision(Decision.UNCHANGED)
    # A vector of another model is no matter of this load's, as long as the document stays as it is.
    assert detect_changes(document, [title, body, none], THREE) == ChangeDecision(Decision.UNCHANGED)
    assert detect_changes(document, [title, none, other], THREE) == ChangeDecision(Decision.WRITE, (1,), (0, 2))
    changed = document._replace(texts=("a title", "a new body", "a new summary"), document_hash="new")
    assert detect_changes(changed, [title, body, other], THREE) == ChangeDecision(Decision.WRITE, (1,), (0,), (2,))
    lost = document._replace(texts=("a title", "", "a summary"), document_hash="new")
    assert detect_changes(lost, [title, body, other], THREE) == ChangeDecision(Decision.WRITE, (), (0, 2))
    gone = document._replace(texts=("", "", "a summary"), document_hash="new")
    assert detect_changes(gone, [title, body, other], THREE) == ChangeDecision(Decision.CLEAR, (), (2,))


@given(
    st.lists(st.sampled_from(["", "x", "y"]), min_size=3, max_size=3),
    st.lists(st.sampled_from([None, "x", "y"]), min_size=3, max_size=3),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.lists(st.sampled_from(["", "x", "y"]), min_size=3, max_size=3),
    st.booleans(),
)
def test_changes_leave_exactly_the_vectors_of_the_texts(
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
    sorting = detect_changes(document, held, THREE)
    if sorting.decision in (Decision.WRITE, Decision.CLEAR):
        after = {number: texts[number] for number in (*sorting.to_embed, *sorting.reused)}
        assert all(stored[number] == texts[number] and not gone[number] for number in sorting.reused)
        indexed = texts
    else:
        after = {number: text for number, text in enumerate(stored) if text is not None and not gone[number]}
    for number in (0, 1):
        assert after.get(number, "") == texts[number]
    if any(texts[:2]):
        assert indexed == texts
    if sorting.decision in (Decision.WRITE, Decision.CLEAR):
        assert after.get(2, "") in ("", texts[2])


@pytest.mark.parametrize(
    ("written", "later"),
    [(None, False), ("2026-01-31T11:59:59.999Z", True), ("2026-01-31T12:00:00.000Z", False), ("of late", False)],
)
def test_dead_letter_is_superseded_by_a_later_version(written: str | None, later: bool) -> None:
    document = DOCUMENT._replace(written=written)
    assert is_superseded(document, META) is later
    assert not is_superseded(document, None)
    assert not is_superseded(document, META._replace(embedded_at=None))
