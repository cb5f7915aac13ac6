"""An index moved to another model behind its alias, on real engines: compared document by document."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import orjson
import pytest

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.types import Vectors
from es_sbert.engines.protocol import Engine, Flavour, Json
from es_sbert.errors import IndexMismatch, IndexMissing, UsageError
from es_sbert.index.ensure import read_vector_field
from es_sbert.index.load_settings import begin_load
from es_sbert.ingest.control import Control
from es_sbert.loading import load_encoder
from es_sbert.migration.ending import drop, roll_back
from es_sbert.migration.state import Phase, pointed_to, read_migration
from es_sbert.migration.target import target_name
from es_sbert.search.results import SearchResult
from es_sbert.search.semantic_index import SemanticIndex
from tests.engine.migration_support import Place, document, make_place, models, text_of

COUNT = 300


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Encoder, Encoder]]:
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_SBERT_CACHE", str(folder / "cache"))
        first, second = models(folder)
        with (
            load_encoder(str(first), precision="fp32", threads=1) as one,
            load_encoder(str(second), precision="fp32", threads=1) as two,
        ):
            yield one, two


@pytest.fixture
def place(engine: Engine, encoders: tuple[Encoder, Encoder], tmp_path: Path) -> Iterator[Place]:
    yield from make_place(engine, encoders[0], tmp_path / "dead.jsonl", COUNT)


@pytest.fixture
def place9(
    es9_url: str, open_engine: Callable[[str], Engine], encoders: tuple[Encoder, Encoder], tmp_path: Path
) -> Iterator[Place]:
    yield from make_place(open_engine(es9_url), encoders[0], tmp_path / "dead.jsonl", COUNT)


def everything() -> dict[str, Json]:
    return {str(number): document(number) for number in range(COUNT)}


@pytest.mark.parametrize("block_writes", [False, True])
def test_the_alias_goes_over_to_an_index_that_holds_the_same_with_new_vectors(
    place: Place, encoders: tuple[Encoder, Encoder], block_writes: bool
) -> None:
    second, engine = encoders[1], place.engine
    engine.update_aliases([{"add": {"index": place.index, "alias": f"{place.alias}-read",
                                    "filter": {"term": {"tags": "t1"}}}}])  # fmt: skip
    before = place.contents(place.index)
    result = place.migrate(second, block_writes=block_writes)
    assert (result.finished, result.copied, result.embedded, result.dead) == (True, COUNT, COUNT, 0)
    assert result.compared == 50
    assert place.behind() == result.target == f"{place.alias}-{second.info.fingerprint[:8]}"
    place.assert_holds(everything(), second)

    new, old = engine.get_index(result.target), engine.get_index(place.index)
    assert new is not None
    assert old is not None
    assert read_vector_field(engine, place.alias, "embedding").meta.text == "{text}"
    for setting in ("index.number_of_shards", "index.number_of_replicas", "index.refresh_interval", "index.gc_deletes"):
        assert new.settings.get(setting) == old.settings.get(setting), setting
    untouched = {"theirs", "number", "text", "version"}
    assert {name: new.mappings["properties"][name] for name in untouched} == {
        name: old.mappings["properties"][name] for name in untouched
    }
    aliases = engine.aliases(result.target)[result.target]
    assert aliases[place.alias]["is_write_index"] is True
    assert aliases[f"{place.alias}-read"]["filter"] == {"term": {"tags": "t1"}}

    # The old index is as it was, and stands until it is dropped.
    assert place.contents(place.index) == before
    assert engine.aliases(place.index)[place.index] == {}
    assert drop(engine, place.alias, lambda leaving: False) is None
    asked = []
    assert drop(engine, place.alias, lambda leaving: not asked.append(leaving)) == place.index
    assert (asked[0].index, asked[0].documents) == (place.index, COUNT)
    assert engine.get_index(place.index) is None
    with pytest.raises(IndexMismatch, match="no migration has made"):
        drop(engine, place.alias, lambda leaving: True)
    with pytest.raises(IndexMismatch, match="already"):
        place.migrate(second)


def test_what_changes_meanwhile_is_caught_up_with(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    """Writes at every step of the migration, the last of them between the last round and the swap."""
    expected = everything()
    steps: list[str] = []

    class Meddling:
        """An engine between whose calls other writers are at work."""

        def __init__(self, engine: Engine) -> None:
            self._engine = engine

        def __getattr__(self, name: str) -> object:
            if name in ("create_index", "update_aliases", "sequence_numbers"):
                meddle(name)
            return getattr(self._engine, name)

    def meddle(step: str) -> None:
        number = len(steps)
        steps.append(step)
        new, changed, gone = f"new-{number}", str(3 * number), str(3 * number + 7)
        sources = {new: document(1000 + number), changed: document(3 * number, version=1)}
        place.write(sources)
        place.delete(gone)
        expected.update(sources)
        expected.pop(gone, None)

    engine = place.engine
    place.engine = Meddling(engine)  # type: ignore[assignment]
    result = place.migrate(encoders[1])
    place.engine = engine
    assert "update_aliases" in steps
    assert result.late > 0
    assert result.removed > 0
    place.embed(encoders[1], place.alias)  # what other writers have put into the new index itself
    place.assert_holds(expected, encoders[1])


def test_after_the_swap_the_new_index_has_the_last_word(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    """Documents written in the old index's last moment, and then again, or deleted, in the new one."""
    expected = everything()
    engine = place.engine
    late = {name: document(500 + number) for number, name in enumerate(["fresh", "again", "gone", "1", "2", "3"])}

    class Swapping:
        def __init__(self, engine: Engine) -> None:
            self._engine = engine

        def __getattr__(self, name: str) -> object:
            return getattr(self._engine, name)

        def update_aliases(self, actions: list[Json]) -> None:
            place.write(late)
            self._engine.update_aliases(actions)
            place.write({"again": document(601), "2": document(602)})
            place.delete("gone", "3", "4")

    place.engine = Swapping(engine)  # type: ignore[assignment]
    result = place.migrate(encoders[1])
    place.engine = engine
    assert result.late == len(late)
    expected |= late | {"again": document(601), "2": document(602)}
    for name in ("gone", "3", "4"):
        del expected[name]
    place.embed(encoders[1], place.alias)
    place.assert_holds(expected, encoders[1])


