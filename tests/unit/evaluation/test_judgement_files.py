"""Judgement lists: columns by any of their names, Quepid's exports, and broken files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from es_sbert.errors import SourceError, WrongArgument
from es_sbert.evaluation.judgement_files import LabeledQuery, read_judgements, read_labeled_queries
from tests.raised import raises, raises_as_recorded


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("j.csv", "query,document,grade\nheavy rain,d1,2\nheavy rain,d2,0\nsun,7,1\n"),
        ("quepid.csv", "query,docid,rating\nheavy rain,d1,2\nheavy rain,d2,0\nheavy rain,d3,\nsun,7,1\n"),
        ("case.csv", "Case ID,Query Text,Doc ID,Rating\n1,heavy rain,d1,2.0\n1,heavy rain,d2,0\n1,sun,7,1\n"),
        ("j.tsv", "query\tdoc-id\tscore\nheavy rain\td1\t2\nheavy rain \td2\t0\nsun\t7\t1\n"),
        (
            "j.jsonl",
            '{"query": "heavy rain", "_id": "d1", "grade": 2}\n{"query": "heavy rain", "_id": "d2", "grade": 0}\n'
            '{"query": "sun", "_id": 7, "grade": 1}\n',
        ),
    ],
)
def test_columns_have_several_names(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    found = read_judgements(tmp_path / name)
    assert found.judgements == {"heavy rain": {"d1": 2, "d2": 0}, "sun": {"7": 1}}
    assert found.queries == {"heavy rain": "heavy rain", "sun": "sun"}
    assert found.name == name.partition(".")[0]
    assert read_labeled_queries(tmp_path / name) == [LabeledQuery("heavy rain", ("d1",)), LabeledQuery("sun", ("7",))]


def test_relevant_documents_of_a_query_may_be_a_list(tmp_path: Path) -> None:
    """As `es-sbert index calibrate --queries` and `es-sbert adapt` read them."""
    path = tmp_path / "queries.jsonl"
    path.write_text('{"query": "heavy rain", "ids": ["d1", 7, "d1"], "note": 1}\n{"ids": ["b"], "query": "snow"}\n')
    assert read_judgements(path).judgements == {"heavy rain": {"d1": 1, "7": 1}, "snow": {"b": 1}}


@pytest.mark.parametrize("line", ['{"query": "x"}', '{"query": "x", "ids": "a"}', '{"query": "x", "ids": ["a", null]}'])
@pytest.mark.parametrize("read", [read_judgements, read_labeled_queries])
def test_broken_lists_of_documents_are_reported(tmp_path: Path, line: str, read: Callable[[Path], object]) -> None:
    path = tmp_path / "queries.jsonl"
    path.write_text('{"query": "x", "ids": ["a"]}\n' + line + "\n")
    with raises_as_recorded(SourceError):
        read(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("j.csv", "text,document,grade\na,b,1\n"),
        ("j.csv", "query,document,grade\na,b,0.5\n"),
        ("j.csv", "query,document,grade\na,b,high\n"),
        ("j.jsonl", '{"query": "a", "document": 1, "grade": true}\n'),
        ("j.jsonl", '{"query": ["a"], "document": 1, "grade": 1}\n'),
        ("j.csv", "query,document,grade\na,b,0\n"),
        ("j.csv", "query,document,grade\na,b,1\na,b,2\n"),
        ("j.jsonl", '{"query": "a", "document": true, "grade": 1}\n'),
    ],
)
def test_broken_lists_are_rejected(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with raises_as_recorded(SourceError):
        read_judgements(tmp_path / name)


@pytest.mark.parametrize("name", ["j.csv", "rank.json"])
@pytest.mark.parametrize("read", [read_judgements, read_labeled_queries])
def test_missing_file_and_body_of_rank_eval_are_rejected(
    tmp_path: Path, name: str, read: Callable[[Path], object]
) -> None:
    (tmp_path / "rank.json").write_text('{"requests": []}')
    with raises_as_recorded(SourceError):
        read(tmp_path / name)


@pytest.mark.parametrize(("text", "ids", "wrong"), [(None, ("d1",), "text"), ("sun", "d1", "ids"), ("sun", [1], "ids")])
def test_labeled_query_has_texts(text: Any, ids: Any, wrong: str) -> None:
    with raises(WrongArgument, wrong):
        LabeledQuery(text, ids)
