"""Averaged word vectors: tokenize, read and write tables of vectors (GloVe, word2vec, fastText), train them with
gensim.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.sentence_model import PromptKind
from es_sbert.errors import OutputError, SourceError, require_extra
from es_sbert.filesystem import open_output
from es_sbert.io.file_formats import decompress
from es_sbert.io.text_formats import CorruptStream, Line, split_lines

# GloVe was trained on Penn Treebank tokens: clitics are separate tokens ("do n't", "man 's"), numbers keep their
# points and commas, every other sign is one token. Hyphens separate words, since few compounds have vectors.
_WORD = re.compile(r"\d+(?:[.,]\d+)*(?!\w)|\w+(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\w+|[^\w\s]", re.IGNORECASE)


def tokenize(text: str) -> list[str]:
    """The words, numbers and signs of a text, in order, with their case unchanged.

    >>> tokenize("The man's dog didn't cost $1,200.50.")
    ['The', 'man', "'s", 'dog', 'did', "n't", 'cost', '$', '1,200.50', '.']
    """
    words: list[str] = _WORD.findall(text.replace("’", "'"))  # typographic apostrophe
    return words


_CHUNK = 1 << 20
_MAX_LINE = 1 << 20
_ROWS = 1 << 14  # the table grows by so many rows at a time
_VECTORS_REMEDY = "Fetch the file again; it should hold one word and its numbers a line, parted by single spaces."


@dataclass(frozen=True)
class WordVectors:
    """A table of word vectors.

    Attributes:
        index: Word → row.
        vectors: ``(words, dimensions)`` float32.
    """

    index: dict[str, int]
    vectors: NDArray[np.float32]

    @property
    def dimensions(self) -> int:
        return int(self.vectors.shape[1])

    def rows(self, words: Sequence[str]) -> NDArray[np.int64]:
        """The rows of those words that the table has, *shape* ``(known words,)``.

        A word is looked up unchanged first and then in lower case, so that cased and uncased tables both work.
        """
        found = (self.index.get(word, self.index.get(word.lower())) for word in words)
        return np.array([row for row in found if row is not None], dtype=np.int64)  # (known words,)


def read_word_vectors(path: Path, *, only: Collection[str] | None = None) -> WordVectors:
    """Read a table, plain or compressed by gzip or zstd. It takes the memory of the float32 array and its words.

    If a word occurs twice, the first vector is used, as in gensim. Words that are not UTF-8 cannot occur in a text
    and are skipped. GloVe's words may contain spaces, as some of glove.840B do.

    Args:
        path: The file.
        only: Keep these words and no others.

    Raises:
        SourceError: the file is missing, cut short (as far as its format tells), or a line has another number of
            values than the first, or one that is no finite float32; with the line.
    """
    try:
        with path.open("rb") as file:
            chunks = iter(lambda: file.read(_CHUNK), b"")
            return _read_table(path, split_lines(decompress(chunks), _MAX_LINE), only)
    except CorruptStream as error:
        raise SourceError(f"{path}: {error}", "Fetch the file again.") from error
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}", "Check the path.") from error


def _read_table(path: Path, lines: Iterator[Line], only: Collection[str] | None) -> WordVectors:
    first = next(lines, None)
    if first is None:
        raise SourceError(f"{path} is empty", _VECTORS_REMEDY)
    head = first.data.split()
    is_header = len(head) == 2 and all(value.isdigit() for value in head)
    dimensions = int(head[1]) if is_header else len(first.data.rstrip(b" \r").split(b" ")) - 1
    if dimensions < 1:
        raise SourceError(f"{path}, line 1: neither a header nor a word with its vector", _VECTORS_REMEDY)

    index: dict[str, int] = {}
    table = np.empty((0, dimensions), dtype=np.float32)  # (room, dimensions)
    read = 0
    for line in lines if is_header else chain([first], lines):
        read += 1
        word, values = _split_line(path, line, dimensions)
        if word is None or word in index or (only is not None and word not in only):
            continue
        if len(index) == len(table):
            # Grown in place (realloc), so that memory never holds the table twice.
            table.resize((len(table) + _ROWS, dimensions), refcheck=False)
        table[len(index)] = _parse_values(path, line, values)
        index[word] = len(index)
    if is_header and read != int(head[0]):
        raise SourceError(f"{path} has {read:,} words, its header says {int(head[0]):,}", _VECTORS_REMEDY)
    if not index:
        raise SourceError(f"{path} has none of the words", "Check that the table and the texts are of one language.")
    table.resize((len(index), dimensions), refcheck=False)
    return WordVectors(index, table)


def _split_line(path: Path, line: Line, dimensions: int) -> tuple[str | None, list[bytes]]:
    """The word (None if it is not UTF-8) and its values, unparsed."""
    word, *values = line.data.rstrip(b" \r").rsplit(b" ", dimensions)
    inner = word.rpartition(b" ")[2] if b" " in word else None
    # Everything before the last values is the word, unless its last part is a number too.
    if len(values) < dimensions or line.is_too_long or (inner is not None and _is_number(inner)):
        found = sum(map(_is_number, line.data.split(b" ")[1:]))
        raise SourceError(f"{path}, line {line.number}: {found} values in place of {dimensions}", _VECTORS_REMEDY)
    if not word:
        raise SourceError(f"{path}, line {line.number}: values without a word", _VECTORS_REMEDY)
    try:
        return word.decode(), values
    except UnicodeDecodeError:
        return None, values


def _is_number(value: bytes) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _parse_values(path: Path, line: Line, values: list[bytes]) -> NDArray[np.float32]:
    """The values, *shape* ``(dimensions,)``."""
    try:
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            numbers = np.array([float(value) for value in values], dtype=np.float32)  # (dimensions,)
    except ValueError as error:
        raise SourceError(f"{path}, line {line.number}: {error}", _VECTORS_REMEDY) from error
    if not np.isfinite(numbers).all():
        raise SourceError(f"{path}, line {line.number}: a value is no finite float32", _VECTORS_REMEDY)
    return numbers


def write_word_vectors(path: Path, table: WordVectors) -> None:
    """Write a table in word2vec's text format (gzip'd where the name ends in .gz), exact to the last float32 bit.

    The file appears under its name only when it is complete; a pipe or a device is written to directly.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        with open_output(path) as file, gzip.open(file, "wb") if path.suffix == ".gz" else nullcontext(file) as out:
            out.write(f"{len(table.index)} {table.dimensions}\n".encode())
            for word, row in table.index.items():
                values = " ".join(f"{value:.9g}" for value in table.vectors[row].tolist())
                out.write(f"{word} {values}\n".encode())
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}", "Choose another place.") from error


