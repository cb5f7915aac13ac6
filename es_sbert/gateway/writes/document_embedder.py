"""`DocumentEmbedder`: embed all texts of a request, in few batches."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from es_sbert.batched import batched
from es_sbert.bundle.sentence_model import PromptKind
from es_sbert.engines.engine_info import EngineInfo
from es_sbert.errors import EsSbertError
from es_sbert.gateway.embedder import BatchingEmbedder
from es_sbert.gateway.errors import public_model_error
from es_sbert.gateway.model_registry import ModelRegistry
from es_sbert.index.document_vectors import (
    ChunkedText,
    EmbeddingProvenance,
    EmbeddingTarget,
    VectorFieldValue,
    build_field_value,
)
from es_sbert.vectors import Vectors

K = TypeVar("K", bound=Hashable)

_PROMPT_KIND: PromptKind = "document"
# Share of the queue that one request may occupy.
_QUEUE_SHARE = 1 / 16
# Texts that are split at once; other requests are embedded in between.
_SPLIT_BATCH = 16


@dataclass(frozen=True)
class EmbeddedText:
    """A text, split into chunks if the field has chunk rules, and its vectors.

    Attributes:
        chunked: The text.
        vectors: *Shape:* ``(chunks, dimensions)`` float32.
        tokens: Tokens of each chunk, before truncation.
        max_tokens: Tokens that the model reads of a chunk.
    """

    chunked: ChunkedText
    vectors: Vectors
    tokens: list[int]
    max_tokens: int

    def field(self, info: EngineInfo, provenance: EmbeddingProvenance) -> VectorFieldValue:
        """Build the value of the vector field."""
        return build_field_value(info, self.chunked, self.vectors, self.tokens, self.max_tokens, provenance)


class DocumentEmbedder:
    """Embeds texts of documents.

    Args:
        models: The models of the vector fields.
        waiting_texts: Maximum number of queued texts of all requests.
    """

    def __init__(self, models: ModelRegistry, waiting_texts: int) -> None:
        self._models = models
        self._batch = max(1, int(waiting_texts * _QUEUE_SHARE))

    async def __call__(self, texts: Sequence[tuple[EmbeddingTarget, str]]) -> list[EmbeddedText | EsSbertError]:
        """Embed texts, each for a vector field. The result of a text that cannot be embedded is its error."""
        results: list[EmbeddedText | EsSbertError | None] = [None] * len(texts)
        rows_by_model = _group_rows((target.meta.model, target.meta.fingerprint) for target, _ in texts)
        for (model, fingerprint), rows in rows_by_model.items():
            embedded = await self._of_model(model, fingerprint, [texts[row] for row in rows])
            for row, result in zip(rows, embedded, strict=True):
                results[row] = result
        return [result for result in results if result is not None]

    async def _of_model(
        self, model: str, fingerprint: str, field_texts: Sequence[tuple[EmbeddingTarget, str]]
    ) -> Sequence[EmbeddedText | EsSbertError]:
        try:
            embedder = await self._models.get(model, fingerprint)
            chunked = await self._chunk(embedder, field_texts)
        except EsSbertError as error:
            return [public_model_error(error)] * len(field_texts)
        texts = [text for each in chunked for text in each.texts]
        vectors = np.empty((len(texts), embedder.info.dimensions), np.float32)  # (texts, dimensions)
        tokens = np.zeros(len(texts), np.int64)  # (texts,)
        problems: dict[int, EsSbertError] = {}  # by the row of a text
        # Texts of similar length are embedded together: a batch is padded to its longest text.
        for rows in batched(sorted(range(len(texts)), key=lambda row: len(texts[row])), self._batch):
            try:
                encoded = await embedder.embed([texts[row] for row in rows], _PROMPT_KIND)
            except EsSbertError as error:
                problems |= dict.fromkeys(rows, public_model_error(error))
                continue
            vectors[rows], tokens[rows] = encoded.vectors, encoded.tokens
        results: list[EmbeddedText | EsSbertError] = []
        limit = embedder.input_limit(_PROMPT_KIND)
        first = 0
        for each in chunked:
            start, first = first, first + len(each.texts)
            problem = next((problems[row] for row in range(start, first) if row in problems), None)
            own_tokens = tokens[start:first].tolist()
            results.append(problem or EmbeddedText(each, vectors[start:first], own_tokens, limit))
        return results

    async def _chunk(
        self, embedder: BatchingEmbedder, field_texts: Sequence[tuple[EmbeddingTarget, str]]
    ) -> list[ChunkedText]:
        chunked = [ChunkedText(target, text) for target, text in field_texts]
        for rules, rows in _group_rows(target.meta.passages for target, _ in field_texts).items():
            if rules is None:
                continue
            chunker = await embedder.chunker(rules)
            for part in batched(rows, _SPLIT_BATCH):
                split = await embedder.run_in_thread(chunker, [field_texts[row][1] for row in part])
                for row, spans in zip(part, split, strict=True):
                    chunked[row] = ChunkedText.cut(*field_texts[row], spans)
        return chunked


def _group_rows(keys: Iterable[K]) -> dict[K, list[int]]:
    """Key → the numbers of its rows."""
    rows: dict[K, list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    return rows
