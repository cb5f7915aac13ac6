"""The first documents of a load decide whether it begins: wrong formats and misspelt fields write nothing at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.e2e.cli_support import Cli, Done, ingest_into
from tests.engine.ingest_support import contents, letters, open_engine, write_jsonl

pytestmark = pytest.mark.one_engine

DOCUMENTS: list[dict[str, Any]] = [
    {"id": f"d{number}", "title": f"the cat {number}", "body": "a man plays guitar", "meta": {"lang": "en"}}
    for number in range(20)
]
MISSPELT = ("--text-template", "{titel}. {body}")
RIGHT = ("--text-template", "{title}. {body}")
# What does not depend on the engine.
on_one_engine = pytest.mark.parametrize("engine_url", ["es9"], indirect=True)


@pytest.fixture
def index(engine_url: str, index_name: str) -> str:
    return index_name


@pytest.fixture
def ingest(cli: Cli, model: Path, engine_url: str, index: str) -> Callable[..., Done]:
    return ingest_into(cli, model, engine_url, index)


def state_of(url: str, index: str) -> Any:
    with open_engine(url) as engine:
        state = engine.get_index(index)
        return None if state is None else (state.mappings, engine.count(index))


def write_source(documents: Sequence[dict[str, Any]]) -> list[str]:
    """A file of the documents, as the argument that loads it."""
    write_jsonl(Path("d.jsonl"), documents)
    return ["d.jsonl"]


def test_misspelt_field_is_refused_before_writing(ingest: Callable[..., Done], engine_url: str, index: str) -> None:
    done = ingest(*write_source(DOCUMENTS), "--id-field", "id", *MISSPELT)
    assert (done.code, done.out) == (2, "")
    assert "titel" in done.err
    assert "Did you mean title? The documents have the fields id, title, body, meta.lang." in done.err
    assert state_of(engine_url, index) is None
    assert not list(Path().glob("*dead*")) + list(Path().glob("*state*"))


def test_misspelt_field_is_refused_for_index_source(ingest: Callable[..., Done], engine_url: str, index: str) -> None:
    bulk = b"".join(b'{"index":{"_id":"%d"}}\n' % n + orjson.dumps(d) + b"\n" for n, d in enumerate(DOCUMENTS))
    with open_engine(engine_url) as engine:
        assert all(result.ok for result in engine.bulk(index, bulk))
    before = state_of(engine_url, index)
    done = ingest(*MISSPELT)
    assert (done.code, done.out) == (2, "")
    assert "Did you mean title? The documents have the fields body, id, meta.lang, title." in done.err
    assert state_of(engine_url, index)[0] == before[0]
    assert ingest(*RIGHT).summary["indexed"] == 20
    # What has vectors of this text is right: nothing is asked of later documents.
    assert ingest().summary["unchanged"] == 20


@on_one_engine
def test_misspelt_field_keeps_dead_letters_on_retry(ingest: Callable[..., Done], engine_url: str, index: str) -> None:
    bad = {"id": "x", "title": ["a string", 7], "body": "a man"}
    ingest(*write_source([*DOCUMENTS, bad]), "--id-field", "id", *RIGHT)
    before = Path("dead.jsonl").read_bytes()
    with open_engine(engine_url) as engine:
        engine.delete_index(index)
    done = ingest("--retry", "dead.jsonl", *MISSPELT)
    assert (done.code, state_of(engine_url, index)) == (2, None)
    assert "Did you mean title?" in done.err
    assert Path("dead.jsonl").read_bytes() == before
    assert not Path("dead.jsonl.retried").exists()
    # Letters that fail again are letters again.
    done = ingest("--retry", "dead.jsonl", *RIGHT)
    assert (done.code, [letter["document"] for letter in letters(Path("dead.jsonl"))]) == (2, [bad])


@on_one_engine
def test_pipe_is_read_once(ingest: Callable[..., Done], engine_url: str, index: str) -> None:
    """A pipe is not opened a second time: the documents that were looked at are loaded too."""
    os.mkfifo("pipe.jsonl")
    data = b"".join(orjson.dumps(document) + b"\n" for document in DOCUMENTS)
    writer = threading.Thread(target=lambda: Path("pipe.jsonl").write_bytes(data))
    writer.start()
    done = ingest("pipe.jsonl", "--id-field", "id", *RIGHT)
    writer.join()
    assert done.summary["indexed"] == 20
    assert set(contents(engine_url, index)) == {document["id"] for document in DOCUMENTS}


class TestDryRun:
    """`--dry-run` shows what would be embedded and writes nothing."""

    def test_shows_documents_as_they_are_loaded(self, ingest: Callable[..., Done], engine_url: str, index: str) -> None:
        some = [*DOCUMENTS[:2], {"id": "d9", "title": "no body", "body": None}, {"id": "e", "title": "", "body": ""}]
        done = ingest(*write_source(some), "--id-field", "id", *RIGHT, "--dry-run", "4")
        shown = orjson.loads(done.out)
        assert done.code == 0
        assert [document["id"] for document in shown["documents"]] == ["d0", "d1", "d9", "e"]
        texts = [[text["text"] for text in document["texts"]] for document in shown["documents"]]
        assert texts == [["the cat 0. a man plays guitar"], ["the cat 1. a man plays guitar"], ["no body."], []]
        assert shown["documents"][2]["missing_fields"] == ["body"]
        assert shown["creates_index"]
        assert state_of(engine_url, index) is None
        assert [path.name for path in Path().iterdir()] == ["d.jsonl"]
        loaded = ingest(*write_source(some), "--id-field", "id", *RIGHT)
        assert loaded.summary["indexed"] == 3
        assert shown["changed_fields"] == ["embedding"]
        stored = contents(engine_url, index)
        for document in shown["documents"][:3]:
            [text] = document["texts"]
            assert text["tokens"] == stored[document["id"]]["embedding_meta"]["tokens"]

    def test_shows_embedding_in_place(self, ingest: Callable[..., Done], engine_url: str, index: str) -> None:
        with open_engine(engine_url) as engine:
            assert engine.bulk(index, b'{"index":{"_id":"a"}}\n{"text":"a cat"}\n')[0].ok
        before = state_of(engine_url, index)
        done = ingest("--dry-run", "3")
        shown = orjson.loads(done.out)
        [document] = shown["documents"]
        assert (document["id"], document["texts"][0]["text"]) == ("a", "a cat")
        assert not shown["creates_index"]
        assert shown["changed_fields"] == ["embedding"]
        assert state_of(engine_url, index)[0] == before[0]
        assert ingest().summary["indexed"] == 1
        assert orjson.loads(ingest("--dry-run").out)["changed_fields"] == []