class AveragedWordVectors:
    """The mean of the vectors of a text's words, stop words included (an `Embedder`).

    Words that the table lacks are left out; a text of such words alone gives the zero vector.

    Args:
        table: The word vectors.
        name: For tables.
    """

    def __init__(self, table: WordVectors, name: str) -> None:
        self._table = table
        self.name = name

    def embed(self, texts: Sequence[str], kind: PromptKind | None = None) -> NDArray[np.float32]:
        """Sentence vectors, *shape* ``(texts, dimensions)``; `kind` makes no difference."""
        vectors = np.zeros((len(texts), self._table.dimensions), dtype=np.float32)  # (texts, dimensions)
        for number, text in enumerate(texts):
            rows = self._table.rows(tokenize(text))  # (known words,)
            if len(rows):
                self._table.vectors[rows].mean(axis=0, out=vectors[number])
        return vectors


TrainingMethod = Literal["word2vec", "fasttext"]


class _TokenizedTexts:
    """The lower-cased words of each text, tokenized on every pass: gensim reads them once per epoch and once before."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def __iter__(self) -> Iterator[list[str]]:
        return (tokenize(text.lower()) for text in self._texts)


def train_word_vectors(
    texts: Sequence[str],
    *,
    method: TrainingMethod = "word2vec",
    dimensions: int = 300,
    epochs: int = 5,
    window: int = 5,
    min_count: int = 5,
    seed: int = 1,
    threads: int = 1,
) -> WordVectors:
    """Train skip-gram vectors with 5 negative samples; the most frequent words come first.

    word2vec: Mikolov et al. 2013, arXiv 1310.4546. fastText, whose vectors are sums over character n-grams:
    Bojanowski et al. 2017, arXiv 1607.04606 (the table holds the words of the corpus only, not the n-grams).

    Args:
        texts: The corpus; words are lower-cased.
        method: Which of the two.
        dimensions: Length of a vector.
        epochs: Passes over the corpus.
        window: Words on each side that a word predicts.
        min_count: Rarer words get no vector.
        seed: The same one gives the same vectors with one thread.
        threads: Worker threads.

    Raises:
        SourceError: no word occurs often enough in the corpus.
        UsageError: gensim is not installed.
    """
    require_extra("dev", "gensim")
    from gensim.models import FastText, Word2Vec

    model: Any = (FastText if method == "fasttext" else Word2Vec)(
        sg=1, negative=5, vector_size=dimensions, window=window, min_count=min_count, seed=seed, workers=threads
    )
    sentences = _TokenizedTexts(texts)
    model.build_vocab(sentences)
    if not len(model.wv):
        raise SourceError(
            f"no word occurs {min_count} times in the corpus", "Give a larger corpus or a lower minimum count."
        )
    model.train(sentences, total_examples=model.corpus_count, epochs=epochs)
    return WordVectors(dict(model.wv.key_to_index), np.asarray(model.wv.vectors, dtype=np.float32))
