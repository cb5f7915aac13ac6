"""Plan batches of texts of similar length, and build their inputs: padded for CPUs, packed without padding for CUDA."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


@dataclass(frozen=True)
class BatchLimits:
    """Maximum size of a batch.

    Attributes:
        padded: Maximum tokens with padding: longest × texts.
        tokens: Maximum tokens without padding; None for no such limit.
        similar: Once a batch has `ENOUGH_TOKENS`, a text with less than this share of the longest text's tokens begins
            the next batch; 0 for no such limit.
    """

    padded: int
    tokens: int | None = None
    similar: float = 0.0


# Padded tokens of a batch beyond which a larger batch is hardly faster on a CPU.
ENOUGH_TOKENS = 64


def plan_batches(lengths: NDArray[np.int64], budget: int | BatchLimits) -> list[NDArray[np.int64]]:
    """Group texts of similar length (smart batching, Reimers and Gurevych 2019, section 7).

    The longest come first: onnxruntime's memory arena then takes its full size once and is never regrown.

    Args:
        lengths: *Shape:* ``(texts,)``, tokens of each text.
        budget: Limits of a batch; a number counts tokens with padding. A text longer than that runs alone.

    Returns:
        Index arrays; together they hold every index exactly once.
    """
    limits = budget if isinstance(budget, BatchLimits) else BatchLimits(budget)
    order = np.argsort(-lengths, kind="stable")
    negated = -lengths[order]  # (texts,), ascending
    ends = np.cumsum(-negated)  # (texts,), tokens up to and with each
    batches, start = [], 0
    while start < len(order):
        longest = max(1, -int(negated[start]))
        stop = start + limits.padded // longest
        if limits.similar:
            # Index of the first text that is too short for this batch.
            short = int(np.searchsorted(negated, -limits.similar * longest, side="right"))
            stop = min(stop, max(short, start + math.ceil(ENOUGH_TOKENS / longest)))
        if limits.tokens is not None:
            used = int(ends[start - 1]) if start else 0
            stop = min(stop, int(np.searchsorted(ends, used + limits.tokens, side="right")))
        stop = max(stop, start + 1)
        batches.append(order[start:stop])
        start = stop
    return batches


def unique_rows(rows: Sequence[NDArray[np.int64]]) -> tuple[list[int], NDArray[np.int64]]:
    """Group identical inputs, which need encoding only once.

    Returns:
        Index of the first row of each kind, and for every row the position of its kind in that list,
        *shape* ``(rows,)``.
    """
    seen: dict[bytes, int] = {}
    firsts: list[int] = []
    kind_of = np.empty(len(rows), dtype=np.int64)  # (rows,)
    for number, row in enumerate(rows):
        position = seen.setdefault(row.tobytes(), len(firsts))
        if position == len(firsts):
            firsts.append(number)
        kind_of[number] = position
    return firsts, kind_of


def mark_unpooled(row: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return a row with its first `count` token ids marked, because the pooling leaves them out: n becomes -n - 1."""
    row = row.copy()
    row[:count] = ~row[:count]
    return row


def token_ids(marked: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return token ids without the marks of `mark_unpooled`; any shape."""
    return np.where(marked < 0, ~marked, marked)


# Input of graphs whose pooling leaves tokens out, int32 (batch, longest): 1 for a token that is pooled.
POOLING_MASK = "pooling_mask"
ModelInputs = dict[str, NDArray[Any]]

# Padded lengths on CUDA are multiples of this: onnxruntime's memory-efficient attention takes a bias or a mask only if
# its rows are aligned to 16 bytes, 8 numbers of fp16. For other lengths, it uses slower kernels.
LENGTH_MULTIPLE = 8
# Property of a packed graph: id of the padding token, if positions are counted as in RoBERTa.
PADDING_ID_PROPERTY = "es_sbert.padding_id"
# Property of a padded graph for CUDA: padded lengths must be multiples of this number.
LENGTH_MULTIPLE_PROPERTY = "es_sbert.length_multiple"


def round_up(length: int, multiple: int = LENGTH_MULTIPLE) -> int:
    """Round `length` up to a multiple of `multiple`."""
    return -(-length // multiple) * multiple


def pad(
    rows: Sequence[NDArray[np.int64]], padding: int = 0, *, length: int = 1, left: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Stack rows of token ids.

    Args:
        rows: Arrays of *shape* ``(tokens,)``.
        padding: Id in the padded places; the mask keeps it out of the result.
        length: Minimum padded length.
        left: Pad on the left instead of on the right.

    Returns:
        Token ids and attention mask, both of *shape* ``(rows, longest)``; `longest` is at least `length`.
    """
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))  # (rows,)
    longest = max(length, int(lengths.max()))
    columns = np.arange(longest)
    mask = (columns[::-1] if left else columns) < lengths[:, None]  # (rows, longest)
    ids = np.full(mask.shape, padding, dtype=np.int64)  # (rows, longest)
    ids[mask] = np.concatenate(rows)
    return ids, mask.astype(np.int64)


