"""Bodies of bulk requests, against golden files, and how they are cut."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.engines.bulk_request import group_actions, split_in_half
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.index.document_vectors import DocumentMeta, VectorFieldValue, chunk_values
from es_sbert.ingest.bulk_writer import DocumentAction, bulk_lines
from es_sbert.ingest.ledger import DocumentOutcome
from es_sbert.ingest.read_documents import Document
from es_sbert.ingest.sources.document_source import Origin
from tests.engine.vectors import vector_value

GOLDEN = Path(__file__).parents[1] / "golden" / "ingest"
META = DocumentMeta(
    fingerprint="f" * 64, text_hash="0" * 32, document_hash="1" * 32, tokens=12, truncated=False,
    embedded_at="2026-11-21T12:00:00.000Z",
)  # fmt: skip
VECTOR = np.array([0.1, -0.25, 1e-8, 1.0], dtype=np.float32)
SOURCE = b'{"id": "a\\"b", "text": "caf\xc3\xa9\xe2\x80\xa8", "price": 1.10, "big": 123456789012345678901}'
DOCUMENT = Document(Origin("f", 1), 'a"b', ("café",), SOURCE, "1" * 32)
STORED = Document(Origin("index docs"), "ü/1", ("text",), b"{}", None, version=(41, 3))
ES9 = EngineInfo(EngineType.ELASTICSEARCH, (9, 5, 0), "")
VECTORS = np.array([VECTOR, -VECTOR])  # (2, 4)
FILLED = VectorFieldValue("embedding", VECTOR, META)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("index-list.ndjson", bulk_lines(DOCUMENT, [FILLED])),
        ("index-base64.ndjson", bulk_lines(DOCUMENT, [FILLED._replace(value=vector_value(ES9, VECTOR))])),
        ("index-plain.ndjson", bulk_lines(DOCUMENT, [])),
        (
            "index-passages.ndjson",
            bulk_lines(
                DOCUMENT,
                [
                    VectorFieldValue("body", chunk_values(ES9, [(0, 7), (5, 12)], VECTORS), META._replace(passages=2)),
                    FILLED,
                ],
            ),
        ),
        (
            "update-list.ndjson",
            bulk_lines(STORED, [VectorFieldValue("body_vector", VECTOR, META._replace(document_hash=None))], []),
        ),
        ("update-cleared.ndjson", bulk_lines(STORED, [FILLED], ["title_vector", "body_vector"])),
    ],
)
def test_bulk_bodies_match_golden_files(name: str, body: bytes) -> None:
    if os.environ.get("ES_SBERT_UPDATE_GOLDEN"):
        (GOLDEN / name).write_bytes(body)
    assert body == (GOLDEN / name).read_bytes()


def actions(sizes: list[int]) -> list[DocumentAction]:
    return [DocumentAction(DOCUMENT, b"x" * size, DocumentOutcome.INDEXED) for size in sizes]


@given(st.lists(st.integers(1, 50)), st.integers(1, 120))
def test_bulk_bodies_respect_byte_limit_and_keep_all_actions(sizes: list[int], limit: int) -> None:
    whole = actions(sizes)
    groups = list(group_actions(whole, limit))
    assert [action for group in groups for action in group] == whole
    for group in groups:
        assert len(group) == 1 or sum(len(action.body) for action in group) <= limit
    for one, two in pairwise(groups):
        assert sum(len(action.body) for action in [*one, two[0]]) > limit


@given(st.lists(st.integers(1, 50), min_size=2))
def test_split_in_half_keeps_all_actions(sizes: list[int]) -> None:
    whole = actions(sizes)
    one, two = split_in_half(whole)
    assert one
    assert two
    assert one + two == whole
