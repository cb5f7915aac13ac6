"""Data of every task from folders and files; what is wrong with it is named with its line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from es_sbert.errors import SourceError
from es_sbert.evaluation.beir_files import RetrievalCollection, read_beir_folder
from es_sbert.evaluation.task_data import EvaluationTask, TaskTexts, read_task_data
from tests.raised import raises_as_recorded
from tests.unit.evaluation.support import write_collection


def write(path: Path, *rows: tuple[str, ...]) -> Path:
    """A TSV file, compressed where its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join("\t".join(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


STS = ("sentence1", "sentence2", "score")


def gold(data: TaskTexts) -> list[float]:
    assert data.gold is not None
    found: list[float] = data.gold.tolist()
    return found


def test_sts_reads_dev_and_test_but_not_train(tmp_path: Path) -> None:
    for name in ("b-test", "a-dev", "a-train"):
        write(tmp_path / f"sts/{name}.tsv.gz", STS, ("x", "y", "2.5"), ("v", "w", "0"))
    found = read_task_data(EvaluationTask.STS, tmp_path)
    assert [each.name for each in found] == ["a-dev", "b-test"]
    assert isinstance(found[0], TaskTexts)
    assert found[0].columns == (["x", "v"], ["y", "w"])
    assert gold(found[0]) == [2.5, 0.0]


def test_other_tasks_are_read(tmp_path: Path) -> None:
    write(tmp_path / "triplets/w-dev.tsv", ("section", "anchor", "positive", "negative"), ("s", "a", "p", "n"))
    assert read_task_data(EvaluationTask.TRIPLET, tmp_path) == [TaskTexts("w-dev", (["a"], ["p"], ["n"]))]
    (tmp_path / "duplicates").mkdir()
    for split in ("train", "test"):
        (tmp_path / f"duplicates/q-{split}.jsonl").write_text(
            '{"question1": "x", "question2": "y", "is_duplicate": 1}\n'
            '{"question1": "v", "question2": "w", "is_duplicate": 0}\n'
        )
    (found,) = read_task_data(EvaluationTask.DUPLICATES, tmp_path)
    assert isinstance(found, TaskTexts)
    assert (found.name, found.columns[0], gold(found)) == ("q-test", ["x", "v"], [1, 0])


def test_read_collection(tmp_path: Path) -> None:
    write_collection(tmp_path / "retrieval/small", judgements="1\td1\t2\n1\td9\t1\n2\td2\t1\n")
    (found,) = read_task_data(EvaluationTask.RETRIEVAL, tmp_path)
    assert isinstance(found, RetrievalCollection)
    assert found.name == "small"
    assert found.documents == {
        "1": "Do cats sleep a lot?",
        "d1": "Cats sleep.",
        "d2": "Dogs bark.",
        "2": "Something else.",
    }
    assert found.queries == {"1": "sleep a lot?", "2": "dogs"}
    assert found.judgements["1"] == {"d1": 2, "d9": 1}
    # A document of the same id and text is the query itself; of the same id alone it is not.
    assert (found.own("1"), found.own("2")) == ("1", None)


def test_documents_without_text_are_listed_separately(tmp_path: Path) -> None:
    corpus = [{"_id": "d1", "title": " ", "text": ""}, {"_id": "d2", "text": "Dogs bark."}, {"_id": "d3", "text": None}]
    found = read_beir_folder(write_collection(tmp_path / "small", corpus=corpus))
    assert (found.documents, found.empty) == ({"d2": "Dogs bark."}, ("d1", "d3"))
    assert found.judgements == {"1": {"d1": 2, "d9": 1}}, "d1 is still to be found"


@pytest.mark.parametrize(
    "options",
    [
        {"corpus": [{"_id": "a", "text": "x"}, {"_id": "a", "text": "y"}]},
        {"corpus": [{"_id": "a", "text": ["x"]}]},
        {"corpus": [{"_id": "a", "text": " "}]},
        {"corpus": [{"_id": "a", "body": "x"}]},
        {"judgements": "1\td1\t0\n"},
        {"judgements": "1\td1\t0.5\n"},
        {"judgements": "9\td1\t1\n"},
        {"judgements": "1\td1\tyes\n"},
        {"judgements": "1\td1\t1\n2\td2\t1\n1\td1\t0\n"},
    ],
)
def test_broken_collections_are_rejected(options: dict[str, object], tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "small", **options)  # type: ignore[arg-type]
    with raises_as_recorded(SourceError):
        read_task_data(EvaluationTask.RETRIEVAL, folder)


def _write_parquet(path: Path, columns: dict[str, list[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def test_read_parquet_collection_of_the_hub(tmp_path: Path) -> None:
    folder = tmp_path / "NanoFiQA"
    for part, ids in enumerate((["d1", "d2"], ["d3"])):
        name = f"corpus/train-{part:05}-of-00002.parquet"
        _write_parquet(folder / name, {"_id": ids, "text": [f"text of {id}" for id in ids]})
    _write_parquet(folder / "queries/train-00000-of-00001.parquet", {"_id": ["q"], "text": ["what?"]})
    _write_parquet(folder / "qrels/train-00000-of-00001.parquet", {"query-id": ["q"], "corpus-id": ["d3"]})
    found = read_beir_folder(folder)
    assert (found.name, list(found.documents)) == ("NanoFiQA", ["d1", "d2", "d3"])
    assert found.judgements == {"q": {"d3": 1}}, "without a score, a judged document is relevant"
    _write_parquet(folder / "corpus/train-00001-of-00002.parquet", {"_id": ["d2"], "text": ["again"]})
    with raises_as_recorded(SourceError):
        read_task_data(EvaluationTask.RETRIEVAL, tmp_path)


def test_read_several_collections_of_one_data_set(tmp_path: Path) -> None:
    for name in ("NanoNQ", "NanoArguAna"):
        tail = f"{name}-00000-of-00001.parquet"
        _write_parquet(tmp_path / "corpus" / tail, {"_id": ["d"], "text": [name]})
        _write_parquet(tmp_path / "queries" / tail, {"_id": ["q"], "text": ["what?"]})
        _write_parquet(tmp_path / "qrels" / tail, {"query-id": ["q"], "corpus-id": ["d"], "score": [2]})
    found = read_task_data(EvaluationTask.RETRIEVAL, tmp_path)
    assert [(each.name, each.documents) for each in found if isinstance(each, RetrievalCollection)] == [
        ("NanoArguAna", {"d": "NanoArguAna"}),
        ("NanoNQ", {"d": "NanoNQ"}),
    ]
    with raises_as_recorded(SourceError):
        read_beir_folder(tmp_path)
    (tmp_path / "qrels/NanoNQ-00000-of-00001.parquet").unlink()
    with raises_as_recorded(SourceError):
        read_task_data(EvaluationTask.RETRIEVAL, tmp_path)


def test_the_split_of_judgements_is_test_or_the_only_one(tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "small")
    (folder / "qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\n1\td2\t1\n")
    assert read_beir_folder(folder).judgements == {"1": {"d1": 2, "d9": 1}}
    (folder / "qrels/test.tsv").rename(folder / "qrels/dev.tsv")
    with raises_as_recorded(SourceError):
        read_task_data(EvaluationTask.RETRIEVAL, folder)
    (folder / "qrels/dev.tsv").unlink()
    (folder / "qrels/README.md").touch()
    assert read_beir_folder(folder).judgements == {"1": {"d2": 1}}
    for missing in ("qrels/train.tsv", "queries.jsonl"):
        (folder / missing).unlink()
        with raises_as_recorded(SourceError):
            read_beir_folder(folder)


@pytest.mark.parametrize(
    ("task", "rows"),
    [
        ("sts", [STS, ("x", "y", "1"), ("x", "y", "high")]),
        ("sts", [STS]),
        ("sts", [("first", "second", "score"), ("x", "y", "1")]),
        ("duplicates", [("question1", "question2", "is_duplicate"), ("x", "y", "2")]),
    ],
)
def test_broken_files_are_rejected(task: str, rows: list[tuple[str, ...]], tmp_path: Path) -> None:
    with raises_as_recorded(SourceError):
        read_task_data(EvaluationTask(task), None, [write(tmp_path / "broken.tsv", *rows)])


def test_limit_samples_the_whole_file(tmp_path: Path) -> None:
    rows = [(f"x{number}", "y", str(number)) for number in range(100)]
    path = write(tmp_path / "a.tsv", STS, *rows)
    (found,), (again,) = (read_task_data(EvaluationTask.STS, None, [path], limit=20) for _ in range(2))
    assert isinstance(found, TaskTexts)
    assert isinstance(again, TaskTexts)
    assert found.columns == again.columns
    assert found.columns[0] == [f"x{number:.0f}" for number in gold(found)]
    assert sorted(gold(found)) == gold(found)
    assert max(gold(found)) > 50
