"""An index that is deleted or replaced while a load runs: the engine must not create it anew without our mapping."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert.engines.engine import Engine
from es_sbert.errors import IndexMismatch
from tests.engine.ingest_support import Interposed, Loads, put, sentences, wait_for_first_window
from tests.raised import raises_as_recorded

pytestmark = pytest.mark.one_engine


@pytest.mark.parametrize(("is_replaced", "in_place"), [(False, False), (True, False), (False, True)])
def test_index_deleted_or_replaced_while_embedding_gets_no_document(
    engine: Engine, loads: Loads, *, is_replaced: bool, in_place: bool
) -> None:
    def delete(window: int) -> None:
        if window == (0 if in_place else 1):
            wait_for_first_window(engine, loads.index)
            engine.delete_index(loads.index)
            if is_replaced:
                engine.create_index(loads.index, {})

    if in_place:
        put(engine, loads.index, sentences(20))
    files, id_field = ([], None) if in_place else ([loads.write(sentences(20))], "id")
    with raises_as_recorded(IndexMismatch):
        loads.load(*files, encoder=Interposed(loads.encoder, delete), id_field=id_field, batch_window=5)
    assert (engine.get_index(loads.index) is None) is not is_replaced
    if is_replaced:
        engine.refresh(loads.index)
        assert engine.count(loads.index) == 0


def test_index_deleted_before_read_back_is_reported(
    engine: Engine, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    mget = Engine.mget

    def lose(self: Engine, name: str, keys: list[Any], **options: Any) -> list[None]:
        """As an engine answers that has lost the documents, but still knows the index."""
        engine.delete_index(name)
        monkeypatch.setattr(Engine, "mget", mget)
        return [None] * len(keys)

    monkeypatch.setattr(Engine, "mget", lose)
    with raises_as_recorded(IndexMismatch):
        loads.load(loads.write(sentences(5)), id_field="id")
    assert engine.get_index(loads.index) is None
