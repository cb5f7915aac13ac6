"""What of a document's texts is embedded: each text as a whole, or the passages of it."""

from __future__ import annotations

from collections.abc import Sequence

from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.passages import PassageSplitter
from es_sbert.encoder.types import TokenizedTexts, Vectors
from es_sbert.engines.protocol import EngineInfo
from es_sbert.index.filled import FilledField, Origins, Piece, filled_field
from es_sbert.index.layout import NESTED_LIMIT
from es_sbert.index.targets import Targets
from es_sbert.ingest.documents import Document


class Cutter:
    """Cuts the texts of documents by the rules of each target.

    Raises:
        UsageError: rules that do not go with the model.
    """

    def __init__(self, encoder: Encoder, targets: Targets) -> None:
        self._targets = targets
        self._splitters: list[PassageSplitter | None] = [
            encoder.splitter(target.meta.passages.tokens, target.meta.passages.overlap, "document")
            if target.filled and target.meta.passages is not None
            else None
            for target in targets
        ]

    def __call__(self, wanted: Sequence[tuple[Document, tuple[int, ...]]]) -> list[list[Piece]]:
        """The pieces of each document.

        Args:
            wanted: Documents, each with the targets that it gets a vector for.
        """
        cut: dict[tuple[int, int], Piece] = {}
        for number, splitter in enumerate(self._splitters):
            rows = [row for row, (_, targets) in enumerate(wanted) if number in targets]
            if splitter is not None and rows:
                # All at once: the library spreads them over the processors.
                found = splitter([wanted[row][0].texts[number] for row in rows])
                for row, passages in zip(rows, found, strict=True):
                    cut[row, number] = Piece.cut(self._targets[number], wanted[row][0].texts[number], passages)
        return [
            [cut.get((row, number)) or Piece(self._targets[number], document.texts[number]) for number in targets]
            for row, (document, targets) in enumerate(wanted)
        ]


def too_many_passages(pieces: Sequence[Piece], kept: Sequence[FilledField], limit: int) -> str | None:
    """Why an index would refuse a document with so many passages; None where it would not.

    Args:
        pieces: What is embedded of the document.
        kept: Vector fields that it keeps.
        limit: Nested objects that the index takes of a document, those of its other fields included.
    """
    passages = sum(len(piece.spans) for piece in pieces if piece.spans is not None)
    passages += sum(field.meta.passages or 0 for field in kept)
    if passages <= limit:
        return None
    return (
        f"its text is cut into {passages:,} passages, but the index takes {limit:,} nested objects a document "
        f"({NESTED_LIMIT}): raise the setting, or use larger passages"
    )


class WindowVectors:
    """The vectors of a window, handed out piece by piece in the order in which the pieces were embedded.

    Args:
        info: The engine, for the form of a vector.
        tokenized: What the model read.
        vectors: *Shape:* ``(texts, dimensions)`` float32.
        embedded_at: When, in UTC, ISO 8601.
    """

    def __init__(self, info: EngineInfo, tokenized: TokenizedTexts, vectors: Vectors, embedded_at: str) -> None:
        self._info = info
        self._tokenized = tokenized
        self._vectors = vectors
        self._embedded_at = embedded_at
        self._next = 0

    def skip(self, pieces: Sequence[Piece]) -> None:
        """Pass over the next pieces, of which not all were embedded."""
        self._next += sum(len(piece.texts) for piece in pieces)

    def field_of(self, document: Document, piece: Piece) -> tuple[FilledField, int]:
        """The vector field of the next piece, and how many tokens of its text the model did not read."""
        rows = slice(self._next, self._next + len(piece.texts))
        self._next = rows.stop
        tokens = self._tokenized.tokens[rows].tolist()  # (texts of the piece,)
        most = self._tokenized.max_tokens
        origins = Origins(document.document_hash, self._embedded_at)
        filled = filled_field(self._info, piece, self._vectors[rows], tokens, most, origins)
        return filled, sum(max(0, count - most) for count in tokens)
