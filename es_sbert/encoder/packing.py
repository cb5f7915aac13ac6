"""The inputs of a graph for one batch: padded for the CPU, packed without padding for CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

Feed = dict[str, NDArray[np.integer[Any]]]

# Padded lengths of a packed batch are multiples of this: onnxruntime's memory-efficient attention takes a bias only
# where its rows are aligned to 16 bytes, 8 numbers of fp16.
LENGTH_MULTIPLE = 8
# Property of a packed graph: id of the padding token, where positions are counted as in RoBERTa.
PADDING_ID = "es_sbert.padding_id"


def round_up(length: int) -> int:
    """The least multiple of `LENGTH_MULTIPLE` that is not less than `length`."""
    return -(-length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE


def pad(rows: Sequence[NDArray[np.int64]], padding: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Stack rows of token ids, padded on the right.

    Args:
        rows: Arrays of *shape* ``(tokens,)``.
        padding: Id in the padded places; the mask keeps it out of the result.

    Returns:
        Token ids and attention mask, both of *shape* ``(rows, longest)``.
    """
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))  # (rows,)
    mask = np.arange(lengths.max()) < lengths[:, None]  # (rows, longest)
    ids = np.full(mask.shape, padding, dtype=np.int64)  # (rows, longest)
    ids[mask] = np.concatenate(rows)
    return ids, mask.astype(np.int64)


@dataclass(frozen=True)
class PackedBatch:
    """Texts one after another without padding, as packed graphs take them. All arrays are int32.

    The names of the attributes are those of the graph's inputs.

    Attributes:
        input_ids: *Shape:* ``(tokens,)``, the tokens of all texts.
        position_ids: *Shape:* ``(tokens,)``, the row of the position table for each.
        token_offset: *Shape:* ``(texts, longest)``: the places that tokens have in a padded batch, then the places of
            padding. Read by the kernels that unpack; the others read its shape.
        cumulated_lengths: *Shape:* ``(texts + 1,)``, where each text begins, and the end of the last one.
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
        padding_id: Id of the padding token where the position of a token is `padding_id` plus its rank, from 1, among
            the text's tokens that are not padding (RoBERTa; a text may spell out "<pad>"). None where positions count
            from 0.
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
        position_ids=_positions(ids, lengths, cumulated, padding_id),
        token_offset=np.concatenate([np.flatnonzero(places), np.flatnonzero(~places)])
        .astype(np.int32)
        .reshape(real.shape),
        cumulated_lengths=cumulated,
        padded_rows=np.where(real, cumulated[:-1, None] + columns, np.int32(-1)),
    )


def _positions(
    ids: NDArray[np.int32], lengths: NDArray[np.int32], cumulated: NDArray[np.int32], padding_id: int | None
) -> NDArray[np.int32]:
    """The row of the position table for each token: *shape* ``(tokens,)``."""
    if padding_id is None:
        return np.arange(len(ids), dtype=np.int32) - np.repeat(cumulated[:-1], lengths)
    real = ids != padding_id  # (tokens,)
    counted = np.zeros(len(ids) + 1, dtype=np.int32)
    np.cumsum(real, out=counted[1:])
    ranks = counted[1:] - np.repeat(counted[cumulated[:-1]], lengths)  # from 1 within each text
    return np.where(real, ranks, np.int32(0)) + np.int32(padding_id)


class BatchInputs:
    """How a graph wants a batch, read from the graph itself.

    Args:
        session: Of a sentence encoder's graph.

    Attributes:
        packed: Whether it takes texts without padding.
    """

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._names = [value.name for value in session.get_inputs()]
        self.packed = "cumulated_lengths" in self._names
        padding_id = session.get_modelmeta().custom_metadata_map.get(PADDING_ID)
        self._padding_id = None if padding_id is None else int(padding_id)

    def __call__(self, rows: Sequence[NDArray[np.int64]]) -> Feed:
        """The graph's inputs for texts given as arrays of *shape* ``(tokens,)``."""
        if self.packed:
            batch = pack(rows, self._padding_id)
            return {name: getattr(batch, name) for name in self._names}
        ids, mask = pad(rows)
        return {"input_ids": ids, "attention_mask": mask}