def test_blocked_writers_are_told_and_the_block_goes_where_the_swap_fails(
    place: Place, encoders: tuple[Encoder, Encoder]
) -> None:
    engine = place.engine

    class Failing:
        def __init__(self, engine: Engine) -> None:
            self._engine = engine

        def __getattr__(self, name: str) -> object:
            return getattr(self._engine, name)

        def update_aliases(self, actions: list[Json]) -> None:
            [refused] = self._engine.bulk(place.alias, b'{"index":{"_id":"x"}}\n{"text":"man"}\n')
            assert refused.status == 403
            raise IndexMismatch("no swap today", "Wait.")

    place.engine = Failing(engine)  # type: ignore[assignment]
    with pytest.raises(IndexMismatch, match="no swap today"):
        place.migrate(encoders[1], block_writes=True)
    place.engine = engine
    place.write({"x": document(700)})
    result = place.migrate(encoders[1], block_writes=True)
    assert (result.resumed, result.finished) == (True, True)
    place.assert_holds(everything() | {"x": document(700)}, encoders[1])
    [refused] = engine.bulk(place.index, b'{"index":{"_id":"y"}}\n{"text":"man"}\n')
    assert refused.status == 403


def test_a_stopped_migration_goes_on_and_one_given_up_leaves_nothing(
    place: Place, encoders: tuple[Encoder, Encoder]
) -> None:
    control = Control()
    control.interrupt()
    stopped = place.migrate(encoders[1], control=control)
    assert (stopped.finished, stopped.exit_code, place.behind()) == (False, 130, place.index)
    state = place.engine.get_index(stopped.target)
    assert state is not None
    note = read_migration(state)
    assert note is not None
    assert note.phase is Phase.COPYING
    with pytest.raises(IndexMismatch, match="with another name or model"):
        place.migrate(encoders[1], name=f"{place.alias}-other")

    assert roll_back(place.engine, place.alias) == stopped.target
    assert place.engine.get_index(stopped.target) is None
    old = place.engine.get_index(place.index)
    assert old is not None
    assert pointed_to(old) is None
    assert roll_back(place.engine, place.alias) is None
    place.assert_holds(everything(), encoders[0])

    again = place.migrate(encoders[1], control=control)
    assert not again.finished
    finished = place.migrate(encoders[1])
    assert (finished.resumed, finished.finished) == (True, True)
    place.assert_holds(everything(), encoders[1])
    with pytest.raises(IndexMismatch, match="already"):
        place.migrate(encoders[1])


