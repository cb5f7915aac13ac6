"""The requests that a page shows in place of a command: the way back after a migration."""

from __future__ import annotations

from pathlib import Path

import orjson

from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import IndexMismatch
from tests.docs_requests import shown_requests
from tests.engine.ingest_support import ask
from tests.engine.migration.support import Place, document, everything
from tests.raised import raises_as_recorded

PAGE = Path(__file__).parents[3] / "docs/operations.md"


def test_alias_moves_back_if_nothing_was_written_since(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    new = place.migrate(encoders[1]).target
    words = {"docs-5f2e1c3a": new, "docs-1": place.index, '"docs"': f'"{place.alias}"'}
    shown = [each for each in shown_requests(PAGE) if any(word in each.path + each.body for word in words)]
    assert len(shown) >= 3
    for request in shown:
        filled = request.filled(words)
        ask(place.engine, filled.method, filled.path, body=orjson.loads(filled.body))
    assert place.alias_target() == place.index
    place.assert_holds(everything(), encoders[0])
    place.write({"x": document(700)})
    with raises_as_recorded(IndexMismatch):
        place.migrate(encoders[1])
    place.engine.delete_index(new)
    assert place.migrate(encoders[1]).finished
    place.assert_holds(everything() | {"x": document(700)}, encoders[1])
