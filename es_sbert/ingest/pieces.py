"""What of a document's texts is embedded: each text as a whole, or the passages of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.passages import PassageSplitter, Span
from es_sbert.encoder.types import TokenizedTexts, Vectors
from es_sbert.engines.protocol import EngineInfo
from es_sbert.index.meta import DocumentMeta, text_hash
from es_sbert.index.vectors import bulk_value, passage_values
from es_sbert.ingest.actions import FilledField
from es_sbert.ingest.documents import Document
from es_sbert.ingest.targets import Targets
from es_sbert.ingest.triage import lost_tokens


@dataclass(frozen=True, slots=True)
class Piece:
    """A text of a document, as it is embedded.

    Attributes:
        target: Number of the load's target.
        text: The whole text.
        spans: Passages of it; None where it is embedded as a whole.
    """

    target: int
    text: str
    spans: tuple[Span, ...] | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """What the model reads, one text a vector."""
        return (self.text,) if self.spans is None else tuple(self.text[start:end] for start, end in self.spans)


class Cutter:
    """Cuts the texts of documents by the rules of each target.

    Raises:
        UsageError: rules that do not go with the model.
    """

    def __init__(self, encoder: Encoder, targets: Targets) -> None:
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
        spans: dict[tuple[int, int], tuple[Span, ...]] = {}
        for number, splitter in enumerate(self._splitters):
            rows = [row for row, (_, targets) in enumerate(wanted) if number in targets]
            if splitter is not None and rows:
                # All at once: the library spreads them over the processors.
                found = splitter([wanted[row][0].texts[number] for row in rows])
                for row, passages in zip(rows, found, strict=True):
                    whole = (0, len(wanted[row][0].texts[number]))
                    spans[row, number] = tuple(passages) or (whole,)
        return [
            [Piece(number, document.texts[number], spans.get((row, number))) for number in targets]
            for row, (document, targets) in enumerate(wanted)
        ]


class WindowVectors:
    """The vectors of a window, handed out piece by piece in the order in which the pieces were embedded.

    Args:
        info: The engine, for the form of a vector.
        targets: The load's targets.
        tokenized: What the model read.
        vectors: *Shape:* ``(texts, dimensions)`` float32.
        embedded_at: When, in UTC, ISO 8601.
    """

    def __init__(self, info: EngineInfo, targets: Targets, tokenized: TokenizedTexts, vectors: Vectors,
                 embedded_at: str) -> None:  # fmt: skip
        self._info = info
        self._targets = targets
        self._tokenized = tokenized
        self._vectors = vectors
        self._embedded_at = embedded_at
        self._next = 0

    def field_of(self, document: Document, piece: Piece) -> tuple[FilledField, int]:
        """The vector field of the next piece, and how many tokens of its text the model did not read."""
        target = self._targets[piece.target]
        rows = slice(self._next, self._next + len(piece.texts))
        self._next = rows.stop
        tokens = self._tokenized.tokens[rows]  # (texts of the piece,)
        lost = sum(lost_tokens(int(count), self._tokenized.max_tokens) for count in tokens)
        meta = DocumentMeta(
            fingerprint=target.meta.fingerprint, text_hash=text_hash(piece.text),
            document_hash=document.document_hash, tokens=int(tokens.sum()), truncated=lost > 0,
            embedded_at=self._embedded_at, passages=None if piece.spans is None else len(piece.spans),
        )  # fmt: skip
        own = self._vectors[rows]  # (texts of the piece, dimensions)
        whole = piece.spans is None
        value = bulk_value(self._info, own[0]) if whole else passage_values(self._info, piece.spans or (), own)
        return FilledField(target.field, value, meta), lost
