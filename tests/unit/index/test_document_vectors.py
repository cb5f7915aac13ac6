from __future__ import annotations

import base64
import struct

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.index.document_vectors import read_vector, to_float_list, vector_value
from es_sbert.vectors import Vectors

ES95 = EngineInfo(EngineType.ELASTICSEARCH, (9, 5, 0), "http://localhost:9200")
ES93 = EngineInfo(EngineType.ELASTICSEARCH, (9, 3, 0), "http://localhost:9200")
ES92 = EngineInfo(EngineType.ELASTICSEARCH, (9, 2, 4), "http://localhost:9200")
ES819 = EngineInfo(EngineType.ELASTICSEARCH, (8, 19, 8), "http://localhost:9200")
OPENSEARCH = EngineInfo(EngineType.OPENSEARCH, (3, 9, 0), "http://localhost:9200")

vectors = arrays(np.float32, st.integers(1, 50), elements=st.floats(width=32, allow_nan=False, allow_infinity=False))


@given(vectors)
def test_vectors_round_trip_through_json(vector: Vectors) -> None:
    for info in (ES95, ES819, OPENSEARCH):
        value = orjson.loads(orjson.dumps(vector_value(info, vector)))
        back = read_vector(value)
        assert back.dtype == np.float32
        np.testing.assert_array_equal(back, vector)


def test_base64_is_big_endian() -> None:
    value = vector_value(ES95, np.array([1.5, -2.25], dtype=np.float32))
    assert isinstance(value, str)
    assert struct.unpack(">2f", base64.b64decode(value)) == (1.5, -2.25)


@pytest.mark.parametrize(
    ("info", "expected"), [(ES95, str), (ES93, str), (ES92, list), (ES819, list), (OPENSEARCH, list)]
)
def test_base64_only_where_the_engine_takes_it(info: EngineInfo, expected: type) -> None:
    assert isinstance(vector_value(info, np.ones(3, dtype=np.float32)), expected)


def test_float_lists_have_float32_precision() -> None:
    assert to_float_list(np.array([0.1, 1 / 3], dtype=np.float32)) == [0.1, 0.33333334]


def test_non_contiguous_vectors_are_encoded() -> None:
    matrix = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert to_float_list(matrix[:, 1]) == [1.0, 3.0, 5.0]
    np.testing.assert_array_equal(read_vector(vector_value(ES95, matrix[:, 1])), [1.0, 3.0, 5.0])
