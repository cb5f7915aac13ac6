"""A corpus is lines of text or columns of a table."""

import gzip
from pathlib import Path

import pytest

from benchmarks.baselines.tfidf import read_corpus
from es_sbert.errors import SourceError


def test_reads_plain_and_compressed_lines(tmp_path: Path) -> None:
    content = "\ufeffA first text.\r\n\n  Größe \nlast".encode()
    (tmp_path / "corpus.txt").write_bytes(content)
    (tmp_path / "corpus.txt.gz").write_bytes(gzip.compress(content))
    for name in ("corpus.txt", "corpus.txt.gz"):
        assert read_corpus(tmp_path / name) == ["A first text.", "Größe", "last"]


def test_reads_table_columns(tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text('{"text": "one", "id": 1}\n{"text": "two"}\n')
    assert read_corpus(tmp_path / "docs.jsonl") == ["one", "two"]
    (tmp_path / "pairs.tsv").write_text("a\tb\nx\ty\nz\tw\n")
    assert read_corpus(tmp_path / "pairs.tsv", ("a", "b")) == ["x", "y", "z", "w"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"\n  \n", "holds no texts"),
        ("latin.txt", "gut\ngröße\n".encode("latin-1"), "latin.txt, line 2: not UTF-8"),
        ("cut.txt.gz", gzip.compress(b"some text\n", mtime=0)[:-5], "truncated"),
        ("other.jsonl", b'{"body": "x"}\n', "no column text"),
        ("holes.jsonl", b'{"text": "x"}\n{"text": " "}\n', "line 2: text is empty"),
    ],
)
def test_broken_corpora_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError) as error:
        read_corpus(tmp_path / name)
    assert message in error.value.message


def test_missing_corpus_raises_source_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read"):
        read_corpus(tmp_path / "absent.txt")
