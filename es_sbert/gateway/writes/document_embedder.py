"""`DocumentEmbedder`: the vectors of all texts of a request, in few batches."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from es_sbert.bundle.sentence_model import PromptKind
from es_sbert.encoder.batching import Vectors
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.tokenizer import Chunker, Span
from es_sbert.engines.protocol import EngineInfo
from es_sbert.errors import EsSbertError
from es_sbert.gateway.embedding.embedder import BatchingEmbedder
from es_sbert.gateway.embedding.model_registry import ModelRegistry
from es_sbert.gateway.errors import public_model_error
from es_sbert.index.document_vectors import (
    ChunkedText,
    EmbeddingProvenance,
    EmbeddingTarget,
    VectorFieldValue,
    build_field_value,
)
from es_sbert.index.mapping import ChunkRules

_PROMPT_KIND: PromptKind = "document"
# Share of the queue that one request may occupy.
_QUEUE_SHARE = 1 / 16
# Texts that are split at once; other requests are embedded in between.
_SPLIT_BATCH = 16


@dataclass(frozen=True)
class EmbeddedText:
    """A text, split into chunks if the field holds passages, and its vectors.

    Attributes:
        piece: The chunked text.
        vectors: *Shape:* ``(chunks, dimensions)`` float32.
        tokens: Tokens of each chunk, before truncation.
        max_tokens: Maximum tokens of the model.
    """

    piece: ChunkedText
    vectors: Vectors
    tokens: list[int]
    max_tokens: int

    def field(self, info: EngineInfo, origins: EmbeddingProvenance) -> VectorFieldValue:
        """The value of the vector field."""
        return build_field_value(info, self.piece, self.vectors, self.tokens, self.max_tokens, origins)


class DocumentEmbedder:
    """Embeds texts of documents.

    Args:
        models: The models of the vector fields.
        waiting_texts: Maximum number of queued texts of all requests.
    """

    def __init__(self, models: ModelRegistry, waiting_texts: int) -> None:
        self._models = models
        self._batch = max(1, int(waiting_texts * _QUEUE_SHARE))
        self._splitters: weakref.WeakKeyDictionary[BatchingEmbedder, dict[ChunkRules, Chunker]] = (
            weakref.WeakKeyDictionary()
        )

    async def __call__(self, wanted: Sequence[tuple[EmbeddingTarget, str]]) -> list[EmbeddedText | EsSbertError]:
        """Embed texts, each for a vector field. Returns the error for a text that cannot be embedded."""
        found: list[EmbeddedText | EsSbertError | None] = [None] * len(wanted)
        rows: dict[tuple[str, str], list[int]] = {}
        for row, (target, _) in enumerate(wanted):
            rows.setdefault((target.meta.model, target.meta.fingerprint), []).append(row)
        for (model, fingerprint), own in rows.items():
            made = await self._of_model(model, fingerprint, [wanted[row] for row in own])
            for row, one in zip(own, made, strict=True):
                found[row] = one
        return [one for one in found if one is not None]

    async def _of_model(
        self, model: str, fingerprint: str, wanted: Sequence[tuple[EmbeddingTarget, str]]
    ) -> Sequence[EmbeddedText | EsSbertError]:
        try:
            embedder = await self._models.get(model, fingerprint)
            pieces = await self._pieces(embedder, wanted)
        except EsSbertError as error:
            return [public_model_error(error)] * len(wanted)
        texts = [text for piece in pieces for text in piece.texts]
        vectors = np.empty((len(texts), embedder.info.dimensions), np.float32)  # (texts, dimensions)
        tokens = [0] * len(texts)
        problems: dict[int, EsSbertError] = {}  # by the row of a text
        # Texts of similar length are embedded together: a batch is padded to its longest text.
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        for start in range(0, len(order), self._batch):
            rows = order[start : start + self._batch]
            try:
                encoded = await embedder.embed([texts[row] for row in rows], _PROMPT_KIND)
            except EsSbertError as error:
                problems |= dict.fromkeys(rows, public_model_error(error))
                continue
            vectors[rows] = encoded.vectors
            for row, count in zip(rows, encoded.tokens.tolist(), strict=True):
                tokens[row] = count
        result: list[EmbeddedText | EsSbertError] = []
        first = 0
        for piece in pieces:
            end = first + len(piece.texts)
            problem = next((problems[row] for row in range(first, end) if row in problems), None)
            embedded = EmbeddedText(piece, vectors[first:end], tokens[first:end], embedder.info.max_tokens)
            result.append(embedded if problem is None else problem)
            first = end
        return result

    async def _pieces(
        self, embedder: BatchingEmbedder, wanted: Sequence[tuple[EmbeddingTarget, str]]
    ) -> list[ChunkedText]:
        cut: dict[int, ChunkedText] = {}
        rows: dict[ChunkRules, list[int]] = {}
        for row, (target, _) in enumerate(wanted):
            if target.meta.passages is not None:
                rows.setdefault(target.meta.passages, []).append(row)
        for rules, own in rows.items():
            passages = await self._passages(embedder, rules, [wanted[row][1] for row in own])
            cut |= {row: ChunkedText.cut(*wanted[row], spans) for row, spans in zip(own, passages, strict=True)}
        return [cut.get(row) or ChunkedText(target, text) for row, (target, text) in enumerate(wanted)]

    async def _passages(self, embedder: BatchingEmbedder, rules: ChunkRules, texts: Sequence[str]) -> list[list[Span]]:
        known = self._splitters.setdefault(embedder, {})
        if rules not in known:
            known[rules] = await embedder.run_in_thread(partial(_make_splitter, rules))
        passages: list[list[Span]] = []
        for start in range(0, len(texts), _SPLIT_BATCH):
            part = texts[start : start + _SPLIT_BATCH]
            passages += await embedder.run_in_thread(partial(_split, known[rules], part))
        return passages


def _make_splitter(rules: ChunkRules, encoder: Encoder) -> Chunker:
    return encoder.splitter(rules.tokens, rules.overlap, _PROMPT_KIND)


def _split(splitter: Chunker, texts: Sequence[str], _: Encoder) -> list[list[Span]]:
    return splitter(texts)
