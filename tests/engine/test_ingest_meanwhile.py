"""Several loads, and other programs, at work in one index at the same time: nothing of it is lost without a word."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.protocol import Engine
from es_sbert.index.load_settings import LOAD_SETTINGS
from es_sbert.index.schema import vector_fields
from tests.engine.ingest_support import Interposed, load, sentences, write_jsonl


@pytest.fixture
def es9(es9_url: str, open_engine: Callable[[str], Engine]) -> Engine:
    return open_engine(es9_url)


@pytest.fixture
def index(es9_url: str, fresh_index: Callable[[str], str]) -> str:
    return fresh_index(es9_url)


def before_window(encoder: Encoder, number: int, meddle: Callable[[], None]) -> Interposed:
    """Another program has its turn before this window is embedded."""
    return Interposed(encoder, lambda window: meddle() if window == number else None)


def test_what_another_process_overwrites_in_the_mapping_is_put_back(
    es9: Engine, index: str, encoder: Encoder, tmp_path: Path
) -> None:
    """It had read `_meta` before this load wrote into it."""
    path = write_jsonl(tmp_path / "docs.jsonl", sentences(20))
    meddling = before_window(encoder, 0, lambda: es9.put_mapping(index, {"_meta": {"owner": "app"}}))
    summary = load(es9.info.url, meddling, index, path, dead=tmp_path / "dead", id_field="id")
    assert (summary.indexed, summary.exit_code, summary.notes) == (20, 0, ())
    state = es9.get_index(index)
    assert state is not None
    assert vector_fields(state.mappings, index)["embedding"].fingerprint == encoder.info.fingerprint
    assert state.mappings["_meta"]["owner"] == "app"
    assert {state.settings.get(name) for name in LOAD_SETTINGS} == {None, "1"}
    assert load(es9.info.url, encoder, index, path, dead=tmp_path / "dead", id_field="id").unchanged == 20


def test_vectors_that_another_load_has_overwritten_are_named(
    es9: Engine, index: str, encoder: Encoder, tmp_path: Path
) -> None:
    """The same documents with another vector field: each load writes them whole, with the vectors it has seen."""
    path = write_jsonl(tmp_path / "docs.jsonl", sentences(20))
    load(es9.info.url, encoder, index, path, dead=tmp_path / "dead", id_field="id", vectors=("one={text}",))
    load(es9.info.url, encoder, index, path, dead=tmp_path / "dead", id_field="id", vectors=("two={text}",))

    def overwrite() -> None:
        """Goes over d0, once it is written, as a load does that knew of neither field."""
        deadline = time.monotonic() + 300
        while es9.get_documents(index, ["d0"], source_includes=["text"])["d0"]["text"] != changed[0]["text"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        lines = [b'{"index":{"_id":"d0"}}', orjson.dumps({"id": "d0", "text": "New."}), b""]
        assert all(result.ok for result in es9.bulk(index, b"\n".join(lines)))

    changed = [document | {"text": f"Changed: {document['text']}"} for document in sentences(20)]
    write_jsonl(path, changed)
    before = before_window(encoder, 19, overwrite)  # one document a window
    summary = load(es9.info.url, before, index, path, dead=tmp_path / "dead", id_field="id",
                   vectors=("one={text}",), batch_window=1)  # fmt: skip
    assert summary.indexed == 20
    [lost] = [note for note in summary.notes if "written again without a vector" in note]
    assert lost.startswith("1 documents")
    assert f"es-sbert ingest --index {index} --vector one" in lost
    again = load(es9.info.url, encoder, index, dead=tmp_path / "dead", vectors=("one",))
    assert (again.indexed, again.unchanged, again.notes) == (1, 19, ())


def test_a_field_that_another_load_adds_meanwhile_is_named(
    es9: Engine, index: str, encoder: Encoder, tmp_path: Path
) -> None:
    path = write_jsonl(tmp_path / "docs.jsonl", sentences(5))

    def other() -> None:
        load(es9.info.url, encoder, index, path, dead=tmp_path / "dead", id_field="id", vectors=("two={text}",),
             state=tmp_path / "other.state")  # fmt: skip

    meddling = before_window(encoder, 0, other)
    summary = load(es9.info.url, meddling, index, path, dead=tmp_path / "dead", id_field="id", vectors=("one={text}",))
    [note] = summary.notes
    assert note.startswith("two was added to the index meanwhile")
    assert f"es-sbert ingest --index {index} --vector two" in note
    assert load(es9.info.url, encoder, index, dead=tmp_path / "dead", vectors=("two",)).indexed == 5
