"""Random samples of an index."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert.engines.engine import Engine
from es_sbert.errors import IndexMissing
from es_sbert.index.document_sample import DocumentSelection, read_documents
from tests.engine.ingest_support import put

pytestmark = pytest.mark.one_engine


def fill(engine: Engine, index: str, count: int) -> None:
    """Documents with a title, but for every tenth; every third is odd."""
    engine.create_index(index, {"settings": {"number_of_shards": 2}})
    titles: list[dict[str, Any]] = [{} if n % 10 == 9 else {"title": f"river {n}"} for n in range(count)]
    put(engine, index, ({"id": f"d{n}", "odd": n % 3 == 0} | title for n, title in enumerate(titles)))
    engine.refresh(index)


def test_sample_is_random_reproducible_and_filtered(engine: Engine, index_name: str) -> None:
    fill(engine, index_name, 900)
    chosen = DocumentSelection(index_name, sample=60)
    progress: list[int] = []
    first = read_documents(engine, chosen, ["title"], on_progress=lambda done, total: progress.append(done))
    # The engine has left out most of the others.
    assert 60 <= max(progress) < 300
    assert first == read_documents(engine, chosen, ["title"])
    assert len({document.key for document in first}) == 60
    assert {tuple(document.source) for document in first} <= {("title",), ()}
    other = {
        document.key for document in read_documents(engine, DocumentSelection(index_name, sample=60, seed=1), ["odd"])
    }
    assert len(other & {document.key for document in first}) < 30
    odd = DocumentSelection(index_name, {"term": {"odd": True}}, 40)
    assert all(document.source["odd"] for document in read_documents(engine, odd, ["odd"]))
    assert len(read_documents(engine, DocumentSelection(index_name), ["odd"])) == 900
    with pytest.raises(IndexMissing):
        read_documents(engine, DocumentSelection(f"{index_name}-none"), ["odd"])
