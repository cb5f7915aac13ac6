"""Files of labeled queries."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from es_sbert.diagnostics.index_calibration import LabeledQuery, read_labeled_queries
from es_sbert.errors import SourceError


def test_queries_are_read_and_other_keys_ignored(tmp_path: Path) -> None:
    data = '{"query": "heavy rain", "ids": ["a", 7, "a"], "note": 1}\n\n{"ids": ["b"], "query": "snow"}\n'
    plain, packed = tmp_path / "queries.jsonl", tmp_path / "queries.jsonl.gz"
    plain.write_text(data)
    packed.write_bytes(gzip.compress(data.encode()))
    for path in (plain, packed):
        assert read_labeled_queries(path) == [LabeledQuery("heavy rain", ("a", "7")), LabeledQuery("snow", ("b",))]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"query": "x", "ids": []}', "line 2: ids is empty"),
        ('{"query": "x", "ids": "a"}', "line 2: ids is not a list of document ids"),
        ('{"query": "x"}', "line 2: ids is missing"),
        ('{"query": "x", "ids": ["a", null]}', "line 2: ids holds None, which is not a document id"),
        ('{"query": "x", "ids": [true]}', "line 2: ids holds True, which is not a document id"),
        ('{"query": "x", "ids": [""]}', "line 2: ids holds '', which is not a document id"),
        ('{"query": "x", "ids": [["a"]]}', r"line 2: ids holds \['a'\], which is not a document id"),
        ('{"query": " ", "ids": ["a"]}', "line 2: query is empty"),
        ('{"query": 3, "ids": ["a"]}', "line 2: query is not a text"),
        ('{"ids": ["a"]}', "line 2: query is missing"),
        ("a query", "line 2: malformed JSON"),
        ('["a"]', "line 2: the line is a JSON array"),
    ],
)
def test_invalid_lines_are_reported(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "queries.jsonl"
    path.write_text('{"query": "x", "ids": ["a"]}\n' + line + "\n")
    with pytest.raises(SourceError, match=message):
        read_labeled_queries(path)


def test_invalid_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist or is not a file"):
        read_labeled_queries(tmp_path / "none.jsonl")
    with pytest.raises(SourceError, match="does not exist or is not a file"):
        read_labeled_queries(tmp_path)
    (tmp_path / "queries.csv").write_text("query,ids\nx,a\n")
    with pytest.raises(SourceError, match="is not named") as caught:
        read_labeled_queries(tmp_path / "queries.csv")
    assert '{"query": "a text", "ids": [' in caught.value.remedy
    (tmp_path / "queries.jsonl").write_text("\n")
    with pytest.raises(SourceError, match="has no rows"):
        read_labeled_queries(tmp_path / "queries.jsonl")
