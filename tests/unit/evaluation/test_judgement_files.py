"""Judgement lists: columns by any of their names, Quepid's exports, and broken files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from es_sbert.errors import SourceError
from es_sbert.evaluation.judgement_files import LabeledQuery, read_judgements, read_labeled_queries


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


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"query": "x"}', "line 2: ids is missing"),
        ('{"query": "x", "ids": "a"}', "line 2: ids is not a list of document ids"),
        ('{"query": "x", "ids": ["a", null]}', "line 2: ids holds None, which is not a document id"),
    ],
)
@pytest.mark.parametrize("read", [read_judgements, read_labeled_queries])
def test_broken_lists_of_documents_are_reported(
    tmp_path: Path, line: str, message: str, read: Callable[[Path], object]
) -> None:
    path = tmp_path / "queries.jsonl"
    path.write_text('{"query": "x", "ids": ["a"]}\n' + line + "\n")
    with pytest.raises(SourceError, match=message) as caught:
        read(path)
    assert '"ids": ["1", …]' in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("j.csv", "text,document,grade\na,b,1\n", "has no column query; it has text, document, grade"),
        ("j.csv", "query,document,grade\na,b,0.5\n", "line 2: grade is not a whole number: '0.5'"),
        ("j.csv", "query,document,grade\na,b,high\n", "line 2: grade is not a whole number: 'high'"),
        ("j.jsonl", '{"query": "a", "document": 1, "grade": true}\n', "line 1: grade is not a whole number: True"),
        ("j.jsonl", '{"query": ["a"], "document": 1, "grade": 1}\n', "line 1: query is not a single text: ['a']"),
        ("j.csv", "query,document,grade\na,b,0\n", "j.csv has no relevant document"),
        ("j.csv", "query,document,grade\na,b,1\na,b,2\n", "line 3: 'b' already has the grade 1 for 'a'"),
        ("j.jsonl", '{"query": "a", "document": true, "grade": 1}\n', "line 1: document is not an id: True"),
    ],
)
def test_broken_lists_are_rejected(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SourceError) as caught:
        read_judgements(tmp_path / name)
    assert message in caught.value.message


@pytest.mark.parametrize(("name", "remedy"), [("j.csv", "Check the path."), ("rank.json", "`jq -c '.requests[]")])
@pytest.mark.parametrize("read", [read_judgements, read_labeled_queries])
def test_missing_file_and_body_of_rank_eval_are_rejected(
    tmp_path: Path, name: str, remedy: str, read: Callable[[Path], object]
) -> None:
    (tmp_path / "rank.json").write_text('{"requests": []}')
    with pytest.raises(SourceError) as caught:
        read(tmp_path / name)
    assert remedy in caught.value.remedy
