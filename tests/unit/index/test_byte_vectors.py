"""Vectors of int8: how they are rounded, written and read."""

from __future__ import annotations

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.errors import UsageError
from es_sbert.index.byte_vectors import quantize_vectors, to_element_type
from es_sbert.index.document_vectors import (
    bulk_vector_value,
    chunk_values,
    quantization_loss,
    read_stored_vectors,
    read_vector,
    row_cosines,
    to_bulk_value,
    to_float_list,
    to_wire_order,
    vector_value,
)
from es_sbert.index.mapping import BYTE_TYPES, ElementType, IndexType, parse_element_type, parse_index_type
from es_sbert.vectors import Vectors

ES9 = EngineInfo(EngineType.ELASTICSEARCH, (9, 4, 0), "http://localhost:9200")
ES8 = EngineInfo(EngineType.ELASTICSEARCH, (8, 19, 8), "http://localhost:9200")
OPENSEARCH = EngineInfo(EngineType.OPENSEARCH, (3, 6, 0), "http://localhost:9200")
INFOS = [ES9, ES8, OPENSEARCH]
BYTE = ElementType.BYTE

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
vectors = arrays(np.float32, st.integers(1, 50), elements=finite).filter(lambda vector: bool(vector.any()))


@given(vectors)
def test_largest_component_becomes_127_and_others_are_rounded_to_the_nearest_step(vector: Vectors) -> None:
    found = quantize_vectors(vector)
    assert found.dtype == np.int8
    assert np.abs(found.astype(np.int64)).max() == 127
    exact = vector.astype(np.float64) / np.abs(vector.astype(np.float64)).max() * 127
    assert np.abs(found - exact).max() <= 0.5


@given(vectors, st.sampled_from([2.0**-20, 0.5, 4.0, 2.0**10]))
def test_length_of_a_vector_does_not_matter(vector: Vectors, factor: float) -> None:
    scaled = vector.astype(np.float64) * factor
    np.testing.assert_array_equal(quantize_vectors(scaled), quantize_vectors(vector))  # type: ignore[arg-type]


def test_rows_have_scales_of_their_own_and_zero_stays_zero() -> None:
    found = quantize_vectors(np.array([[1.0, -0.5], [0.001, 0.0005], [0.0, 0.0]], np.float32))
    assert found.tolist() == [[127, -64], [127, 64], [0, 0]]


def test_only_a_field_of_bytes_gets_bytes_and_they_stay_as_they_are() -> None:
    plain = np.array([0.25, -0.5], np.float32)
    for element_type in (ElementType.FLOAT, ElementType.BFLOAT16):
        assert to_element_type(plain, element_type) is plain
    stored = to_element_type(plain, BYTE)
    assert stored.tolist() == [64, -127]
    small = np.array([3, 1], np.int8)
    for element_type in ElementType:
        assert to_element_type(small, element_type) is small


def test_loss_is_how_far_the_cosine_is_below_one() -> None:
    found = np.random.default_rng(0).normal(size=(20, 384)).astype(np.float32)
    loss = quantization_loss(found, BYTE)
    np.testing.assert_allclose(loss, 1 - row_cosines(found, quantize_vectors(found).astype(np.float32)), atol=1e-12)
    assert 1e-6 < loss.max() < 1e-4
    assert not quantization_loss(found, ElementType.FLOAT).any()
    assert not quantization_loss(np.zeros((1, 3), np.float32), BYTE).any()


@pytest.mark.parametrize("info", INFOS)
def test_bytes_are_sent_as_whole_numbers_on_every_engine(info: EngineInfo) -> None:
    stored = to_wire_order(info, np.array([[127, -64], [-128, 0]], np.int8))
    assert orjson.dumps(vector_value(info, stored[0])) == b"[127,-64]"
    assert orjson.dumps(to_float_list(stored[0])) == b"[127,-64]"
    assert orjson.dumps(bulk_vector_value(info, stored[1]), option=orjson.OPT_SERIALIZE_NUMPY) == b"[-128,0]"
    [chunk] = chunk_values(info, [(0, 3)], stored[:1])
    assert orjson.dumps(chunk, option=orjson.OPT_SERIALIZE_NUMPY) == b'{"start":0,"end":3,"vector":[127,-64]}'


# Other programs need not use all numbers; Elasticsearch before 9.2 gives back what they wrote.
@pytest.mark.parametrize("value", [[3, -2, 1], [3.0, -2.0, 1.0], "03fe01", "03FE01"])
def test_stored_bytes_are_read_and_written_again_unchanged(value: str | list[float]) -> None:
    assert read_vector(value, BYTE).tolist() == [3.0, -2.0, 1.0]
    for info in INFOS:
        again = orjson.dumps(to_bulk_value(info, value, BYTE), option=orjson.OPT_SERIALIZE_NUMPY)
        assert again == b"[3,-2,1]"
    chunks = [{"start": 0, "end": 4, "vector": value}]
    [(start, end, vector)] = read_stored_vectors(chunks, 0, BYTE)
    assert (start, end, vector.tolist()) == (0, 4, [3.0, -2.0, 1.0])
    [written] = to_bulk_value(ES9, chunks, BYTE)
    assert orjson.dumps(written, option=orjson.OPT_SERIALIZE_NUMPY) == b'{"start":0,"end":4,"vector":[3,-2,1]}'


def test_floats_that_look_like_hexadecimal_digits_are_read_as_floats() -> None:
    zeros = np.zeros(3, np.float32)
    assert vector_value(ES9, zeros) == "AAAAAAAAAAAAAAAA"
    np.testing.assert_array_equal(read_vector("AAAAAAAAAAAAAAAA"), zeros)


@pytest.mark.parametrize("info", INFOS)
@pytest.mark.parametrize("index_type", list(IndexType))
def test_bytes_are_not_quantized_once_more(info: EngineInfo, index_type: IndexType) -> None:
    assert parse_element_type("byte", info) is BYTE
    if index_type in BYTE_TYPES:
        assert parse_index_type(index_type, info, 384, BYTE) is index_type
        return
    with pytest.raises(UsageError, match="quantizes vectors of floats|does not support the index type") as caught:
        parse_index_type(index_type, info, 384, BYTE)
    assert "hnsw" in caught.value.remedy


@pytest.mark.parametrize(
    ("info", "remedy"), [(ES9, "bbq_hnsw, which every license"), (ES8, "bbq_hnsw"), (OPENSEARCH, "element type byte")]
)
def test_bits_are_refused_with_what_the_engine_has_instead(info: EngineInfo, remedy: str) -> None:
    for name in ("bit", "binary"):
        with pytest.raises(UsageError, match=f"does not write vectors of the element type {name}") as caught:
            parse_element_type(name, info)
        assert remedy in caught.value.remedy
