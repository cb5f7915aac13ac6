"""What a load remembers: it resumes after a kill, and never believes a file of another load."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_sbert.engines.engine import DocumentKey
from es_sbert.engines.index_state import IndexState
from es_sbert.errors import OutputError, UsageError
from es_sbert.index.document_vectors import EmbeddingTarget
from es_sbert.index.mapping import VectorFieldMeta
from es_sbert.index.text_template import TextTemplate
from es_sbert.ingest import checkpoint
from es_sbert.ingest.checkpoint import (
    LoadCheckpoint,
    LoadIdentity,
    SeenRecord,
    SeenStatus,
    _packed,
    default_checkpoint_path,
)
from es_sbert.ingest.ingest_settings import IngestSettings
from es_sbert.ingest.load import _identity
from es_sbert.ingest.load_plan import LoadPlan
from es_sbert.ingest.sources.document_source import Origin
from es_sbert.ingest.sources.file_sources import FileInput, TextSource
from es_sbert.io.file_formats import FileFormat
from tests.raised import raises, raises_as_recorded, record

IDENTITY = LoadIdentity("uuid", "model", (("embedding", "{text}", None),), "id")
A, B = "aa" * 16, "bb" * 16


@contextmanager
def opened(path: Path, identity: LoadIdentity = IDENTITY) -> Iterator[LoadCheckpoint]:
    state = LoadCheckpoint(path, identity)
    try:
        yield state
    finally:
        state.close()


def meet_at(state: LoadCheckpoint, document_id: str, content: str, origin: Origin) -> tuple[SeenStatus, Origin]:
    [met] = state.record_seen([SeenRecord(document_id, content, origin)])
    return met


def record_seen(state: LoadCheckpoint, document_id: str, content: str = A, line: int = 1) -> SeenStatus:
    return meet_at(state, document_id, content, Origin("f", line))[0]


def key(document_id: str, routing: str | None = None) -> DocumentKey:
    return document_id, routing


def seen_ids(state: LoadCheckpoint, document_ids: Iterable[str]) -> set[str]:
    return {document_id for document_id, _ in state.seen_keys([key(document_id) for document_id in document_ids])}


def test_documents_are_known_by_id_and_routing(tmp_path: Path) -> None:
    origin = Origin("f", 1)
    with opened(tmp_path / "state") as state:
        records = [SeenRecord("a", A, origin, "one"), SeenRecord("b", A, origin)]
        assert state.record_seen(records) == [(SeenStatus.NEW, origin)] * 2
        again = [SeenRecord("a", A, origin, "one"), SeenRecord("a", A, origin, "two"), SeenRecord("b", A, origin, "b")]
        found = [status for status, _ in state.record_seen(again)]
        assert found == [SeenStatus.REPEATED, SeenStatus.CONTRADICTED, SeenStatus.CONTRADICTED]
        keys = [key("a", "one"), key("a", "two"), key("a"), key("b"), key("b", "b")]
        assert state.seen_keys(keys) == {key("a", "one"), key("b")}
        state.record_acknowledged(["a", "b"])
        assert len(state.acknowledged_keys([(each, A) for each in keys])) == 2
        changed, any_content = [(key("b"), B)], [(key("b"), None)]
        assert (state.acknowledged_keys(changed), state.acknowledged_keys(any_content)) == (set(), {key("b")})
        assert state.count_acknowledged() == 2


def test_failed_start_leaves_the_file_unlocked(tmp_path: Path) -> None:
    blocked = tmp_path / "state-seen"
    blocked.mkdir()
    with raises(OutputError, "state"):
        LoadCheckpoint(tmp_path / "state", IDENTITY)
    blocked.rmdir()
    with opened(tmp_path / "state") as state:
        assert state.resumed


def test_untrusted_checkpoint_discards_acknowledgements(tmp_path: Path) -> None:
    with opened(tmp_path / "state") as state:
        record_seen(state, "a")
        state.record_acknowledged(["a"])
        assert not state.is_untrusted()
        state.mark_untrusted()
        state.record_acknowledged(["a"])  # by a worker that has not heard of it
    with opened(tmp_path / "state") as state:
        assert state.is_untrusted()
        assert record_seen(state, "a") is SeenStatus.NEW
    with opened(tmp_path / "state", replace(IDENTITY, index_uuid="other")) as state:
        assert not state.is_untrusted()


def test_resumed_load_checks_all_documents_again(tmp_path: Path) -> None:
    """What was acknowledged may have been deleted, changed or lost since."""
    with opened(tmp_path / "state") as state:
        assert not state.resumed
        run = state.run
        for document in ("in", "changed", "unsent"):
            record_seen(state, document)
        state.record_acknowledged(["in", "changed"])
    with opened(tmp_path / "state") as state:
        assert (state.resumed, state.run, state.note) == (True, run, None)
        assert record_seen(state, "in", line=7) is SeenStatus.NEW
        assert record_seen(state, "changed", B) is SeenStatus.NEW
        assert record_seen(state, "new") is SeenStatus.NEW
        assert meet_at(state, "in", A, Origin("f", 9)) == (SeenStatus.REPEATED, Origin("f", 7))
        assert record_seen(state, "in", B) is SeenStatus.CONTRADICTED
        assert seen_ids(state, ["in", "changed", "unsent", "new"]) == {"in", "changed", "new"}


def test_reread_records_are_recognized_as_acknowledged(tmp_path: Path) -> None:
    state = LoadCheckpoint(tmp_path / "state", IDENTITY, rereads=True)
    for line, document in enumerate(("in", "unsent"), 1):
        assert record_seen(state, document, line=line) is SeenStatus.NEW
    state.record_acknowledged(["in"])
    assert [record_seen(state, "in", line=1), record_seen(state, "unsent", line=2)] == [
        SeenStatus.ACKNOWLEDGED,
        SeenStatus.NEW,
    ]
    assert [record_seen(state, "in", line=9), record_seen(state, "in", B, line=1)] == [
        SeenStatus.REPEATED,
        SeenStatus.CONTRADICTED,
    ]
    state.close()


@settings(max_examples=30)  # each opens files
@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from([A, B]), st.sampled_from(["record_seen", "ack", "again"]))
    )
)
def test_record_is_new_once_per_run(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, str]]
) -> None:
    path = tmp_path_factory.mktemp("state") / "state"
    state = LoadCheckpoint(path, IDENTITY)
    met: dict[str, str] = {}
    for document, content, what in steps:
        if what == "record_seen":
            known = record_seen(state, document, content)
            if document in met:
                assert known is (SeenStatus.REPEATED if met[document] == content else SeenStatus.CONTRADICTED)
            else:
                assert known is SeenStatus.NEW
                met[document] = content
        elif what == "ack" and document in met:
            state.record_acknowledged([document])
        elif what == "again":
            state.close()
            state, met = LoadCheckpoint(path, IDENTITY), {}
        assert seen_ids(state, "abcd") == set(met)
    state.close()


@pytest.mark.parametrize(
    "change",
    [
        {"index_uuid": "other"}, {"fingerprint": "other"}, {"id_field": None}, {"fields": (("v", "{text}", None),)},
        {"fields": (("embedding", "{title}", None),)}, {"fields": (("embedding", "{text}", "passages of 256 tokens"),)},
        {"file_options": ("jsonl", None, None, None, (), None)},  # of standard input, after a file by its address
    ],
    ids=str,
)  # fmt: skip
def test_checkpoint_of_another_load_is_ignored(tmp_path: Path, change: dict[str, Any]) -> None:
    with opened(tmp_path / "state") as state:
        record_seen(state, "x")
        state.record_acknowledged(["x"])
    with opened(tmp_path / "state", replace(IDENTITY, **change)) as state:
        assert not state.resumed
        assert "starts from the beginning" in (state.note or "")
        assert record_seen(state, "x") is SeenStatus.NEW


@pytest.mark.parametrize("kind", ["no database", "cut", "overwritten"])
def test_broken_checkpoint_is_moved_aside_and_noted(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "state"
    with opened(path):
        pass
    with closing(sqlite3.connect(path)) as db:  # as an earlier version left it
        db.execute("CREATE TABLE letters (key BLOB PRIMARY KEY) WITHOUT ROWID")
        db.executemany("INSERT INTO letters VALUES (?)", ((number.to_bytes(16, "big"),) for number in range(2000)))
        db.commit()
    with opened(path) as state:
        assert (state.resumed, state.note) == (True, None)
    data = path.read_bytes()
    broken = {
        "no database": b"not a database at all, but long enough to be taken for one" * 100,
        "cut": data[: len(data) // 2],
        "overwritten": data[:8192] + os.urandom(len(data) - 16384) + data[-8192:],
    }[kind]
    path.write_bytes(broken)
    with opened(path) as state:
        assert not state.resumed
        assert "was corrupt" in (state.note or "")
        assert record_seen(state, "1") is SeenStatus.NEW
    assert (tmp_path / "state.broken").read_bytes() == broken


def test_seen_records_of_a_killed_load_are_discarded(tmp_path: Path) -> None:
    with opened(tmp_path / "state") as state:
        record_seen(state, "x")
        left = (tmp_path / "state-seen").read_bytes()
    assert not (tmp_path / "state-seen").exists()
    for leftover in (left, b"noise"):
        (tmp_path / "state-seen").write_bytes(leftover)
        with opened(tmp_path / "state") as state:
            assert record_seen(state, "x") is SeenStatus.NEW


def test_concurrent_loads_cannot_share_a_checkpoint(tmp_path: Path) -> None:
    with opened(tmp_path / "state"):
        with raises(UsageError, "state") as caught:
            LoadCheckpoint(tmp_path / "state", IDENTITY)
        record(caught.value)
    with opened(tmp_path / "state") as state:
        assert state.resumed


def test_checkpoint_that_another_load_removes_while_it_is_opened_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, locked, removed = tmp_path / "state", checkpoint._open_locked, list[Path]()

    def open_too_late(path: Path) -> sqlite3.Connection:
        db = locked(path)
        if not removed:
            path.unlink()
            removed.append(path)
        return db

    monkeypatch.setattr(checkpoint, "_open_locked", open_too_late)
    with opened(path), raises(UsageError, "state"):
        LoadCheckpoint(path, IDENTITY)


def test_finished_checkpoint_is_removed_while_it_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state"
    with opened(path) as state:
        remove = state._remove

        def remove_locked() -> None:
            with raises(UsageError, "state"):
                LoadCheckpoint(path, IDENTITY)
            remove()

        monkeypatch.setattr(state, "_remove", remove_locked)
        state.finish()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["missing/state", "."])  # in no folder, and a folder itself
def test_file_that_cannot_be_written_raises_output_error(tmp_path: Path, name: str) -> None:
    with raises_as_recorded(OutputError):
        LoadCheckpoint(tmp_path / name, IDENTITY)


def test_default_path_is_next_to_the_first_suitable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = TextSource(FileInput(), FileFormat.JSONL)
    file = TextSource(FileInput("docs.jsonl.gz", tmp_path / "docs.jsonl.gz", None), FileFormat.JSONL)
    assert default_checkpoint_path("my/docs", [stdin, file]) == tmp_path / "docs.jsonl.gz.my%2Fdocs.load-state"
    assert default_checkpoint_path("docs", [stdin]) == Path("docs.load-state")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert default_checkpoint_path("docs", [file]) == Path("docs.load-state")


INDEX = IndexState("docs", {}, {"index.uuid": "uuid"})
META = VectorFieldMeta(fingerprint="model", model="", dimensions=1, index_type="")
TARGETS = (EmbeddingTarget("embedding", TextTemplate.parse("{text}"), META),)
# As earlier versions wrote them, whose files had a sheet and a decimal mark too.
EARLIER = (
    b'{"fields":[["embedding","{text}",null]],"file_options":[null,null,null,null,[],null],'
    b'"fingerprint":"model","id_field":"id","index_uuid":"uuid","routing_field":null}'
)
EARLIER_OPTIONS = (
    b'{"fields":[["embedding","{text}",null]],"file_options":["csv",";",null,null,[],null],'
    b'"fingerprint":"model","id_field":"id","index_uuid":"uuid","routing_field":null}'
)


class Plan:
    """The part of a plan that tells which load it is."""

    def __init__(self, **settings: Any) -> None:
        self.settings = IngestSettings(index="docs", files=("a.csv",), id_field="id", **settings)


def packed(**settings: Any) -> bytes:
    return _packed(_identity(cast(LoadPlan, Plan(**settings)), INDEX, TARGETS))


def test_identity_is_that_of_an_earlier_version() -> None:
    assert packed() == EARLIER
    assert packed(format=FileFormat.CSV, delimiter=";") == EARLIER_OPTIONS
