"""The requests that the pages show in place of commands: the way back after a migration, a copy without vectors."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import IndexMismatch
from tests.docs_requests import shown_requests
from tests.engine.migration.support import Place, document, everything
from tests.engine.vectors import state_of

DOCS = Path(__file__).parents[3] / "docs"


def send_requests(place: Place, page: str, words: dict[str, str]) -> None:
    requests = [
        request for request in shown_requests(DOCS / page) if any(word in request.path + request.body for word in words)
    ]
    assert len(requests) >= 3
    for request in requests:
        filled = request.filled(words)
        path, _, query = filled.path.partition("?")
        params = dict(part.split("=") for part in query.split("&") if part)
        answer = place.engine.send(filled.method, path, params, body=orjson.dumps(orjson.loads(filled.body)))
        assert answer.status < 300, answer


def test_alias_moves_back_if_nothing_was_written_since(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    new = place.migrate(encoders[1]).target
    send_requests(place, "operations.md", {"docs-5f2e1c3a": new, "docs-1": place.index, '"docs"': f'"{place.alias}"'})
    assert place.behind() == place.index
    place.assert_holds(everything(), encoders[0])
    place.write({"x": document(700)})
    with pytest.raises(IndexMismatch, match="already exists") as caught:
        place.migrate(encoders[1])
    assert f"`DELETE /{new}`" in caught.value.remedy
    place.engine.delete_index(new)
    assert place.migrate(encoders[1]).finished
    place.assert_holds(everything() | {"x": document(700)}, encoders[1])


@pytest.mark.parametrize("engine_url", ["opensearch"], indirect=True)  # the small Elasticsearch has no `_reindex`
def test_copy_without_vectors_has_all_else(place: Place) -> None:
    plain = f"{place.alias}-plain"
    words = {"docs-plain": plain, "docs-1": place.index, '"docs"': f'"{place.alias}"'}
    words['"text": {'] = '"raw": {"type": "object", "enabled": false}, "text": {'  # the mapping of the user
    send_requests(place, "commands/index.md", words)
    assert place.behind() == plain
    found = place.contents()
    assert {key: {n: v for n, v in source.items() if n != "_routing"} for key, source in found.items()} == everything()
    state = state_of(place.engine, plain)
    assert not {"embedding", "embedding_meta"} & state.mappings["properties"].keys()
