"""Near-duplicates found by the index's kNN are those of all pairs, also while others write."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from es_sbert.analysis import duplicate_groups, read_index, search_duplicates
from es_sbert.analysis.duplicates import DuplicateGroup, DuplicateSearchResult
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.errors import OutputError, UsageError
from tests.engine.ingest_support import Loads, bulk, open_engine, update
from tests.faulty_proxy import FaultyProxy, answer, cut_before
from tests.raised import raises_as_recorded

pytestmark = pytest.mark.one_engine

THRESHOLD = 0.995


def texts(count: int) -> list[dict[str, Any]]:
    """Documents, some with nearly the same text and some with identical text."""
    words = ["cat", "guitar", "query", "passage", "man", "mat", "sleeps", "plays", "the", "on", "is", "a"]
    random = np.random.default_rng(3)
    found: list[dict[str, Any]] = []
    for number in range(count):
        text = " ".join(random.choice(words, size=6))
        if number % 5 == 1:
            text = found[-1]["text"] + " ."
        elif number % 7 == 3:
            text = found[-3]["text"]
        found.append({"id": f"d{number:03}", "text": text, "even": number % 2 == 0})
    return found


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many pages of an index that is soon loaded."""
    monkeypatch.setattr("es_sbert.analysis.duplicates._PAGE", 16)
    monkeypatch.setattr("es_sbert.analysis.duplicates._SEARCHES_PER_REQUEST", 7)


@pytest.fixture
def index(tiny_loads: Loads) -> str:
    """An index of 120 documents."""
    tiny_loads.load(tiny_loads.write(texts(120)), id_field="id")
    return tiny_loads.index


def search(
    engine: Engine, index: str, on_progress: Callable[[int, int], None] = lambda *_: None, min_cosine: float = THRESHOLD
) -> DuplicateSearchResult:
    options: dict[str, Any] = {"num_candidates": 1000, "fields": ["even"], "on_progress": on_progress}
    return search_duplicates(index, engine, "embedding", min_cosine, retry_seconds=30, **options)


# The kept document of each group, and the members with their cosines.
Named = list[tuple[str, list[tuple[str, float]]]]


def by_ids(ids: Sequence[str], groups: Iterable[DuplicateGroup]) -> Named:
    return [
        (ids[group.kept], [(ids[one], cosine) for one, cosine in zip(group.members, group.cosines, strict=True)])
        for group in groups
    ]


def named(found: DuplicateSearchResult) -> Named:
    return by_ids(found.texts.ids, found.groups)


def exact(engine: Engine, index: str, min_cosine: float = THRESHOLD, filter: Json | None = None) -> Named:
    """The same from all pairs."""
    engine.refresh(index)
    every = read_index(index, engine, "embedding", filter=filter)
    return by_ids(every.ids, duplicate_groups(every.vectors, min_cosine, starts=every.starts))


def members(groups: Named) -> list[list[str]]:
    return sorted(sorted(name for name, _ in group) for _, group in groups)


def test_groups_and_cosines_match_all_pairs(engine: Engine, index: str) -> None:
    progress: list[tuple[int, int]] = []
    found = search(engine, index, lambda *counts: progress.append(counts))
    expected = exact(engine, index)
    assert len(expected) > 5
    assert named(found) == expected
    assert found.compared == 120
    assert (progress[0], progress[-1]) == ((16, 120), (120, 120))
    assert [value["even"] for value in found.texts.values] == [int(name[1:]) % 2 == 0 for name in found.texts.ids]


