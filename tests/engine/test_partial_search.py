"""Searches of which a shard is missing: an error with its reason, or on request the hits of the others."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert import SemanticIndex
from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.errors import RequestFailed
from tests.conftest import delete_index
from tests.e2e.cli_support import cli_in_process
from tests.engine.ingest_support import ask
from tests.raised import raises_as_recorded
from tests.shared import alone_on_engines, folder_of_run
from tests.tiny import write_tiny_bert

pytestmark = pytest.mark.one_engine

QUERY = "the cat sleeps"
TEXTS = ["a man plays guitar", "the cat sleeps on the mat", "the man sleeps"]


@pytest.fixture(scope="module")
def names(engine_url: str, tiny: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """An index with three documents, and one whose only shard no node may hold: the engine's health is red."""
    here = f"test-partial-{uuid.uuid4().hex[:12]}"
    lost = f"{here}-lost"
    with alone_on_engines(folder_of_run(tmp_path_factory)), closing(connect(EngineSettings(url=engine_url))) as engine:
        try:
            with SemanticIndex.create(here, engine, encoder=tiny, shards=1, text_template="{text}") as index:
                documents = ({"id": str(number), "text": text} for number, text in enumerate(TEXTS))
                assert index.add(documents, id_field="id").indexed == len(TEXTS)
            state = engine.get_index(here)
            assert state is not None
            settings = {"index.routing.allocation.require._name": "nowhere", "index.number_of_shards": 1}
            if "index.knn" in state.settings:
                settings["index.knn"] = state.settings["index.knn"]
            body = {"settings": settings, "mappings": state.mappings}
            ask(engine, "PUT", f"/{lost}", {"wait_for_active_shards": "0"}, body)
            yield [here, lost]
        finally:
            for name in (here, lost):
                delete_index(engine_url, name)


@pytest.fixture
def both(engine_url: str, names: list[str], tiny: Encoder) -> Iterator[SemanticIndex]:
    with SemanticIndex(names, engine_url, encoder=tiny) as index:
        yield index


SEARCHES: dict[str, Callable[..., Any]] = {
    "text": lambda index, **more: index.search(QUERY, 5, **more),
    "vector": lambda index, **more: index.search_vector(index.encoder.embed_query(QUERY), 5, **more),
    "hybrid": lambda index, **more: index.hybrid(QUERY, 5, **more),
    "similar": lambda index, **more: index.similar_to("1", 5, **more),
}


@pytest.mark.parametrize("search", SEARCHES)
def test_partial_answer_is_an_error_unless_it_is_allowed(both: SemanticIndex, names: list[str], search: str) -> None:
    with raises_as_recorded(RequestFailed):
        SEARCHES[search](both)
    result = SEARCHES[search](both, allow_partial=True)
    assert {hit.id for hit in result} == ({"0", "2"} if search == "similar" else {"0", "1", "2"})
    assert {hit.index for hit in result} == {names[0]}
    assert (result.partial.failed, result.partial.total, result.partial.timed_out) == (1, 2, False)
    assert "no active copy" in str(result.partial)


def test_complete_result_is_not_partial(engine_url: str, names: list[str], tiny: Encoder) -> None:
    with SemanticIndex(names[0], engine_url, encoder=tiny) as index:
        assert [search(index, allow_partial=True).partial for search in SEARCHES.values()] == [None] * 4


def test_document_that_a_missing_shard_may_hold_is_not_called_missing(both: SemanticIndex) -> None:
    with raises_as_recorded(RequestFailed):
        both.similar_to("unknown", allow_partial=True)


def test_command_warns_and_marks_hits_of_a_partial_result(
    engine_url: str,
    names: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    alias = f"{names[0]}-both"
    with closing(connect(EngineSettings(url=engine_url))) as engine:
        engine.update_aliases([{"add": {"index": name, "alias": alias}} for name in names])
    cli = cli_in_process(capfd)
    model = write_tiny_bert(tmp_path / "tiny")
    arguments = ("search", "--index", alias, "--url", engine_url, "--model", model, "--json", QUERY)
    refused = cli(*arguments)
    assert (refused.code, refused.out) == (2, "")
    assert "no active copy" in refused.err
    done = cli(*arguments, "--allow-partial")
    assert done.code == 0, done.err
    assert [orjson.loads(line)["partial"] for line in done.out.splitlines()] == [True] * 3
    assert "Warning: the result is partial: 1 of 2 shards failed (" in done.err
    assert "no active copy)" in done.err
