"""The texts that word vectors are trained on and tf-idf counts its words in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from es_sbert.errors import SourceError
from es_sbert.streams.compression import decompressed
from es_sbert.streams.lines import StreamBroken, split_lines, without_byte_order_mark
from es_sbert.tabular import read_table

_CHUNK = 1 << 18
_MAX_LINE = 1 << 30


def read_corpus(path: Path, columns: Sequence[str] = ("text",)) -> list[str]:
    """The texts of a corpus, in order.

    Args:
        path: A .txt file (also .gz or .zst) of one text a line, or anything that `read_table` reads.
        columns: Columns of a table that hold texts; those of one row follow each other.

    Raises:
        SourceError: the file is missing, broken or without texts, or lacks a column.
    """
    if ".txt" in path.suffixes:
        return _read_lines(path)
    table = read_table(path, columns)
    return [text for row in zip(*(table.texts(column) for column in columns), strict=True) for text in row]


def _read_lines(path: Path) -> list[str]:
    """The lines of a file that hold more than white space."""
    texts: list[str] = []
    try:
        with path.open("rb") as file:
            chunks = iter(lambda: file.read(_CHUNK), b"")
            for line in split_lines(without_byte_order_mark(decompressed(chunks)), _MAX_LINE):
                try:
                    text = line.data.decode().strip()
                except UnicodeDecodeError as error:
                    raise SourceError(
                        f"{path}, line {line.number}: not UTF-8 ({error.reason})", "Convert the file to UTF-8."
                    ) from error
                if text:
                    texts.append(text)
    except StreamBroken as error:
        raise SourceError(f"{path}: {error}", "Mend the file, or fetch it again.") from error
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}", "Check the path.") from error
    if not texts:
        raise SourceError(f"{path} holds no texts", "Name a file with one text a line.")
    return texts