def test_more_near_duplicates_than_fit_into_memory_are_refused(
    engine: Engine, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("es_sbert.analysis.duplicates.MAX_FOUND_BYTES", 1000)
    with raises_as_recorded(UsageError):
        search(engine, index)


def test_copies_that_the_search_misses_are_found(engine: Engine, index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("es_sbert.analysis.duplicates.search_body", lambda *_: {"query": {"match_none": {}}})
    assert named(search(engine, index, min_cosine=1)) == exact(engine, index, 1) != []


def test_temporary_file_that_cannot_be_written_is_named(
    engine: Engine, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = sqlite3.connect("", isolation_level=None)
    full.execute("PRAGMA max_page_count = 2")
    full.execute("PRAGMA page_size = 512")
    monkeypatch.setattr("sqlite3.connect", lambda *_, **__: full)
    with raises_as_recorded(OutputError):
        search(engine, index)


def test_many_copies_do_not_hide_other_near_duplicates(
    engine: Engine, index: str, tiny_loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("es_sbert.analysis.duplicates._NEIGHBORS", 3)
    copies = [{"id": f"copy{number:03}", "text": "a man plays the guitar on a mat"} for number in range(70)]
    near = {"id": "near", "text": "a man plays the guitar on a mat ."}
    tiny_loads.load(tiny_loads.write([*copies, near]), id_field="id")
    found = named(search(engine, index, min_cosine=0.97))
    assert found == exact(engine, index, 0.97)
    [group] = [group for group in members(found) if "copy000" in group]
    assert {*group} >= {f"copy{number:03}" for number in range(70)} | {"near"}


def test_chunked_documents_match_by_best_chunks(engine: Engine, tiny_loads: Loads) -> None:
    documents = [
        {"id": one["id"], "text": f"{one['text']}. " * 3 + two["text"], "even": True}
        for one, two in zip(texts(40), texts(60)[20:], strict=True)
    ]
    tiny_loads.load(tiny_loads.write(documents), id_field="id", passages=16, passage_overlap=2)
    assert named(search(engine, tiny_loads.index)) == exact(engine, tiny_loads.index) != []


def test_filtered_alias_searches_only_its_documents(
    engine: Engine, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("es_sbert.analysis.duplicates._NEIGHBORS", 1)
    alias, filter = f"{index}-even", {"term": {"even": True}}
    engine.update_aliases([{"add": {"index": index, "alias": alias, "filter": filter}}])
    found = search(engine, alias)
    assert named(found) == exact(engine, index, filter=filter) == exact(engine, alias) != []
    assert found.compared == 60


def test_concurrent_writes_lose_no_pair(engine: Engine, index: str, tiny_loads: Loads) -> None:
    """The first of several copies, which alone was searched for, is deleted or becomes another text's copy."""
    text = "a man plays the guitar on a mat"
    copies = [{"id": f"same{number}", "text": text, "even": True} for number in range(4)]
    tiny_loads.load(tiny_loads.write(copies), id_field="id")
    before = tiny_loads.contents()
    moved: list[bool] = []

    def meddle(done: int, total: int) -> None:
        if done == 124 and not moved:
            moved.append(True)
            bulk(engine, index, {"delete": {"_id": "same0"}}, {"delete": {"_id": "d001"}})
            update(engine, index, {"same1": {"embedding": before["d050"]["embedding"]}})
            engine.refresh(index)

    found = search(engine, index, meddle)
    assert moved
    assert members(named(found)) == members(exact(engine, index))


def test_shards_routings_and_small_result_window(engine: Engine, tiny_loads: Loads) -> None:
    index = tiny_loads.index
    settings: dict[str, Any] = {"number_of_shards": 3, "number_of_replicas": 0}
    if engine.info.engine_type == "opensearch":
        settings["index.knn"] = True
    engine.create_index(index, {"settings": settings})
    tiny_loads.load(tiny_loads.write(texts(60)), id_field="id")
    source = {key: value for key, value in tiny_loads.contents()["d000"].items() if key != "_version"}
    bulk(engine, index, {"index": {"_id": "d000", "routing": "elsewhere"}}, source)
    engine.refresh(index)
    engine.put_settings(index, {"index.max_result_window": "12"})
    found = search(engine, index)
    assert members(named(found)) == members(exact(engine, index))
    twice = [position for position, name in enumerate(found.texts.ids) if name == "d000"]
    assert {found.texts.versions[position].routing for position in twice} == {None, "elsewhere"}


def test_transient_failures_are_retried(engine_url: str, index: str) -> None:
    faults = [cut_before, answer(503), answer(429)]
    with FaultyProxy(engine_url, faults=list(faults), paths="/_msearch") as proxy, open_engine(proxy.url) as engine:
        found = search(engine, index)
        assert not proxy.faults
        assert named(found) == exact(engine, index)
