"""Tables of word vectors are read as gensim reads them, and refused where they are broken."""

import gzip
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from gensim.models import KeyedVectors
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from benchmarks.baselines import word_vectors
from benchmarks.baselines.word_vectors import WordVectors, read_word_vectors, write_word_vectors
from es_sbert.errors import OutputError, SourceError

GLOVE = "the 0.1 -0.25 3e-2\nThe 1 2 3\n. 0.5 0.5 -0.5\nthe 9 9 9\n東京 -1 0 1\n"


def put(folder: Path, content: str | bytes, name: str = "words.txt") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def same_as_gensim(table: WordVectors, reference: KeyedVectors) -> None:
    assert table.index == reference.key_to_index
    assert table.vectors.dtype == np.float32
    # Where words stand twice, gensim's own array keeps rows that nothing points to.
    np.testing.assert_array_equal(table.vectors, [reference[word] for word in table.index])


def test_glove_without_header_equals_gensim(tmp_path: Path) -> None:
    path = put(tmp_path, GLOVE)
    table = read_word_vectors(path)
    assert list(table.index) == ["the", "The", ".", "東京"]  # the second "the" is passed over
    # With a header put in front: gensim leaves files without one open behind it.
    same_as_gensim(table, KeyedVectors.load_word2vec_format(put(tmp_path, f"5 3\n{GLOVE}", "headed.txt")))


@pytest.mark.parametrize("name", ["words.vec", "words.vec.gz"])
def test_fasttext_with_header_equals_gensim(tmp_path: Path, name: str) -> None:
    lines = GLOVE.replace("\n", " \n")  # fastText ends its lines with a space
    content = f"5 3\n{lines}".encode()
    path = put(tmp_path, gzip.compress(content) if name.endswith("gz") else content, name)
    same_as_gensim(read_word_vectors(path), KeyedVectors.load_word2vec_format(path))


def test_vector_table_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_vectors, "_ROWS", 7)
    random = np.random.default_rng(0)
    expected = random.normal(size=(50, 4)).astype(np.float32)
    lines = [f"w{number} " + " ".join(map(repr, row.tolist())) for number, row in enumerate(expected)]
    table = read_word_vectors(put(tmp_path, "\n".join(lines)))
    np.testing.assert_array_equal(table.vectors, expected)


def test_only_requested_words_are_read(tmp_path: Path) -> None:
    table = read_word_vectors(put(tmp_path, GLOVE), only={"The", "東京", "absent"})
    assert table.index == {"The": 0, "東京": 1}
    np.testing.assert_array_equal(table.vectors, np.float32([[1, 2, 3], [-1, 0, 1]]))


def test_words_with_spaces_as_in_glove_840b(tmp_path: Path) -> None:
    table = read_word_vectors(put(tmp_path, "a 1 2\n. . . 3 4\nat name@domain.com 5 6\n"))
    assert list(table.index) == ["a", ". . .", "at name@domain.com"]


def test_non_utf8_word_is_skipped(tmp_path: Path) -> None:
    assert list(read_word_vectors(put(tmp_path, b"a 1 2\n\xff\xfe 3 4\nb 5 6\n")).index) == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("word\n", "line 1: neither"),
        ("a 1 2\nb 1\n", "line 2: 1 values in place of 2"),
        ("a 1 2\nb 1 2 3\n", "line 2: 3 values in place of 2"),
        ("a 1 2\n\nb 1 2\n", "line 2: 0 values in place of 2"),
        ("a 1 2\nb 1 x\n", "line 2: could not convert string to float: b'x'"),
        ("a 1 2\nb 1 nan\n", "line 2: a value is no finite float32"),
        ("a 1 2\nb 1 1e39\n", "line 2: a value is no finite float32"),
        ("a 1 2\n 1 2\n", "line 2: values without a word"),
        ("3 2\na 1 2\nb 1 2\n", "has 2 words, its header says 3"),
        ("1 2\na 1 2\nb 1 2\n", "has 2 words, its header says 1"),
        (gzip.compress(GLOVE.encode(), mtime=0)[:-9], "truncated"),
    ],
)
def test_broken_tables_are_refused(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(SourceError, match="words.txt") as error:
        read_word_vectors(put(tmp_path, content))
    assert message in error.value.message


def test_missing_file_and_absent_words_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read"):
        read_word_vectors(tmp_path / "absent.txt")
    with pytest.raises(SourceError, match="none of the words"):
        read_word_vectors(put(tmp_path, GLOVE), only={"absent"})


@given(arrays.arrays(np.float32, (3, 4), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_written_tables_round_trip_exactly(tmp_path_factory: pytest.TempPathFactory, vectors: np.ndarray) -> None:
    folder = tmp_path_factory.mktemp("written")
    table = WordVectors({"the": 0, ". . .": 1, "東京": 2}, vectors)
    for name in ("words.vec", "words.vec.gz"):
        write_word_vectors(folder / name, table)
        again = read_word_vectors(folder / name)
        assert again.index == table.index
        np.testing.assert_array_equal(again.vectors, vectors)
    assert sorted(path.name for path in folder.iterdir()) == ["words.vec", "words.vec.gz"]


def test_gensim_reads_written_tables(tmp_path: Path) -> None:
    table = read_word_vectors(put(tmp_path, GLOVE))
    write_word_vectors(tmp_path / "words.vec", table)
    same_as_gensim(table, KeyedVectors.load_word2vec_format(tmp_path / "words.vec"))


def test_unwritable_path_raises_output_error(tmp_path: Path) -> None:
    table = WordVectors({"a": 0}, np.ones((1, 2), dtype=np.float32))
    with pytest.raises(OutputError, match="cannot be written"):
        write_word_vectors(tmp_path / "absent" / "words.vec", table)


def test_pipes_and_links_are_not_replaced(tmp_path: Path) -> None:
    """A device that was replaced by a file would be broken for everybody."""
    table = WordVectors({"a": 0}, np.ones((1, 2), dtype=np.float32))
    pipe, link = tmp_path / "pipe", tmp_path / "link.vec"
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "words.vec")
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_bytes)
        write_word_vectors(pipe, table)
        assert read.result(timeout=60) == b"1 2\na 1 1\n"
    write_word_vectors(link, table)
    assert (pipe.is_fifo(), link.is_symlink(), (tmp_path / "words.vec").read_bytes()) == (True, True, b"1 2\na 1 1\n")
