"""An index that is deleted or replaced while a load runs: the engine must not create it anew without our mapping."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from es_sbert.engines.engine import Engine
from es_sbert.errors import IndexMismatch
from tests.engine.ingest_support import Interposed, Loads, load, sentences, wait_for_first_window

pytestmark = pytest.mark.one_engine


@pytest.mark.parametrize("is_replaced", [False, True])
def test_index_deleted_or_replaced_while_embedding_gets_no_document(
    engine: Engine, loads: Loads, *, is_replaced: bool
) -> None:
    def delete(window: int) -> None:
        if window == 1:
            wait_for_first_window(engine, loads.index)
            engine.delete_index(loads.index)
            if is_replaced:
                engine.create_index(loads.index, {})

    path = loads.write(sentences(20))
    options: dict[str, Any] = {"dead": loads.dead, "id_field": "id", "batch_window": 5}
    with pytest.raises(IndexMismatch, match="was deleted or replaced during the load"):
        load(loads.url, Interposed(loads.encoder, delete), loads.index, path, **options)
    assert (engine.get_index(loads.index) is None) is not is_replaced
    if is_replaced:
        engine.refresh(loads.index)
        assert engine.count(loads.index) == 0


def test_index_deleted_before_read_back_is_reported(
    engine: Engine, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_documents = Engine.mget

    def delete_first(self: Engine, *arguments: Any, **options: Any) -> Any:
        engine.delete_index(loads.index)
        # The answer of an engine that has lost the documents, but still knows the index.
        monkeypatch.setattr(Engine, "mget", read_documents)
        return [None] * len(arguments[1])

    monkeypatch.setattr(Engine, "mget", delete_first)
    path = loads.write(sentences(5))
    with pytest.raises(IndexMismatch, match="was deleted or replaced during the load"):
        loads.load(path, id_field="id")
    assert engine.get_index(loads.index) is None


def test_index_deleted_while_embedding_in_place_is_not_recreated(engine: Engine, loads: Loads) -> None:
    lines = [line for document in sentences(10) for line in ({"index": {"_id": document["id"]}}, document)]
    engine.create_index(loads.index, {})
    engine.bulk(loads.index, b"".join(orjson.dumps(line) + b"\n" for line in lines))
    meddle = Interposed(loads.encoder, lambda window: engine.delete_index(loads.index) if window == 0 else None)
    with pytest.raises(IndexMismatch, match="was deleted or replaced during the load"):
        load(loads.url, meddle, loads.index, dead=loads.dead, batch_window=5)
    assert engine.get_index(loads.index) is None
