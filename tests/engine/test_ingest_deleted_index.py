"""An index that is deleted or replaced while a load runs: the engine must not create it anew without our mapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.errors import IndexMismatch
from tests.engine.ingest_support import Interposed, load, sentences, wait_for_first_window, write_jsonl

pytestmark = pytest.mark.one_engine


@pytest.mark.parametrize("is_replaced", [False, True])
def test_index_deleted_or_replaced_while_embedding_gets_no_document(
    engine: Engine, engine_url: str, index_name: str, encoder: Encoder, tmp_path: Path, *, is_replaced: bool
) -> None:
    def delete(window: int) -> None:
        if window == 1:
            wait_for_first_window(engine, index_name)
            engine.delete_index(index_name)
            if is_replaced:
                engine.create_index(index_name, {})

    path = write_jsonl(tmp_path / "docs.jsonl", sentences(20))
    options: dict[str, Any] = {"dead": tmp_path / "dead", "id_field": "id", "batch_window": 5}
    with pytest.raises(IndexMismatch, match="was deleted or replaced during the load"):
        load(engine_url, Interposed(encoder, delete), index_name, path, **options)
    assert (engine.get_index(index_name) is None) is not is_replaced
    if is_replaced:
        engine.refresh(index_name)
        assert engine.count(index_name) == 0


def test_index_deleted_before_read_back_is_reported(
    engine: Engine, engine_url: str, index_name: str, encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_documents = Engine.mget

    def delete_first(self: Engine, *arguments: Any, **options: Any) -> Any:
        engine.delete_index(index_name)
        # The answer of an engine that has lost the documents, but still knows the index.
        monkeypatch.setattr(Engine, "mget", read_documents)
        return [None] * len(arguments[1])

    monkeypatch.setattr(Engine, "mget", delete_first)
    path = write_jsonl(tmp_path / "docs.jsonl", sentences(5))
    with pytest.raises(IndexMismatch, match="was deleted or replaced during the load"):
        load(engine_url, encoder, index_name, path, dead=tmp_path / "dead", id_field="id")
    assert engine.get_index(index_name) is None


def test_index_deleted_while_embedding_in_place_is_not_recreated(
    engine: Engine, engine_url: str, index_name: str, encoder: Encoder, tmp_path: Path
) -> None:
    lines = [line for document in sentences(10) for line in ({"index": {"_id": document["id"]}}, document)]
    engine.create_index(index_name, {})
    engine.bulk(index_name, b"".join(orjson.dumps(line) + b"\n" for line in lines))
    meddle = Interposed(encoder, lambda window: engine.delete_index(index_name) if window == 0 else None)
    with pytest.raises(IndexMismatch, match="was deleted or replaced during the load"):
        load(engine_url, meddle, index_name, dead=tmp_path / "dead", batch_window=5)
    assert engine.get_index(index_name) is None