def test_an_index_without_an_alias_becomes_one(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    engine = place.engine
    engine.update_aliases([{"remove": {"index": place.index, "alias": place.alias}}])
    alias, place.alias = place.alias, place.index
    with pytest.raises(UsageError, match="is an index, not an alias") as caught:
        place.migrate(encoders[1])
    assert "--replace-index" in caught.value.remedy
    result = place.migrate(encoders[1], replace_index=True)
    assert (result.finished, result.dropped) == (True, True)
    assert place.behind() == result.target != place.index
    place.assert_holds(everything(), encoders[1])
    with pytest.raises(UsageError, match="an alias already"):
        place.migrate(encoders[0], replace_index=True)
    engine.update_aliases([{"add": {"index": result.target, "alias": alias}}])
    place.alias = alias


def test_another_index_type_of_the_same_model_is_a_migration_too(
    place: Place, encoders: tuple[Encoder, Encoder]
) -> None:
    result = place.migrate(encoders[0], index_type="int8_hnsw")
    assert result.finished
    assert read_vector_field(place.engine, place.alias, "embedding").meta.index_type == "int8_hnsw"
    place.assert_holds(everything(), encoders[0])
    back = place.migrate(encoders[0], index_type="hnsw")
    assert back.target == f"{result.target}-2"
    place.assert_holds(everything(), encoders[0])
    place.engine.delete_index(result.target)


def test_documents_that_cannot_be_embedded_are_copied_and_named(
    place: Place, encoders: tuple[Encoder, Encoder]
) -> None:
    place.write({"bad": {"text": ["no", "string"], "number": 1}, "empty": {"text": "", "number": 2}})
    result = place.migrate(encoders[1])
    assert (result.finished, result.dead, result.exit_code) == (True, 1, 1)
    assert "bad" in place.dead.read_text()
    found = place.contents()
    assert found["bad"]["text"] == ["no", "string"]
    assert "embedding" not in found["bad"]
    assert len(found) == COUNT + 2


def test_an_index_that_somebody_else_has_spoilt_is_not_swapped(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    engine = place.engine
    target = target_name(place.alias, encoders[1].info.fingerprint, place.index)

    class Spoiling:
        def __init__(self, engine: Engine) -> None:
            self._engine = engine

        def __getattr__(self, name: str) -> object:
            return getattr(self._engine, name)

        def count(self, name: str, query: Json | None = None) -> int:
            if name == target:
                vector = [1.0] * 15 + [-1.0]
                lines = [{"update": {"_id": str(number)}} for number in range(COUNT) if number % 10 != 7]
                body = b"".join(json_line(head) + json_line({"doc": {"embedding": vector}}) for head in lines)
                assert all(result.ok for result in self._engine.bulk(target, body))
                self._engine.refresh(target)
            return self._engine.count(name, query)

    place.engine = Spoiling(engine)  # type: ignore[assignment]
    with pytest.raises(IndexMismatch, match="is not the one that"):
        place.migrate(encoders[1])
    place.engine = engine
    assert place.behind() == place.index


def json_line(value: Json) -> bytes:
    return orjson.dumps(value) + b"\n"


def test_what_cannot_be_migrated_is_refused_and_nothing_is_changed(
    place9: Place, encoders: tuple[Encoder, Encoder], fresh_index: Callable[[str], str]
) -> None:
    place, engine, second = place9, place9.engine, encoders[1]
    before = engine.get_index(place.index)
    alias, place.alias = place.alias, "test-no-such-alias"
    with pytest.raises(IndexMissing):
        place.migrate(second)
    place.alias = alias
    with pytest.raises(IndexMismatch, match="already"):
        place.migrate(encoders[0])
    with pytest.raises(UsageError, match="no index type"):
        place.migrate(second, index_type="int9")
    with pytest.raises(UsageError, match="needs at least 64 dimensions"):
        place.migrate(second, index_type="bbq_hnsw")
    taken = fresh_index(engine.info.url)
    engine.create_index(taken, {})
    with pytest.raises(IndexMismatch, match="is there already"):
        place.migrate(second, name=taken)
    assert engine.get_index(place.index) == before
    assert before is not None
    begin_load(engine, before)
    with pytest.raises(IndexMismatch, match="a load is under way") as caught:
        place.migrate(second)
    assert "es-sbert index repair" in caught.value.remedy


def test_two_at_once_do_not_get_into_each_other_s_way(place9: Place, encoders: tuple[Encoder, Encoder]) -> None:
    place, errors, results = place9, [], []
    start = threading.Barrier(2)

    def go() -> None:
        start.wait()
        try:
            results.append(place.migrate(encoders[1]))
        except (UsageError, IndexMismatch) as error:
            errors.append(error)

    threads = [threading.Thread(target=go) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.finished for result in results] == [True]
    assert len(errors) == 1
    place.assert_holds(everything(), encoders[1])


def test_an_open_search_follows_the_alias_once_the_old_index_is_dropped(
    place: Place, encoders: tuple[Encoder, Encoder]
) -> None:
    first, second = encoders
    with (
        SemanticIndex(place.alias, place.engine, precision="fp32", threads=1) as by_mapping,
        SemanticIndex(place.alias, place.engine, encoder=first) as by_encoder,
    ):
        assert by_mapping.search("a man plays", k=3).hits[0].index == place.index
        vector = by_mapping.encoder.encode(["a man plays"], "query").vectors[0]
        result = place.migrate(second)
        # The old index still stands: both may go on with it.
        assert by_encoder.search("a man plays", k=3).hits[0].index == place.index
        drop(place.engine, place.alias, lambda leaving: True)
        hits = by_mapping.search("a man plays", k=3).hits
        assert hits[0].index == result.target
        assert by_mapping.field.meta.fingerprint == second.info.fingerprint
        query = second.encode(["a man plays"], "query").vectors[0]
        for hit in hits:
            expected = second.encode([hit.source["text"]], "document").vectors[0]
            assert hit.cosine == pytest.approx(float(np.dot(query, expected)), abs=1e-5)
        with pytest.raises(IndexMismatch, match="not of"):
            by_encoder.search("a man plays", k=3)
        # A vector of the old model may not be compared with anything any more.
        with SemanticIndex(place.alias, place.engine, encoder=second) as fresh:
            assert fresh.search("a man plays", k=3).hits == hits
        assert vector.shape == (16,)


def test_settings_and_flavours_are_those_of_the_old_index(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    result = place.migrate(encoders[1], name=f"{place.alias}-v2")
    assert result.target == f"{place.alias}-v2"
    state = place.engine.get_index(place.alias)
    assert state is not None
    if place.engine.info.flavour is Flavour.OPENSEARCH:
        assert state.settings["index.knn"] == "true"
    assert "load" not in state.mappings["_meta"]["es_sbert"]


def test_searches_go_on_all_the_time_and_never_mix_models(
    engine: Engine, encoders: tuple[Encoder, Encoder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 searches a second from before the migration until after the old index is dropped; every hit is checked."""
    monkeypatch.setattr("es_sbert.search.following.FOLLOW_SECONDS", 0.5)
    made = make_place(engine, encoders[0], tmp_path / "dead.jsonl", count=1500)
    place = next(made)
    by_fingerprint = {encoder.info.fingerprint: encoder for encoder in encoders}
    over = threading.Event()
    answers: list[tuple[str, SearchResult]] = []
    errors: list[Exception] = []

    def search(number: int) -> None:
        with SemanticIndex(place.alias, EngineSettings(url=engine.info.url), precision="fp32", threads=1) as index:
            while not over.is_set():
                begin = time.monotonic()
                text = text_of(number)
                number += 4
                try:
                    answers.append((text, index.search(text, k=5)))
                except Exception as error:  # whatever it is, the test must see it
                    errors.append(error)
                over.wait(max(0.0, 0.2 - (time.monotonic() - begin)))

    with ThreadPoolExecutor(4) as pool:
        searches = [pool.submit(search, number) for number in range(4)]
        try:
            wait_until(lambda: len(answers) >= 20 or bool(errors))
            before = len(answers)
            result = place.migrate(encoders[1])
            during = len(answers) - before
            wait_until(
                lambda: bool(errors) or {hit.index for _, found in answers[-8:] for hit in found} == {result.target}
            )
            drop(engine, place.alias, lambda leaving: True)
            after = len(answers)
            wait_until(lambda: len(answers) >= after + 40 or bool(errors))
        finally:
            over.set()
    for done in searches:
        done.result()
    assert errors == []
    assert result.finished
    assert during > 0
    model_of = {place.index: encoders[0], result.target: encoders[1]}
    vectors: dict[tuple[str, str], Vectors] = {}

    def vector(encoder: Encoder, text: str) -> Vectors:
        key = (encoder.info.fingerprint, text)
        if key not in vectors:
            vectors[key] = encoder.encode([text], "query").vectors[0]  # the models have no prompts
        return vectors[key]

    for text, found in answers:
        [index] = {hit.index for hit in found}
        encoder = model_of[index]
        assert len(found) == 5
        for hit in found:
            meta = hit.source["embedding_meta"]
            assert by_fingerprint[meta["fingerprint"]] is encoder
            cosine = float(np.dot(vector(encoder, text), vector(encoder, hit.source["text"])))
            assert hit.cosine == pytest.approx(cosine, abs=1e-4)
    assert indices(answers) == set(model_of)
    next(made, None)


def indices(answers: list[tuple[str, SearchResult]]) -> set[str]:
    return {hit.index for _, found in answers for hit in found}


def wait_until(happened: Callable[[], bool]) -> None:
    """Generous: the machine may be slow."""
    deadline = time.monotonic() + 180
    while not happened():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)
