"""A packed batch holds what the padded one holds, without its padding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from es_sbert.runtime.batching import LENGTH_MULTIPLE, pack, pad

PADDING_ID = 1
ROWS = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=20), min_size=1, max_size=30)


def arrays(rows: list[list[int]]) -> list[NDArray[np.int64]]:
    return [np.array(row, dtype=np.int64) for row in rows]


@given(ROWS)
def test_packed_tokens_keep_text_order(rows: list[list[int]]) -> None:
    batch = pack(arrays(rows))
    texts = np.split(batch.input_ids, batch.cumulated_lengths[1:-1])
    assert [text.tolist() for text in texts] == rows
    assert batch.cumulated_lengths[0] == 0
    assert batch.cumulated_lengths[-1] == len(batch.input_ids)
    assert batch.position_ids.tolist() == [place for row in rows for place in range(len(row))]
    assert {array.dtype for array in vars(batch).values()} == {np.dtype(np.int32)}
    assert all(array.flags.c_contiguous for array in vars(batch).values())


@given(ROWS)
def test_padded_rows_restore_the_padded_batch(rows: list[list[int]]) -> None:
    batch = pack(arrays(rows))
    ids, mask = pad(arrays(rows), padding=9)
    width = max(map(len, rows))
    assert ids.tolist() == [row + [9] * (width - len(row)) for row in rows]
    assert mask.tolist() == [[1] * len(row) + [0] * (width - len(row)) for row in rows]
    longest = batch.padded_rows.shape[1]
    assert longest % LENGTH_MULTIPLE == 0
    assert 0 <= longest - ids.shape[1] < LENGTH_MULTIPLE
    real = batch.padded_rows >= 0
    np.testing.assert_array_equal(real[:, : ids.shape[1]], mask == 1)
    assert not real[:, ids.shape[1] :].any()
    np.testing.assert_array_equal(batch.input_ids[batch.padded_rows[real]], ids[mask == 1])


@given(ROWS)
def test_token_offset_lists_tokens_then_padding(rows: list[list[int]]) -> None:
    batch = pack(arrays(rows))
    texts, longest = batch.token_offset.shape
    offsets = batch.token_offset.ravel()
    count = len(batch.input_ids)
    expected = [number * longest + place for number, row in enumerate(rows) for place in range(len(row))]
    assert offsets[:count].tolist() == expected
    assert offsets[count:].tolist() == sorted(set(range(texts * longest)) - set(expected))


@given(ROWS)
def test_positions_with_padding_id_equal_roberta(rows: list[list[int]]) -> None:
    torch = pytest.importorskip("torch")
    roberta = pytest.importorskip("transformers.models.roberta.modeling_roberta")
    expected = [
        int(position)
        for row in rows
        for position in roberta.RobertaEmbeddings.create_position_ids_from_input_ids(torch.tensor([row]), PADDING_ID)[0]
    ]
    assert pack(arrays(rows), PADDING_ID).position_ids.tolist() == expected
