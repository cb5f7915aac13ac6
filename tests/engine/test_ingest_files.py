"""Files loaded into each engine and compared with the source, document by document."""

from __future__ import annotations

import gzip
from typing import Any

import orjson
import pytest

from es_sbert.engines.engine import Engine
from es_sbert.errors import IndexMismatch
from es_sbert.index.document_vectors import document_hash, text_hash
from es_sbert.index.text_template import MISSING
from tests.conftest import also_es8
from tests.engine.ingest_support import Loads, same_vectors, sentences, vector_of, write_jsonl
from tests.raised import raises

pytestmark = pytest.mark.one_engine


@also_es8
def test_documents_are_stored_unchanged_with_vectors(loads: Loads) -> None:
    documents = sentences(300)
    path = loads.folder / "docs.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n".join(map(orjson.dumps, documents))))
    # Small windows and bodies, so that all stages work on several at once.
    summary = loads.load(path, id_field="id", batch_window=64, bulk_bytes=40_000)
    assert (summary.read, summary.indexed, summary.exit_code) == (300, 300, 0)
    assert not loads.dead.exists()
    stored = loads.contents()
    expected = loads.encoder.pipeline.encode_details([document["text"] for document in documents], "document")
    assert set(stored) == {document["id"] for document in documents}
    for row, document in enumerate(documents):
        found = stored[document["id"]]
        meta = found.pop("embedding_meta")
        assert meta.pop("embedded_at")
        assert same_vectors(vector_of(found), expected.vectors[row])
        assert {key: value for key, value in found.items() if key not in ("embedding", "_version")} == document
        assert meta == {
            "fingerprint": loads.encoder.info.fingerprint,
            "text_hash": text_hash(document["text"]),
            "document_hash": document_hash(document),
            "tokens": expected.tokens[row],
            "truncated": False,
        }


def test_only_changes_are_written_and_changed_texts_embedded(loads: Loads) -> None:
    documents = sentences(60)
    path = loads.write(documents)
    loads.load(path, id_field="id")
    before = loads.contents()
    for document in documents[:10]:
        document["price"] = -1.0
        del document["tags"]
    for document in documents[10:15]:
        document["text"] += " And then it rained."
    write_jsonl(path, [*documents, {"id": "new", "text": "A new one."}])
    summary = loads.load(path, id_field="id")
    assert (summary.updated, summary.indexed, summary.unchanged) == (10, 6, 45)
    after = loads.contents()
    for document in documents[:10]:
        old, new = before[document["id"]], after[document["id"]]
        assert same_vectors(vector_of(old), vector_of(new))
        assert new["embedding_meta"] == old["embedding_meta"] | {"document_hash": document_hash(document)}
        assert new["price"] == -1.0
        assert "tags" not in new
    rained = loads.encoder.encode([document["text"] for document in documents[10:15]], "document")
    for row, document in enumerate(documents[10:15]):
        assert same_vectors(vector_of(after[document["id"]]), rained[row])
        assert after[document["id"]]["embedding_meta"]["text_hash"] == text_hash(document["text"])
    assert all(before[document["id"]] == after[document["id"]] for document in documents[15:])
    # The rewritten ones are known as unchanged from now on.
    again = loads.load(path, id_field="id")
    assert again.unchanged == again.read == 61


def test_rejected_documents_are_dead_lettered_with_reason(engine: Engine, loads: Loads) -> None:
    engine.create_index(loads.index, {"mappings": {"properties": {"price": {"type": "integer"}}}})
    bad: dict[str, Any] = {"id": "bad", "text": "Cheap?", "price": "cheap"}
    path = loads.write([*sentences(20), bad])
    twice = b'{"id": "twice", "text": "one", "text": "two"}\n'
    path.write_bytes(path.read_bytes() + twice)
    summary = loads.load(path, id_field="id")
    assert (summary.indexed, summary.dead, summary.exit_code) == (20, 2, 1)
    assert summary.dead_letters == str(loads.dead)
    first, second = loads.letters()
    assert (first["id"], first["line"], first["document"]) == ("bad", 21, bad)
    assert "refused by the engine (400)" in first["reason"]
    assert "price" in first["reason"]
    assert second["id"] == "twice"
    assert "uplicate" in second["reason"]
    assert set(loads.contents()) == {f"d{number}" for number in range(20)}


