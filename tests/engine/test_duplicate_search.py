"""Near-duplicates found by the index's kNN are those of all pairs, also while others write."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from es_sbert.analysis import duplicate_groups, read_index, search_duplicates
from es_sbert.analysis.duplicates import DuplicateSearchResult
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import RetryPolicy, make_retrier
from es_sbert.errors import OutputError, UsageError
from tests.engine.ingest_support import contents, load, open_engine, write_jsonl
from tests.faulty_proxy import FaultyProxy, answer, cut_before

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
def index(engine_url: str, index_name: str, tiny: Encoder, tmp_path: Path) -> str:
    """An index of 120 documents."""
    path = write_jsonl(tmp_path / "docs.jsonl", texts(120))
    load(engine_url, tiny, index_name, path, dead=tmp_path / "dead", id_field="id")
    return index_name


def search(
    engine: Engine,
    index: str,
    on_progress: Callable[[int, int], None] = lambda *_: None,
    min_cosine: float = THRESHOLD,
) -> DuplicateSearchResult:
    retrying = make_retrier(RetryPolicy(30, first=0.01), lambda reason: None)
    return search_duplicates(
        engine,
        index,
        "embedding",
        min_cosine,
        num_candidates=1000,
        fields=["even"],
        on_progress=on_progress,
        retrying=retrying,
    )


def named(found: DuplicateSearchResult) -> list[tuple[str, list[tuple[str, float]]]]:
    """Groups by ids: the kept document, and the members with their cosines."""
    return [
        (
            found.texts.ids[group.kept],
            [(found.texts.ids[one], cosine) for one, cosine in zip(group.members, group.cosines, strict=True)],
        )
        for group in found.groups
    ]


def exact(
    engine: Engine, index: str, min_cosine: float = THRESHOLD, filter: Json | None = None
) -> list[tuple[str, list[tuple[str, float]]]]:
    """The same from all pairs."""
    engine.refresh(index)
    every = read_index(engine, index, "embedding", filter=filter)
    return [
        (
            every.ids[group.kept],
            [(every.ids[one], cosine) for one, cosine in zip(group.members, group.cosines, strict=True)],
        )
        for group in duplicate_groups(every.vectors, min_cosine, starts=every.starts)
    ]


def update(engine: Engine, index: str, *lines: Json) -> None:
    results = engine.bulk(index, b"".join(orjson.dumps(line) + b"\n" for line in lines))
    assert all(result.ok for result in results)


def test_groups_and_cosines_match_all_pairs(engine: Engine, index: str, tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    found = search(engine, index, lambda *counts: progress.append(counts))
    expected = exact(engine, index)
    assert len(expected) > 5
    assert named(found) == expected
    pairs = sum(len(members) for _, members in expected)
    assert pairs > 20
    assert found.compared == 120
    assert (progress[0], progress[-1]) == ((16, 120), (120, 120))
    assert dict(zip(found.texts.ids, [value["even"] for value in found.texts.values], strict=True)) == {
        name: int(name[1:]) % 2 == 0 for name in found.texts.ids
    }


def test_more_near_duplicates_than_fit_into_memory_are_refused(
    engine: Engine, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("es_sbert.analysis.duplicates.MAX_FOUND_BYTES", 1000)
    with pytest.raises(UsageError, match="do not fit into 1.0 kB of memory\n  Analyze a part"):
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
    with pytest.raises(OutputError, match=r"is full\n  Free disk space"):
        search(engine, index)


def test_many_copies_do_not_hide_other_near_duplicates(
    engine: Engine, engine_url: str, index: str, tiny: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("es_sbert.analysis.duplicates._NEIGHBORS", 3)
    copies = [{"id": f"copy{number:03}", "text": "a man plays the guitar on a mat"} for number in range(70)]
    near = {"id": "near", "text": "a man plays the guitar on a mat ."}
    path = write_jsonl(tmp_path / "more.jsonl", [*copies, near])
    load(engine_url, tiny, index, path, dead=tmp_path / "dead", id_field="id")
    found = search(engine, index, min_cosine=0.97)
    assert named(found) == exact(engine, index, 0.97)
    [group] = [{name for name, _ in members} for _, members in named(found) if "copy000" in dict(members)]
    assert group >= {f"copy{number:03}" for number in range(70)} | {"near"}


def test_chunked_documents_match_by_best_chunks(
    engine: Engine, engine_url: str, index_name: str, tiny: Encoder, tmp_path: Path
) -> None:
    documents = [
        {"id": one["id"], "text": f"{one['text']}. " * 3 + two["text"], "even": True}
        for one, two in zip(texts(40), texts(60)[20:], strict=True)
    ]
    path = write_jsonl(tmp_path / "docs.jsonl", documents)
    options: dict[str, Any] = {"id_field": "id", "passages": 16, "passage_overlap": 2}
    load(engine_url, tiny, index_name, path, dead=tmp_path / "dead", **options)
    found = search(engine, index_name)
    assert named(found) == exact(engine, index_name) != []


def test_filtered_alias_searches_only_its_documents(
    engine: Engine, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("es_sbert.analysis.duplicates._NEIGHBORS", 1)
    alias, filter = f"{index}-even", {"term": {"even": True}}
    engine.update_aliases([{"add": {"index": index, "alias": alias, "filter": filter}}])
    found = search(engine, alias)
    assert named(found) == exact(engine, index, filter=filter) == exact(engine, alias) != []
    assert found.compared == 60


def test_pairs_changed_during_search_are_those_of_the_new_vectors(engine: Engine, engine_url: str, index: str) -> None:
    before = contents(engine_url, index)
    moved: list[bool] = []

    def meddle(done: int, total: int) -> None:
        """Changes half of the documents once all were compared."""
        if done == 120 and not moved:
            moved.append(True)
            ids = sorted(before)[60:]
            for name, other in zip(ids, ids[1:] + ids[:1], strict=True):
                update(engine, index, {"update": {"_id": name}}, {"doc": {"embedding": before[other]["embedding"]}})
            engine.refresh(index)

    found = search(engine, index, meddle)
    assert moved
    near = {frozenset(name for name, _ in members) for _, members in exact(engine, index)}
    assert all(any({name for name, _ in members} <= group for group in near) for _, members in named(found))


def test_concurrent_writes_lose_no_pair_and_are_counted(
    engine: Engine, engine_url: str, index: str, tiny: Encoder, tmp_path: Path
) -> None:
    """The first of several copies, which alone was searched for, is deleted or becomes another text's copy."""
    text = "a man plays the guitar on a mat"
    copies = [{"id": f"same{number}", "text": text, "even": True} for number in range(4)]
    path = write_jsonl(tmp_path / "more.jsonl", copies)
    load(engine_url, tiny, index, path, dead=tmp_path / "dead", id_field="id")
    before = contents(engine_url, index)
    moved: list[bool] = []

    def meddle(done: int, total: int) -> None:
        if done == 124 and not moved:
            moved.append(True)
            update(
                engine,
                index,
                {"delete": {"_id": "same0"}},
                {"delete": {"_id": "d001"}},
                {"update": {"_id": "same1"}},
                {"doc": {"embedding": before["d050"]["embedding"]}},
                {"index": {"_id": "new"}},
                {key: value for key, value in before["d060"].items() if key != "_version"},
            )
            engine.refresh(index)

    found = search(engine, index, meddle)
    assert moved
    without_new = {"bool": {"must_not": [{"ids": {"values": ["new"]}}]}}
    groups = [[name for name, _ in members if name != "new"] for _, members in named(found)]
    assert sorted(group for group in groups if len(group) > 1) == sorted(
        [name for name, _ in members] for _, members in exact(engine, index, filter=without_new)
    )


