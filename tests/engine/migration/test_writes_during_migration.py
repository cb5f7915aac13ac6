"""Other programs write into an index while it is moved to another model."""

from __future__ import annotations

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.rest import Json
from tests.engine.migration.support import Overheard, Place, document, everything

pytestmark = pytest.mark.one_engine


def test_writes_during_migration_are_caught_up(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    """Writes at every step of the migration, the last of them right before writes are blocked."""
    expected = everything()
    steps: list[str] = []

    def meddle(step: str) -> None:
        if step not in ("create_index", "block_writes", "shard_states") or "block_writes" in steps:
            return
        number = len(steps)
        steps.append(step)
        new, changed, gone = f"new-{number}", str(3 * number), str(3 * number + 7)
        sources = {new: document(1000 + number), changed: document(3 * number, version=1)}
        place.write(sources)
        place.delete(gone)
        expected.update(sources)
        expected.pop(gone, None)

    engine = place.engine
    overheard = Overheard(engine, meddle)
    place.engine = overheard  # type: ignore[assignment]
    result = place.migrate(encoders[1])
    place.engine = engine
    assert steps[-1] == "block_writes"
    assert (result.finished, result.removed > 0) == (True, True)
    place.assert_holds(expected, encoders[1])


def test_document_written_during_comparison_is_not_a_difference(
    place9: Place, encoders: tuple[Encoder, Encoder]
) -> None:
    engine, expected = place9.engine, everything()

    class Changing(Overheard):
        def search(self, name: str, body: Json, **options: object) -> Json:
            answer: Json = self._engine.search(name, body, **options)
            if name == place9.index:
                changed = {hit["_id"]: document(900 + int(hit["_id"])) for hit in answer["hits"]["hits"][:5]}
                place9.write(changed)
                engine.refresh(name)
                expected.update(changed)
            return answer

    place9.engine = Changing(engine)  # type: ignore[assignment]
    assert place9.migrate(encoders[1]).finished
    place9.engine = engine
    place9.embed(encoders[1], place9.alias)
    place9.assert_holds(expected, encoders[1])
