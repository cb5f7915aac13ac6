"""Recipes whose data are documents of an index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from es_sbert.errors import CheckpointInvalid, RecipeInvalid, UsageError
from es_sbert.training.index_sources import has_index_sources, source_file, with_files
from es_sbert.training.recipe import Recipe, load_recipe
from es_sbert.training.run_folder import RunFolder
from tests.unit.training.support import recipe, write_recipe

COLUMNS = {"anchor": "title", "positive": "{title}. {body}"}


def loaded(folder: Path, **source: Any) -> Recipe:
    data = {"columns": COLUMNS, **source}
    dev = {"task": "pairs", "columns": COLUMNS, **source}
    return load_recipe(
        str(write_recipe(folder, recipe(Path("base"), data=[data], dev=dev, objective={"kind": "in-batch"})))
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({}, "set exactly one of path and index"),
        ({"path": "a.tsv", "index": "docs"}, "set exactly one of path and index"),
        ({"path": "a.tsv", "sample": 10}, "filter and sample require index"),
        ({"path": "a.tsv", "filter": {"match_all": {}}}, "filter and sample require index"),
        ({"index": "docs", "sample": 0}, "sample"),
    ],
)
def test_recipe_names_one_source(tmp_path: Path, source: dict[str, Any], reason: str) -> None:
    with pytest.raises(RecipeInvalid, match=reason):
        loaded(tmp_path, **source)


def test_sources_of_one_selection_share_a_file(tmp_path: Path) -> None:
    its = loaded(tmp_path, index="docs", sample=100, filter={"term": {"a": 1}})
    assert has_index_sources(its)
    read = with_files(its, tmp_path)
    train, dev = read.sources
    assert train.path == dev.path == str(tmp_path / source_file(its.sources[0]))
    assert not has_index_sources(read)
    assert read.stages[0].data[0].name == "docs"
    changed = [{"index": "docs"}, {"index": "docs", "sample": 100, "sample_seed": 1}, {"index": "docs", "sample": 99}]
    names = {source_file(loaded(tmp_path, **source).sources[0]) for source in changed}
    assert len(names | {source_file(its.sources[0])}) == 4


def test_folder_of_another_run_takes_no_documents(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "out")
    run.check_documents(["a.jsonl"], resume=False)
    run.documents.mkdir(parents=True)
    (run.documents / "a.jsonl").touch()
    run.check_documents(["a.jsonl"], resume=False)
    with pytest.raises(CheckpointInvalid, match="no run to resume"):
        run.check_documents(["a.jsonl"], resume=True)
    (run.folder / "run.json").write_text("{}")
    run.check_documents(["a.jsonl"], resume=True)
    with pytest.raises(UsageError, match="is not empty"):
        run.check_documents(["a.jsonl"], resume=False)
    with pytest.raises(CheckpointInvalid, match=r"lacks b\.jsonl"):
        run.check_documents(["a.jsonl", "b.jsonl"], resume=True)