@dataclass(frozen=True)
class PackedBatch:
    """Texts one after another without padding, the input of packed graphs. All arrays are int32.

    The names of the attributes are those of the graph's inputs.

    Attributes:
        input_ids: *Shape:* ``(tokens,)``, the tokens of all texts.
        position_ids: *Shape:* ``(tokens,)``, for each token its row in the position table.
        token_offset: *Shape:* ``(texts, longest)``: the positions of tokens in a padded batch, then the positions of
            padding. Read by the kernels that unpack; other kernels read only its shape.
        cumulated_lengths: *Shape:* ``(texts + 1,)``, the beginning of each text, and the end of the last one.
        padded_rows: *Shape:* ``(texts, longest)``: the row in `input_ids` of each token, -1 for padding.
    """

    input_ids: NDArray[np.int32]
    position_ids: NDArray[np.int32]
    token_offset: NDArray[np.int32]
    cumulated_lengths: NDArray[np.int32]
    padded_rows: NDArray[np.int32]


def pack(rows: Sequence[NDArray[np.int64]], padding_id: int | None = None) -> PackedBatch:
    """Pack token ids.

    Args:
        rows: Arrays of *shape* ``(tokens,)``, none of them empty.
        padding_id: Id of the padding token if positions are counted as in RoBERTa: the position of a token is
            `padding_id` plus its rank, from 1, among the text's tokens that are not padding (a text may spell out
            "<pad>"). None if positions count from 0.
    """
    lengths = np.fromiter(map(len, rows), dtype=np.int32, count=len(rows))  # (texts,)
    ids = np.concatenate(rows).astype(np.int32)  # (tokens,)
    cumulated = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(lengths, out=cumulated[1:])
    columns = np.arange(round_up(int(lengths.max())), dtype=np.int32)  # (longest,)
    real = columns < lengths[:, None]  # (texts, longest)
    places = real.ravel()
    return PackedBatch(
        input_ids=ids,
        position_ids=_position_ids(ids, lengths, cumulated, padding_id),
        token_offset=np.concatenate([np.flatnonzero(places), np.flatnonzero(~places)])
        .astype(np.int32)
        .reshape(real.shape),
        cumulated_lengths=cumulated,
        padded_rows=np.where(real, cumulated[:-1, None] + columns, np.int32(-1)),
    )


def _position_ids(
    ids: NDArray[np.int32], lengths: NDArray[np.int32], cumulated: NDArray[np.int32], padding_id: int | None
) -> NDArray[np.int32]:
    """Return for each token its row in the position table: *shape* ``(tokens,)``."""
    if padding_id is None:
        return np.arange(len(ids), dtype=np.int32) - np.repeat(cumulated[:-1], lengths)
    real = ids != padding_id  # (tokens,)
    counted = np.zeros(len(ids) + 1, dtype=np.int32)
    np.cumsum(real, out=counted[1:])
    ranks = counted[1:] - np.repeat(counted[cumulated[:-1]], lengths)  # from 1 within each text
    return np.where(real, ranks, np.int32(0)) + np.int32(padding_id)


class InputBuilder:
    """Builds the inputs of a graph for a batch, in the form that the graph declares.

    Args:
        names: Names of the inputs of a sentence encoder's graph.
        properties: The graph's metadata.
        padded_length: Returns the padded length of a batch, from the tokens of its longest text and the number of its
            texts.

    Attributes:
        packed: Whether the graph takes texts without padding.
    """

    def __init__(
        self,
        names: Sequence[str],
        properties: Mapping[str, str],
        padded_length: Callable[[int, int], int] = lambda longest, texts: longest,
    ) -> None:
        self._names = names
        self._padded_length = padded_length
        self.packed = "cumulated_lengths" in self._names
        self._masks_pooling = POOLING_MASK in self._names
        padding_id = properties.get(PADDING_ID_PROPERTY)
        self._padding_id = None if padding_id is None else int(padding_id)
        self._multiple = LENGTH_MULTIPLE if self.packed else int(properties.get(LENGTH_MULTIPLE_PROPERTY, 1))

    def __call__(self, rows: Sequence[NDArray[np.int64]]) -> ModelInputs:
        """Build the graph's inputs for texts, arrays of *shape* ``(tokens,)`` that `mark_unpooled` may have marked."""
        extra: dict[str, NDArray[Any]] = {}
        length = round_up(self._padded_length(max(1, *map(len, rows)), len(rows)), self._multiple)
        if self._masks_pooling:
            pooled, _ = pad([(row >= 0).astype(np.int64) for row in rows], length=length)
            extra[POOLING_MASK] = pooled.astype(np.int32)
        if extra:
            rows = [token_ids(row) for row in rows]
        if self.packed:
            batch = pack(rows, self._padding_id)
            return {name: getattr(batch, name) for name in self._names if name not in extra} | extra
        ids, mask = pad(rows, length=length)
        return {"input_ids": ids, "attention_mask": mask, **extra}
