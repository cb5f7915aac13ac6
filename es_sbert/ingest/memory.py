"""What a load remembers of its documents, so that a killed one goes on and none is loaded twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import NamedTuple, Protocol

from es_sbert.ingest.records import Origin


@dataclass(frozen=True)
class LoadIdentity:
    """What must be the same for a load to go on where another one ended.

    Attributes:
        index_uuid: The index's own; another one of the same name has another.
        fingerprint: The model.
        fields: Vector fields that it fills: name, template of the embedded text, rules for passages.
        id_field: Field of the id; None for hashes of the content.
    """

    index_uuid: str
    fingerprint: str
    fields: tuple[tuple[str, str, str | None], ...]
    id_field: str | None


class Met(Enum):
    """What a load knows of a document that comes out of its source."""

    NEW = auto()  # not seen in this run; what an earlier run has seen is looked up in the index again
    ACKNOWLEDGED = auto()  # acknowledged in this run, and read again since the worker that read it first was lost
    REPEATED = auto()  # the very document was met earlier in this source
    CONTRADICTED = auto()  # its id was met earlier in this source, with another content


class Meeting(NamedTuple):
    """A document that comes out of the source.

    Attributes:
        id: Its id.
        content: Hash of the whole document, in hex digits.
        origin: Where it stands.
    """

    id: str
    content: str
    origin: Origin


class LoadMemory(Protocol):
    """What was met and acknowledged. Thread-safe.

    Attributes:
        path: The file that holds it.
        run: When the load was first started: tells its dead letters from others'.
        resumed: Whether it goes on with an earlier process's work.
        note: What must be said about an earlier file that is not gone on with; None where there is nothing.
    """

    path: Path
    run: str
    resumed: bool
    note: str | None

    def meet(self, meetings: Sequence[Meeting]) -> list[tuple[Met, Origin]]:
        """Enter documents in the order of the source: what is known of each, and where its id was met first.

        Raises:
            OutputError: the file cannot be written.
        """

    def acknowledge(self, document_ids: Sequence[str]) -> None:
        """The engine holds these documents as they were met; on the disk when this returns, but for a power cut.

        Raises:
            OutputError: the file cannot be written.
        """

    def holds(self, document_ids: Sequence[str]) -> set[str]:
        """Those of the ids that were met in this pass over the source.

        Raises:
            OutputError: the file cannot be read.
        """

    def count_acknowledged(self, documents: Sequence[tuple[str, str | None]] | None = None) -> int:
        """How many documents of this pass over the source are acknowledged.

        Args:
            documents: Of these alone: id and content of each, as in a `Meeting`; None for any content.

        Raises:
            OutputError: the file cannot be read.
        """

    def distrust(self) -> None:
        """The engine has altered documents of this load: vectors that the index holds may not be those that were sent.

        Raises:
            OutputError: the file cannot be written.
        """

    def is_distrusted(self) -> bool:
        """Whether an earlier process of this load has called `distrust`."""

    def remember_letters(self, keys: Iterable[bytes]) -> None:
        """Dead letters that this load has written already.

        Raises:
            OutputError: the file cannot be written.
        """

    def has_letter(self, key: bytes) -> bool:
        """Whether a dead letter was written before the load was killed.

        Raises:
            OutputError: the file cannot be read.
        """

    def close(self) -> None:
        """Close the file; it stays for a load that goes on. Does nothing after `finish`.

        Raises:
            OutputError: what is pending cannot be written.
        """

    def finish(self) -> None:
        """The load has come to its end: nothing is left to go on with."""
