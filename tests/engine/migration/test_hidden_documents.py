"""Documents that a user's searches do not show, as under document-level security, are noticed before they are lost."""

from __future__ import annotations

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import without_retries
from es_sbert.errors import IndexMismatch
from es_sbert.index.privileges import count_all_documents
from tests.engine.migration.support import Place, indices_of
from tests.raised import raises_as_recorded


def test_migration_refuses_what_this_user_does_not_see(
    place9: Place, encoders: tuple[Encoder, Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place9.engine, "count", lambda name, query=None: 1)
    with raises_as_recorded(IndexMismatch):
        place9.migrate(encoders[1])
    assert indices_of(place9.engine, place9.alias) == [place9.index]


def test_nested_objects_are_counted_apart_from_their_documents(engine: Engine, index_name: str) -> None:
    inner: Json = {"type": "nested", "properties": {"n": {"type": "integer"}}}
    nested = {"type": "nested", "properties": {"inner": inner}}
    engine.create_index(index_name, {"mappings": {"properties": {"a": nested, "o": {"properties": {"b": inner}}}}})
    source = {"a": [{"inner": [{"n": 1}, {"n": 2}]}, {"inner": {"n": 3}}], "o": {"b": [{"n": 1}]}}
    engine.bulk(index_name, b"".join(b'{"index":{}}\n%b\n' % orjson.dumps(source) for _ in range(3)))
    assert count_all_documents(engine, index_name, without_retries) == 3
