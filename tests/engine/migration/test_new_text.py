"""An index moved to vectors of another text of its documents."""

from __future__ import annotations

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.index.document_vectors import read_vector
from es_sbert.index.text_template import TextTemplate
from es_sbert.index.vector_field import read_vector_field, require_index
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.io.json_text import dump_object
from es_sbert.migration.migration_state import find_begun
from tests.engine.ingest_support import same_vectors
from tests.engine.migration.support import COUNT, Overheard, Place

pytestmark = pytest.mark.one_engine

TITLED = TextTemplate.parse("{title}. {text}")


def title(number: int) -> str:
    return ["a man", "the guitar", "a storm"][number % 3]


@pytest.fixture
def titled(place9: Place) -> Place:
    lines: list[Json] = []
    for number in range(COUNT):
        routing = {"routing": "seven"} if str(number).endswith("7") else {}
        lines += [{"update": {"_id": str(number)} | routing}, {"doc": {"title": title(number)}}]
    results = place9.engine.bulk(place9.alias, b"".join(dump_object(line) + b"\n" for line in lines))
    assert all(result.ok for result in results)
    place9.engine.refresh(place9.alias)
    return place9


def assert_vectors_of(place: Place, template: TextTemplate, encoder: Encoder) -> None:
    found = list(place.contents().values())
    assert len(found) == COUNT
    wanted = encoder.encode([template.render(source) for source in found], "document")
    for source, vector in zip(found, wanted, strict=True):
        assert same_vectors(read_vector(source["embedding"]), vector)


def test_same_model_can_embed_a_different_text(titled: Place, encoders: tuple[Encoder, Encoder]) -> None:
    result = titled.migrate(encoders[0], text=TITLED)
    assert (result.finished, result.embedded, result.compared) == (True, COUNT, 50)
    assert read_vector_field(titled.engine, titled.alias, "embedding").meta.text == TITLED.template
    assert_vectors_of(titled, TITLED, encoders[0])
    with pytest.raises(IndexMismatch, match="already for the text '{title}. {text}'") as caught:
        titled.migrate(encoders[0], text=TITLED)
    assert "nothing to do" in caught.value.remedy
    titled.migrate(encoders[1], text=TextTemplate.from_fields(["title"]))
    assert_vectors_of(titled, TextTemplate.parse("{title}"), encoders[1])
    titled.engine.delete_index(result.target)


def test_target_with_vectors_of_old_text_is_not_swapped(titled: Place, encoders: tuple[Encoder, Encoder]) -> None:
    """The comparison embeds the new text."""
    engine = titled.engine

    class Mistaken(Overheard):
        def create_index(self, name: str, body: Json) -> None:
            # The load reads the template from the index, the comparison has the one that was asked for.
            body["mappings"]["_meta"]["es_sbert"]["fields"]["embedding"]["text"] = "{text}"
            self._engine.create_index(name, body)

    titled.engine = Mistaken(engine)  # type: ignore[assignment]
    with pytest.raises(IndexMismatch, match="is not the one that"):
        titled.migrate(encoders[0], text=TITLED)
    titled.engine = engine
    assert titled.behind() == titled.index


def test_migration_resumes_only_with_its_own_text(titled: Place, encoders: tuple[Encoder, Encoder]) -> None:
    control = LoadControl()
    control.interrupt()
    stopped = titled.migrate(encoders[0], control=control, text=TITLED)
    assert not stopped.finished
    for other in (None, TextTemplate.parse("{title}")):
        with pytest.raises(IndexMismatch, match="is being migrated to .* already") as caught:
            titled.migrate(encoders[0], text=other)
        assert "--cancel" in caught.value.remedy
    with pytest.raises(IndexMismatch, match="is being migrated to .* already"):
        titled.migrate(encoders[0], text=TITLED, index_type="int8_hnsw")
    again = titled.migrate(encoders[0], text=TITLED)
    assert (again.resumed, again.finished, again.target) == (True, True, stopped.target)
    assert_vectors_of(titled, TITLED, encoders[0])


@pytest.mark.parametrize(
    ("template", "said", "remedy"),
    [
        (
            "{titel}. {text}",
            "have the field titel",
            "Did you mean title? The documents have the fields",
        ),
        ("{number}", "'{number}' gives no document a text: the text field number is a JSON number", "hold strings"),
        ("{embedding_meta.text_hash}", "which es-sbert writes itself", "documents' own fields"),
    ],
)
def test_template_matching_no_document_is_refused(
    titled: Place, encoders: tuple[Encoder, Encoder], template: str, said: str, remedy: str
) -> None:
    before = require_index(titled.engine, titled.index)
    with pytest.raises(UsageError, match=said) as caught:
        titled.migrate(encoders[0], text=TextTemplate.parse(template))
    assert remedy in caught.value.remedy
    assert titled.engine.get_index(titled.index) == before
    assert find_begun(titled.engine, before) is None
