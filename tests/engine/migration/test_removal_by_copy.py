"""`es-sbert index remove --reindex`: a new index without anything of es-sbert, and the way back."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.index_state import IndexState
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.index.derived_fields import is_within, mapped_fields
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.migration.alias_swap import drop_old_index, roll_back
from es_sbert.migration.rollback import list_kept
from tests.conftest import also_opensearch2
from tests.engine.migration.support import COUNT, Overheard, Place, document, everything, indices_of, killed_before
from tests.engine.migration.test_rollback import OURS, is_blocked, write_since
from tests.engine.test_remove_vectors import RESULT, add_result_field, spelled
from tests.random_writer import RandomWriters, differences, shared_documents

pytestmark = pytest.mark.one_engine

Encoders = tuple[Encoder, Encoder]


def index_state(place: Place, name: str | None = None) -> IndexState:
    state = place.engine.get_index(name or place.alias)
    assert state is not None
    return state


def plain_contents(place: Place) -> dict[str, dict[str, Any]]:
    contents = place.contents()
    for source in contents.values():
        source.pop("_routing")
    return contents


@also_opensearch2
def test_new_index_has_the_documents_and_nothing_of_ours(place: Place, encoders: Encoders) -> None:
    before = index_state(place)
    owner = before.mappings["_meta"] | {"owner": "application"}
    place.engine.put_mapping(place.index, {"_meta": owner})
    result = place.migrate(None, remove=True)
    assert (result.finished, result.target, place.behind()) == (True, f"{place.alias}-plain", f"{place.alias}-plain")
    assert result.removed_fields == ("embedding", "embedding_meta")
    assert (result.copied, result.embedded, result.model) == (COUNT, 0, "")
    assert "without vectors" in result.lines()[0]
    assert plain_contents(place) == everything()
    after = index_state(place)
    assert set(before.mappings["properties"]) - set(after.mappings["properties"]) == {"embedding", "embedding_meta"}
    assert after.settings["index.refresh_interval"] == "7s"
    assert after.shards == before.shards
    # A vector field of somebody else's needs it.
    assert after.settings.get("index.knn") == before.settings.get("index.knn")
    assert [kept.name for kept in list_kept(place.engine, place.alias)] == [place.index]
    assert is_blocked(place, place.index)
    assert drop_old_index(place.engine, place.alias, lambda *leaving: True) == [place.index]
    assert index_state(place).mappings["_meta"] == {"owner": "application"}


def test_index_without_other_vectors_loses_the_setting_knn(place: Place, encoders: Encoders) -> None:
    name = f"{place.alias}-single"
    first = encoders[0].info
    request = FieldRequest(
        name="embedding",
        fingerprint=first.fingerprint,
        model_name=first.model,
        dimensions=first.dimensions,
        text="{text}",
    )
    ensure_vector_field(place.engine, name, request)
    assert (index_state(place, name).settings.get("index.knn") == "true") == (
        place.engine.info.engine_type is EngineType.OPENSEARCH
    )
    alias = f"{place.alias}-of-single"
    place.engine.update_aliases([{"add": {"index": name, "alias": alias}}])
    single = Place(place.engine, alias, name, place.dead)
    assert single.migrate(None, remove=True).finished
    assert index_state(single).settings.get("index.knn") is None


@pytest.mark.parametrize("flat", [False, True], ids=["objects", "flat"])
def test_dotted_fields_are_not_copied(engine: Engine, encoders: Encoders, tmp_path: Path, flat: bool) -> None:
    name, info = f"test-{uuid.uuid4().hex[:12]}", encoders[0].info
    if flat and engine.info.engine_type is not EngineType.ELASTICSEARCH:
        pytest.skip("only Elasticsearch has mappings without objects")
    place = Place(engine, f"{name}-alias", name, tmp_path / "dead")
    engine.create_index(name, {"mappings": {"subobjects": False} if flat else {}})
    try:
        request = FieldRequest("embedding", info.fingerprint, info.model, info.dimensions, text="{text}")
        ensure_vector_field(engine, name, request)
        add_result_field(engine, name)
        engine.update_aliases([{"add": {"index": name, "alias": place.alias}}])
        place.write(spelled(0))
        mapped = set(mapped_names(place))
        assert {RESULT, "embedding_meta.tokens"} < mapped
        assert place.migrate(None, remove=True).finished
        assert plain_contents(place) == spelled(1)
        ours = {each for each in mapped if is_within(each, [RESULT, "embedding", "embedding_meta"])}
        assert set(mapped_names(place)) == mapped - ours
    finally:
        for index in indices_of(engine, name):
            engine.delete_index(index)


def mapped_names(place: Place) -> list[str]:
    return [name for name, _ in mapped_fields(index_state(place).mappings["properties"])]


@also_opensearch2
def test_rollback_embeds_what_was_written_since(place: Place, encoders: Encoders) -> None:
    place.migrate(None, remove=True)
    expected = write_since(place)
    result = place.migrate(encoders[0], rollback=True)
    assert (result.finished, result.target, result.copied, result.removed) == (True, place.index, 3, 2)
    place.assert_holds(expected, encoders[0])
    with pytest.raises(IndexMismatch, match="has no vectors"):
        place.migrate(encoders[0], rollback=True)


def test_rollback_names_the_field_of_another_model(place9: Place, encoders: Encoders) -> None:
    """One model embeds; the documents are whole all the same."""
    place, second = place9, encoders[1].info
    request = FieldRequest(
        name="other",
        fingerprint=second.fingerprint,
        model_name=second.model,
        dimensions=second.dimensions,
        text="{text}",
    )
    ensure_vector_field(place.engine, place.index, request)
    place.migrate(None, remove=True)
    expected = write_since(place)
    result = place.migrate(encoders[0], rollback=True)
    assert [note for note in result.notes if "no vector in other" in note]
    place.assert_holds(expected, encoders[0])


def test_no_acknowledged_write_is_lost(place: Place, encoders: Encoders) -> None:
    info = place.engine.info
    scripts = info.engine_type is EngineType.OPENSEARCH or info.version < (9, 0, 0)  # the server of the tests has none
    place.write(shared_documents())
    writers = RandomWriters(info.url, place.alias, threads=4, seed=29, scripts=scripts)
    with writers.running():
        writers.wait_for(100)
        results = [place.migrate(None, remove=True)]
        writers.wait_for(100)
        results.append(place.migrate(encoders[0], rollback=True))
        writers.wait_for(100)
    assert all(result.finished and result.writes_refused_seconds > 0 for result in results)
    assert writers.counts().missing == 0
    assert place.behind() == place.index
    assert differences(everything() | writers.expected(), place.contents(), OURS.__contains__) == []


@pytest.mark.parametrize("moment", ["put_mapping", "create_index", "bulk", "update_aliases", "block_writes"])
@pytest.mark.parametrize("replaced", [False, True])
def test_killed_removal_is_resumed(place9: Place, moment: str, replaced: bool) -> None:
    place = place9
    if replaced:
        place.engine.update_aliases([{"remove": {"index": place.index, "alias": place.alias}}])
        place.alias = place.index

    with killed_before(place, moment):
        place.migrate(None, remove=True, replace_index=replaced)
    result = place.migrate(None, remove=True, replace_index=replaced)
    assert result.finished
    assert (result.target, place.behind()) == (f"{place.alias}-plain", f"{place.alias}-plain")
    assert plain_contents(place) == everything()
    if replaced:
        assert index_state(place).mappings.get("_meta", {}) == {}
    else:
        assert index_state(place, place.index).name == place.index


def test_other_migrations_are_refused_while_one_is_under_way(place9: Place, encoders: Encoders) -> None:
    place, control = place9, LoadControl()
    control.interrupt()
    assert not place.migrate(None, remove=True, control=control).finished
    with pytest.raises(IndexMismatch, match="a migration of .* is not finished"):
        place.migrate(encoders[1])
    with pytest.raises(IndexMismatch, match="under another name"):
        place.migrate(None, remove=True, name=f"{place.alias}-x")
    assert roll_back(place.engine, place.alias) == f"{place.alias}-plain"
    place.assert_holds(everything(), encoders[0])
    control = LoadControl()
    control.interrupt()
    assert not place.migrate(encoders[1], control=control).finished
    with pytest.raises(IndexMismatch, match="for another model"):
        place.migrate(None, remove=True)


def test_index_that_is_no_alias_is_refused(place9: Place) -> None:
    place9.alias = place9.index
    with pytest.raises(UsageError, match="is an index, not an alias"):
        place9.migrate(None, remove=True)


def test_template_that_would_bring_the_field_back_is_refused(place9: Place) -> None:
    engine, name = place9.engine, f"{place9.alias}-template"
    body = {"index_patterns": [f"{place9.alias}*"], "template": {"mappings": {"_meta": {"es_sbert": {"fields": {}}}}}}
    engine.send("PUT", f"/_index_template/{name}", body=orjson.dumps(body))
    try:
        with pytest.raises(IndexMismatch, match=f"The index template {name} gives"):
            place9.migrate(None, remove=True)
    finally:
        engine.send("DELETE", f"/_index_template/{name}")


def test_index_without_fields_of_ours_is_refused(place9: Place) -> None:
    engine = place9.engine
    name = f"{place9.alias}-empty"
    engine.create_index(name, {"mappings": {"_meta": {"es_sbert": {"fields": {}}}}})
    engine.update_aliases([{"add": {"index": name, "alias": f"{name}-alias"}}])
    with pytest.raises(IndexMismatch, match="no copy is needed"):
        Place(engine, f"{name}-alias", name, place9.dead).migrate(None, remove=True)


def test_documents_that_were_written_before_the_swap_are_there(place9: Place) -> None:
    """By another client, between two steps."""
    place, written = place9, False

    def write(name: str) -> None:
        nonlocal written
        if name == "flush" and not written:
            written = True
            place9_real.write({"late": document(8000)})

    place9_real = Place(place.engine, place.alias, place.index, place.dead)
    place.engine = Overheard(place.engine, write)  # type: ignore[assignment]
    assert place.migrate(None, remove=True).finished
    assert written
    assert plain_contents(place9_real) == everything() | {"late": document(8000)}