def test_dead_letters_are_retried_unless_the_index_has_a_later_version(engine: Engine, tiny_loads: Loads) -> None:
    engine.create_index(tiny_loads.index, {"mappings": {"properties": {"price": {"type": "integer"}}}})
    bad = [{"id": key, "text": "a cat", "price": "cheap"} for key in ("later", "fixed", "odd")]
    assert tiny_loads.load(tiny_loads.write([*sentences(20), *bad]), id_field="id").dead == 3
    one = tiny_loads.load(tiny_loads.write([{"id": "later", "text": "a dog", "price": 2}]), id_field="id")
    assert (one.words, one.new_words in (0, 1)) == (2, True)  # another test may have read a dog
    letters = tiny_loads.letters()
    for letter in letters:
        letter["document"]["price"] = "cheap" if letter["id"] == "odd" else 1
    write_jsonl(tiny_loads.dead, letters)
    summary = tiny_loads.load(retry=tiny_loads.dead)
    assert (summary.read, summary.indexed, summary.skipped.superseded, summary.dead) == (3, 1, 1, 1)
    held = tiny_loads.contents()
    assert (held["later"]["price"], held["fixed"]["price"], "odd" in held) == (2, 1, False)
    assert [letter["id"] for letter in tiny_loads.letters()] == ["odd"]


def test_truncated_texts_are_counted(loads: Loads) -> None:
    words = loads.encoder.info.max_tokens + 98
    path = loads.write([{"text": "river " * words}, {"text": "river"}])
    summary = loads.load(path)
    # Two special tokens stand around the words.
    assert (summary.truncated, summary.lost_tokens) == (1, 100)
    metas = sorted((s["embedding_meta"]["tokens"], s["embedding_meta"]["truncated"]) for s in loads.contents().values())
    assert metas == [(3, False), (words + 2, True)]


def test_text_template_is_stored_in_index(loads: Loads) -> None:
    path = loads.folder / "docs.csv"
    path.write_text("id,title,body\n1,Rain,It pours\n2,Sun,\n")
    loads.load(path, id_field="id", text_template="{title}: {body}")
    stored = loads.contents()
    assert same_vectors(vector_of(stored["1"]), loads.encoder.encode(["Rain: It pours"], "document")[0])
    assert stored["2"]["embedding_meta"]["text_hash"] == text_hash("Sun: ")
    # Without options the index's own template is used, so nothing is embedded anew.
    assert loads.load(path, id_field="id").unchanged == 2
    assert loads.load().unchanged == 2
    with raises(IndexMismatch, "text_template"):
        loads.load(path, id_field="id", text_fields=("body",))


@pytest.mark.parametrize("lost_text", [" ", None, MISSING], ids=["blank", "null", "missing"])
def test_document_without_text_loses_its_vector(loads: Loads, lost_text: Any) -> None:
    documents = sentences(30)
    path = loads.write(documents)
    loads.load(path, id_field="id")
    documents[3]["text"] = lost_text
    if lost_text is MISSING:
        del documents[3]["text"]
    path = write_jsonl(path, [*documents, {"id": "never had one", "text": ""}])
    summary = loads.load(path, id_field="id")
    assert (summary.unchanged, summary.skipped.empty, summary.dead) == (29, 2, 0)
    stored = loads.contents()
    assert set(stored) == {document["id"] for document in documents}
    lost = stored.pop("d3")
    assert {name: lost[name] for name in documents[3]} == documents[3]
    assert "embedding" not in lost
    assert "embedding_meta" not in lost
    assert all("embedding" in source for source in stored.values())
    version = lost["_version"]
    again = loads.load(path, id_field="id")
    assert (again.unchanged, again.skipped.empty) == (29, 2)
    assert loads.contents()["d3"]["_version"] == version
