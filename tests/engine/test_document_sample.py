"""Random samples of an index."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from es_sbert.engines.engine import Engine
from es_sbert.errors import IndexMissing
from es_sbert.index.document_sample import DocumentSelection, read_documents

pytestmark = pytest.mark.one_engine

TOPICS = ["river", "storm", "bread", "engine", "winter", "doctor", "market", "violin", "forest", "planet"]


def fill(engine: Engine, index: str, count: int) -> None:
    """Documents with a title and a body; every tenth has no title, and every third is odd."""
    engine.create_index(index, {"settings": {"number_of_shards": 2}})
    lines: list[dict[str, Any]] = []
    for number in range(count):
        title = {} if number % 10 == 9 else {"title": f"{TOPICS[number % 10]} {number}"}
        body = f"a text of {TOPICS[number % 10]} with the number {number}"
        lines += [{"index": {"_id": f"d{number}"}}, {"body": [body, "end"], "odd": number % 3 == 0, **title}]
    assert all(item.ok for item in engine.bulk(index, b"".join(orjson.dumps(line) + b"\n" for line in lines)))
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
