"""What every source of a load can do, whatever it is: a file, standard input, an object in a store, a query."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from es_sbert.errors import SourceError
from es_sbert.index.field_names import nearest_name
from es_sbert.ingest.records import Record, Reject


class ReadingStopped(Exception):
    """Somebody asked to stop reading; an unfinished record is left alone."""


class SourceLost(Exception):
    """A source does not answer any more, though nothing is the matter with what it holds; the message says why."""


class ByteCounter:
    """Bytes taken from the sources so far: what a progress bar is drawn from."""

    def __init__(self) -> None:
        self.bytes = 0


@dataclass(frozen=True)
class ReadSettings:
    """How sources are read.

    Attributes:
        max_bytes: Longest record in bytes; longer ones become dead letters.
        plain_field: Field that takes the line where a source is plain text.
        index: The index that is loaded.
        retry_seconds: How long a source that does not answer is waited for.
    """

    max_bytes: int
    plain_field: str
    index: str = ""
    retry_seconds: float = 300.0


@dataclass(frozen=True)
class Reading:
    """One pass over the sources.

    Attributes:
        settings: How they are read.
        counter: Counts what was taken.
        stop: Set when no more is to be read.
    """

    settings: ReadSettings
    counter: ByteCounter
    stop: threading.Event


@dataclass(frozen=True)
class WantedColumns:
    """Columns that a source with a header must have.

    Attributes:
        text_fields: Of which one must be there.
        id_field: Must be there, where one is asked for.
    """

    text_fields: Sequence[str]
    id_field: str | None = None

    def check(self, name: str, columns: Sequence[str], *, nested: bool = False) -> None:
        """Compare them with the columns that there are.

        Args:
            name: The source, for messages.
            columns: Its columns.
            nested: Whether a column may hold objects, whose fields are named with a dot.

        Raises:
            SourceError: one is missing; the message names those that there are.
        """
        remedy = f"its columns are: {', '.join(columns)}"
        if not any(_has(columns, field, nested) for field in self.text_fields):
            meant = _meant(self.text_fields, columns)
            raise SourceError(
                f"{name} has no column {' or '.join(self.text_fields)}", f"{meant}Name one with --text-field; {remedy}."
            )
        if self.id_field is not None and not _has(columns, self.id_field, nested):
            meant = _meant([self.id_field], columns)
            raise SourceError(f"{name} has no column {self.id_field}", f"{meant}Name one with --id-field; {remedy}.")


def _meant(names: Sequence[str], columns: Sequence[str]) -> str:
    near = [meant for name in names if (meant := nearest_name(name, columns)) is not None]
    return f"Did you mean {' and '.join(dict.fromkeys(near))}? " if near else ""


def _has(columns: Sequence[str], field: str, nested: bool) -> bool:
    return field in columns or (nested and any(field.startswith(f"{column}.") for column in columns))


class Source(Protocol):
    """Records from somewhere. Sources are values: they can be compared, copied and sent to another process."""

    @property
    def name(self) -> str:
        """As it is called in messages, dead letters and the state; never holds a secret."""

    @property
    def path(self) -> Path | None:
        """The file on this machine; None where it is none."""

    @property
    def size(self) -> int | None:
        """Bytes that reading it will count; None where that is not known."""

    def check(self, max_bytes: int, wanted: WantedColumns) -> None:
        """Look at its beginning; what can be read only once (a pipe) is left alone.

        Raises:
            SourceError: it cannot be opened, is not what its name says, or lacks the columns asked for.
            UsageError: a library that reads it is not installed.
        """

    def pieces(self, piece_bytes: int) -> Sequence[Source]:
        """Sources that give its records one after another, for processes that read them at the same time.

        Args:
            piece_bytes: Bytes of a piece, about; a source that cannot be cut is a piece of its own.

        Raises:
            UsageError: it can be read once only, by this process.
            OSError, StreamBroken: it cannot be read to cut it.
        """

    def records(self, reading: Reading) -> Iterator[Record | Reject]:
        """Its records, with bounded memory.

        Raises:
            OSError: it cannot be opened.
            StreamBroken: what comes after the records so far cannot be read.
            SourceLost: it does not answer any more.
            ReadingStopped: `reading.stop` was set.
        """


class Input(Protocol):
    """Bytes from somewhere, from which the sources in files make records."""

    @property
    def name(self) -> str:
        """As it is called in messages; never holds a secret."""

    @property
    def path(self) -> Path | None:
        """The file on this machine; None where it is none."""

    @property
    def size(self) -> int | None:
        """Bytes; None where that is not known."""

    @property
    def again(self) -> bool:
        """Whether it can be read more than once."""

    def chunks(self, reading: Reading) -> Iterator[bytes]:
        """The bytes as they stand or come in, counted.

        Raises:
            OSError, StreamBroken, SourceLost, ReadingStopped: see `Source.records`.
        """

    def open(self, reading: Reading) -> BinaryIO:
        """A file that can be read anywhere, not counted.

        Raises:
            OSError, StreamBroken, SourceLost, ReadingStopped: see `Source.records`; its methods raise them too.
        """


@dataclass(frozen=True)
class FileSource:
    """What the sources in files share.

    Attributes:
        input: Where the bytes come from.
    """

    input: Input

    @property
    def name(self) -> str:
        return self.input.name

    @property
    def path(self) -> Path | None:
        return self.input.path

    @property
    def size(self) -> int | None:
        return self.input.size
