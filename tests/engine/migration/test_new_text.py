"""An index moved to vectors of another text of its documents."""

from __future__ import annotations

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.index.document_vectors import read_vector
from es_sbert.index.text_template import TextTemplate
from es_sbert.index.vector_field import read_vector_field, require_index
from es_sbert.migration.migration_state import find_begun
from tests.engine.ingest_support import same_vectors
from tests.engine.migration.support import COUNT, Place, interrupted
from tests.raised import raises_as_recorded

pytestmark = pytest.mark.one_engine

TITLED = TextTemplate.parse("{title}. {text}")


def assert_vectors_of(place: Place, template: TextTemplate, encoder: Encoder) -> None:
    found = list(place.contents().values())
    assert len(found) == COUNT
    wanted = encoder.encode([template.render(source) for source in found], "document")
    for source, vector in zip(found, wanted, strict=True):
        assert same_vectors(read_vector(source["embedding"]), vector)


def test_same_model_can_embed_a_different_text(place9: Place, encoders: tuple[Encoder, Encoder]) -> None:
    result = place9.migrate(encoders[0], text_template=TITLED.template)
    assert (result.finished, result.embedded, result.compared) == (True, COUNT, 50)
    assert read_vector_field(place9.engine, place9.alias, "embedding").meta.text == TITLED.template
    assert_vectors_of(place9, TITLED, encoders[0])
    with raises_as_recorded(IndexMismatch):
        place9.migrate(encoders[0], text_template=TITLED.template)
    place9.migrate(encoders[1], text_fields="title")
    assert_vectors_of(place9, TextTemplate.parse("{title}"), encoders[1])
    place9.engine.delete_index(result.target)


def test_migration_resumes_only_with_its_own_text(place9: Place, encoders: tuple[Encoder, Encoder]) -> None:
    stopped = place9.migrate(encoders[0], control=interrupted(), text_template=TITLED.template)
    with raises_as_recorded(IndexMismatch):
        place9.migrate(encoders[0], text_template="{title}")
    again = place9.migrate(encoders[0], text_template=TITLED.template)
    assert (again.resumed, again.finished, again.target) == (True, True, stopped.target)
    assert_vectors_of(place9, TITLED, encoders[0])


def test_template_matching_no_document_is_refused(place9: Place, encoders: tuple[Encoder, Encoder]) -> None:
    before = require_index(place9.engine, place9.index)
    for template in ("{titel}. {text}", "{number}", "{embedding_meta}"):
        with raises_as_recorded(UsageError):
            place9.migrate(encoders[0], text_template=template)
    assert require_index(place9.engine, place9.index) == before
    assert find_begun(place9.engine, before) is None
