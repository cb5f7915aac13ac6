"""Tables of word vectors in the text formats of GloVe (no header) and word2vec or fastText (`count dimensions`)."""

from __future__ import annotations

import gzip
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_sbert.errors import OutputError, SourceError
from es_sbert.output import written
from es_sbert.streams.compression import decompressed
from es_sbert.streams.lines import Line, StreamBroken, split_lines

_CHUNK = 1 << 20
_MAX_LINE = 1 << 20
_ROWS = 1 << 14  # the table grows by so many rows at a time
_AGAIN = "Fetch the file again; it should hold one word and its numbers a line, parted by single spaces."


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

        A word is looked up as it stands and then in lower case, so that tables with and without case serve alike.
        """
        found = (self.index.get(word, self.index.get(word.lower())) for word in words)
        return np.array([row for row in found if row is not None], dtype=np.int64)  # (known words,)


def read_word_vectors(path: Path, *, only: Collection[str] | None = None) -> WordVectors:
    """Read a table, plain or compressed by gzip or zstd. It takes the memory of the float32 array and its words.

    Of a word that stands twice the first vector counts, as in gensim. Words that are not UTF-8 can stand in no text
    and are passed over. GloVe's words may hold spaces, as some of glove.840B do.

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
            return _read(path, split_lines(decompressed(chunks), _MAX_LINE), only)
    except StreamBroken as error:
        raise SourceError(f"{path}: {error}", "Fetch the file again.") from error
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}", "Check the path.") from error


def _read(path: Path, lines: Iterator[Line], only: Collection[str] | None) -> WordVectors:
    first = next(lines, None)
    if first is None:
        raise SourceError(f"{path} is empty", _AGAIN)
    head = first.data.split()
    is_header = len(head) == 2 and all(value.isdigit() for value in head)
    dimensions = int(head[1]) if is_header else len(first.data.rstrip(b" \r").split(b" ")) - 1
    if dimensions < 1:
        raise SourceError(f"{path}, line 1: neither a header nor a word with its vector", _AGAIN)

    index: dict[str, int] = {}
    table = np.empty((0, dimensions), dtype=np.float32)  # (room, dimensions)
    read = 0
    for line in lines if is_header else chain([first], lines):
        read += 1
        word, values = _split(path, line, dimensions)
        if word is None or word in index or (only is not None and word not in only):
            continue
        if len(index) == len(table):
            # Grown in place (realloc), so that the table never stands in memory twice.
            table.resize((len(table) + _ROWS, dimensions), refcheck=False)
        table[len(index)] = _numbers(path, line, values)
        index[word] = len(index)
    if is_header and read != int(head[0]):
        raise SourceError(f"{path} has {read:,} words, its header says {int(head[0]):,}", _AGAIN)
    if not index:
        raise SourceError(f"{path} has none of the words", "Check that the table and the texts are of one language.")
    table.resize((len(index), dimensions), refcheck=False)
    return WordVectors(index, table)


def _split(path: Path, line: Line, dimensions: int) -> tuple[str | None, list[bytes]]:
    """The word (None where it is not UTF-8) and its values as they stand."""
    word, *values = line.data.rstrip(b" \r").rsplit(b" ", dimensions)
    inner = word.rpartition(b" ")[2] if b" " in word else None
    # Whatever stands before the last values is the word, unless its end is a number too.
    if len(values) < dimensions or line.too_long or (inner is not None and _is_number(inner)):
        found = sum(map(_is_number, line.data.split(b" ")[1:]))
        raise SourceError(f"{path}, line {line.number}: {found} values in place of {dimensions}", _AGAIN)
    if not word:
        raise SourceError(f"{path}, line {line.number}: values without a word", _AGAIN)
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


def _numbers(path: Path, line: Line, values: list[bytes]) -> NDArray[np.float32]:
    """The values, *shape* ``(dimensions,)``."""
    try:
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            numbers = np.array([float(value) for value in values], dtype=np.float32)  # (dimensions,)
    except ValueError as error:
        raise SourceError(f"{path}, line {line.number}: {error}", _AGAIN) from error
    if not np.isfinite(numbers).all():
        raise SourceError(f"{path}, line {line.number}: a value is no finite float32", _AGAIN)
    return numbers


def write_word_vectors(path: Path, table: WordVectors) -> None:
    """Write a table in word2vec's text format (gzip'd where the name ends in .gz), exact to the last float32 bit.

    The file appears under its name only when it is complete; a pipe or a device is written to as it is.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        with written(path) as file, gzip.open(file, "wb") if path.suffix == ".gz" else nullcontext(file) as out:
            out.write(f"{len(table.index)} {table.dimensions}\n".encode())
            for word, row in table.index.items():
                values = " ".join(f"{value:.9g}" for value in table.vectors[row].tolist())
                out.write(f"{word} {values}\n".encode())
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}", "Choose another place.") from error