def test_shards_routings_and_small_result_window(
    engine: Engine, engine_url: str, index_name: str, tiny: Encoder, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"number_of_shards": 3, "number_of_replicas": 0}
    if engine.info.engine_type == "opensearch":
        settings["index.knn"] = True
    engine.create_index(index_name, {"settings": settings})
    path = write_jsonl(tmp_path / "docs.jsonl", texts(60))
    load(engine_url, tiny, index_name, path, dead=tmp_path / "dead", id_field="id")
    source = {key: value for key, value in contents(engine_url, index_name)["d000"].items() if key != "_version"}
    update(engine, index_name, {"index": {"_id": "d000", "routing": "elsewhere"}}, source)
    engine.refresh(index_name)
    engine.put_settings(index_name, {"index.max_result_window": "12"})
    found = search(engine, index_name)
    assert sorted(map(sorted, [[name for name, _ in members] for _, members in named(found)])) == sorted(
        map(sorted, [[name for name, _ in members] for _, members in exact(engine, index_name)])
    )
    twice = [position for position, name in enumerate(found.texts.ids) if name == "d000"]
    assert {found.texts.versions[position].routing for position in twice} == {None, "elsewhere"}


def test_transient_failures_are_retried(engine_url: str, index: str, tmp_path: Path) -> None:
    faults = [cut_before, answer(503), answer(429)]
    with FaultyProxy(engine_url, faults=list(faults), paths="/_msearch") as proxy, open_engine(proxy.url) as engine:
        found = search(engine, index)
        assert not proxy.faults
        assert named(found) == exact(engine, index)
