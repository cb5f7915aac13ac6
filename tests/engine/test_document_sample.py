"""Samples of an index, and training on documents of an index."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.config import EngineSettings
from es_sbert.engines.engine import Engine
from es_sbert.errors import CheckpointInvalid, IndexMissing, SourceError
from es_sbert.index.document_sample import DocumentSelection, read_documents
from es_sbert.training import train
from es_sbert.training.recipe import Recipe
from es_sbert.training.training_run import check_recipe
from tests.unit.training.conftest import no_pictures as no_pictures
from tests.unit.training.support import cut_at, write_model

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


def index_recipe(model: Path, index: str, **source: Any) -> Recipe:
    data = {"index": index, "sample": 80, **source}
    columns = {"anchor": "title", "positive": "{title}: {body}"}
    stage = {
        "name": "pairs",
        "data": [{**data, "columns": columns, "skip": 20}],
        "objective": {"kind": "in-batch"},
        "batch": 8,
        "dev": {**data, "task": "pairs", "columns": columns, "limit": 20},
        "checkpoints_per_epoch": 2,
    }
    settings = {"name": "tiny", "model": {"base": str(model)}, "stages": [stage], "export": {"precisions": ["fp32"]}}
    return Recipe.model_validate(settings)


@pytest.mark.slow
def test_training_resumes_on_the_documents_that_it_read(
    es9_url: str,
    open_engine: Callable[[str], Engine],
    fresh_index: Callable[[str], str],
    tmp_path: Path,
    no_pictures: None,
) -> None:
    engine, index = open_engine(es9_url), fresh_index(es9_url)
    fill(engine, index, 100)
    model, where = write_model(tmp_path / "model"), EngineSettings(url=es9_url)
    recipe, said = index_recipe(model, index), list[str]()
    whole = train(recipe, tmp_path / "whole", device="cpu", engine=where, report=said.append)
    (file,) = (tmp_path / "whole/training/documents").iterdir()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    # 80 documents are drawn, and about eight of them have no title.
    assert len(rows) == len({row["_id"] for row in rows}) < 80
    one = next(row for row in rows if row["_id"] == "d17" or row["title"].startswith("storm"))
    number = one["title"].split()[1]
    assert (
        one["{title}: {body}"] == f"{one['title']}: a text of {one['title'].split()[0]} with the number {number}\nend"
    )
    assert f"Read {len(rows)} documents of index {index}; {80 - len(rows)} others lack text" in said[0]
    recorded = json.loads((tmp_path / "whole/training.json").read_text())
    assert recorded["recipe"]["stages"][0]["data"][0]["index"] == index
    assert list(recorded["data"]) == [f"index {index} ({file.name})"]

    with cut_at(5):
        train(recipe, tmp_path / "cut", device="cpu", engine=where)
    engine.delete_index(index)
    resumed = train(recipe, tmp_path / "cut", device="cpu", engine=where, resume=True)
    assert resumed.fingerprint == whole.fingerprint
    with pytest.raises(CheckpointInvalid, match=r"lacks .*, a file with documents"):
        train(index_recipe(model, index, sample=70), tmp_path / "cut", device="cpu", engine=where, resume=True)


def test_documents_without_the_fields_are_refused(
    es9_url: str, open_engine: Callable[[str], Engine], fresh_index: Callable[[str], str], tmp_path: Path
) -> None:
    index = fresh_index(es9_url)
    fill(open_engine(es9_url), index, 30)
    model, where = write_model(tmp_path / "model"), EngineSettings(url=es9_url)
    found = check_recipe(index_recipe(model, index, sample=None), Path(), "cpu", engine=where)
    assert [len(each) for each in (found[0].examples[0], found[0].dev or ())] == [7, 20]
    nothing = index_recipe(model, index, filter={"term": {"title": "absent"}})
    with pytest.raises(SourceError, match="none of the 0 documents"):
        train(nothing, tmp_path / "out", device="cpu", engine=where)
    # What the failed run has left is no hindrance.
    with pytest.raises(SourceError, match="none of the 0 documents"):
        train(nothing, tmp_path / "out", device="cpu", engine=where)
