"""Vectors and metadata of documents, and the order of a sample."""

from __future__ import annotations

import base64
import struct
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.index.document_sample import draw_order
from es_sbert.index.document_vectors import (
    DocumentMeta,
    read_document_meta,
    read_vector,
    row_cosines,
    same_vectors,
    to_float_list,
)
from es_sbert.vectors import Vectors
from tests.engine.vectors import vector_value

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


META = DocumentMeta("f" * 64, "t" * 32, "d" * 32, 3, False, "2026-01-31T12:00:00.000Z", 2)


@pytest.mark.parametrize(
    "changed",
    [
        {"embedding_meta": META.as_json()},
        {"embedding_meta": [META.as_json()]},
        {"embedding_meta": {name: [value] for name, value in META.as_json().items()}},
        {f"embedding_meta.{name}": value for name, value in META.as_json().items()},
        {"embedding_meta": {"tokens": 3}} | {f"embedding_meta.{name}": value for name, value in META.as_json().items()
                                             if name != "tokens"},
        {"embedding_meta": META.as_json() | {"tokens": "3", "passages": 2.0, "truncated": "false"}},
        {"embedding_meta": META.as_json() | {"embedded_at": "2026-01-31T12:00:00Z"}},
        {"embedding_meta": META.as_json() | {"embedded_at": "2026-01-31T13:00:00.000000+01:00"}},
        {"embedding_meta": META.as_json() | {"embedded_at": 1769860800000}},
        {"embedding_meta": META.as_json() | {"embedded_at": "1769860800000", "other": 1}},
    ],
)  # fmt: skip
def test_metadata_is_read_in_every_form_that_engines_index_alike(changed: dict[str, Any]) -> None:
    assert read_document_meta(changed, "embedding_meta") == META


@pytest.mark.parametrize("member", DocumentMeta._fields)
@pytest.mark.parametrize("value", [None, [], [None], [1, 2], {}, {"a": 1}, "\0"])
def test_unreadable_member_is_unknown(member: str, value: Any) -> None:
    changed = META.as_json() | {member: value}
    expected = META._replace(**{member: value if value == "\0" and type(getattr(META, member)) is str else None})
    if member == "embedded_at":
        expected = expected._replace(embedded_at=None)
    assert read_document_meta({"embedding_meta": changed}, "embedding_meta") == expected
    del changed[member]
    assert read_document_meta({"embedding_meta": changed}, "embedding_meta") == META._replace(**{member: None})


def test_metadata_of_another_program_is_none_of_ours() -> None:
    foreign: list[Any] = [None, [None], {}, [{}], "text", {"other": 1}]
    for value in foreign:
        assert read_document_meta({"embedding_meta": value}, "embedding_meta") is None
    assert read_document_meta({"embedding_metadata": META.as_json()}, "embedding_meta") is None
    unknown: list[Any] = [{"tokens": None}, [META.as_json(), META._replace(text_hash="other").as_json()]]
    for value in unknown:
        found = read_document_meta({"embedding_meta": value}, "embedding_meta")
        assert found is not None
        assert found.text_hash is None


def test_same_vectors_are_recognized_in_every_form() -> None:
    vector = np.array([0.1, -0.7, 1 / 3], dtype=np.float32)
    chunks = [{"start": 0, "end": 3, "vector": to_float_list(vector)}]
    assert same_vectors(to_float_list(vector), vector_value(ES95, vector))
    assert same_vectors(chunks, chunks[0])
    others: list[Any] = [to_float_list(-vector), [0.1], "abc", None, [], {}, chunks * 2, [{"start": 0}], ["x"]]
    for other in others:
        assert not same_vectors(to_float_list(vector), other)


@pytest.mark.parametrize("broken", [0.0, np.nan, np.inf])
def test_zero_or_non_finite_vector_has_cosine_zero(broken: float) -> None:
    rows = np.full((1, 4), broken, dtype=np.float32)
    assert row_cosines(rows, np.ones((1, 4), dtype=np.float32)).tolist() == [0.0]
    assert row_cosines(rows, rows).tolist() == [0.0]


def test_order_depends_on_seed_id_and_routing() -> None:
    keys = [(str(number), routing) for number in range(200) for routing in (None, "a")]
    orders = {seed: sorted(keys, key=lambda key: draw_order(key, seed)) for seed in (0, 1)}
    assert orders[0] != orders[1]
    assert len({draw_order(key, 0) for key in keys}) == len(keys)
    # A fair draw: about half of the first documents come from each half of the ids.
    low = sum(int(identifier) < 100 for identifier, _ in orders[0][:200])
    assert 70 < low < 130
