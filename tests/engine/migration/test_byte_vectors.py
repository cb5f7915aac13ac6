"""Byte vectors of an earlier version: every command refuses them by name, and a migration leads out."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.errors import IndexMismatch
from es_sbert.index.adopt import read_adoptable_field
from es_sbert.index.index_summary import describe_indices
from es_sbert.index.text_template import TextTemplate
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field, read_vector_field
from es_sbert.search.search_scope import read_search_scope
from es_sbert.search.semantic_index import SemanticIndex
from tests.engine.byte_index import create_byte_index
from tests.engine.migration.support import Place, indices_of, text_of
from tests.engine.vectors import request_for

TEXTS = [text_of(number) for number in range(40)]


@pytest.fixture
def old(engine: Engine, encoders: tuple[Encoder, Encoder], tmp_path: Path) -> Iterator[Place]:
    alias = f"test-{uuid.uuid4().hex[:12]}"
    place = Place(engine, alias, f"{alias}-old", tmp_path / "dead.jsonl")
    create_byte_index(engine, place.index, encoders[0], TEXTS)
    engine.update_aliases([{"add": {"index": place.index, "alias": alias}}])
    yield place
    for name in indices_of(engine, alias):
        engine.delete_index(name)


READERS: dict[str, Callable[[Place, Encoder], object]] = {
    "search": lambda place, encoder: read_search_scope(place.engine, [place.alias], "embedding"),
    "python": lambda place, encoder: SemanticIndex(place.alias, place.engine, encoder=encoder),
    "measure": lambda place, encoder: read_vector_field(place.engine, place.alias, "embedding"),
    "show": lambda place, encoder: describe_indices(place.engine, place.alias),
    "embed in place": lambda place, encoder: place.embed(encoder),
    "another field": lambda place, encoder: ensure_vector_field(
        place.engine, place.alias, FieldRequest("other", encoder.info.fingerprint, "m", encoder.info.dimensions)
    ),
    "adopt": lambda place, encoder: read_adoptable_field(
        place.engine, place.alias, "embedding", TextTemplate.parse("{text}")
    ),
}


def test_byte_vectors_are_refused_with_the_migration(old: Place, encoders: tuple[Encoder, Encoder]) -> None:
    for reader in READERS.values():
        with pytest.raises(IndexMismatch) as refused:
            reader(old, encoders[0])
        assert f"`es-sbert index migrate {old.index}`" in refused.value.remedy


def test_show_of_several_indices_names_the_one_with_byte_vectors(old: Place, encoders: tuple[Encoder, Encoder]) -> None:
    other = f"{old.alias}-new"
    ensure_vector_field(old.engine, other, request_for(encoders[0]))
    shown = {summary.name: summary for summary in describe_indices(old.engine, f"{old.index},{other}")}
    assert (len(shown[other].fields), shown[other].problem) == (1, None)
    assert (shown[old.index].documents, shown[old.index].fields) == (len(TEXTS), ())
    assert f"`es-sbert index migrate {old.index}`" in str(shown[old.index].as_json()["problem"])


def test_migration_embeds_byte_vectors_as_floats(old: Place, encoders: tuple[Encoder, Encoder]) -> None:
    result = old.migrate(encoders[1])
    assert (result.finished, result.embedded, result.compared) == (True, len(TEXTS), len(TEXTS))
    old.assert_holds({f"{number}x": {"text": text} for number, text in enumerate(TEXTS)}, encoders[1])
    with SemanticIndex(old.alias, old.engine, encoder=encoders[1]) as index:
        assert index.search(TEXTS[5], 1).hits[0].id == "5x"
