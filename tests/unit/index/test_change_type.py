"""Which changes of an index type are possible, and what they send."""

from __future__ import annotations

import pytest

from es_sbert.index.index_type_change import ALLOWED_CHANGES, changed_index_options
from es_sbert.index.mapping import IndexType


def test_allowed_changes_cover_every_type_and_never_reverse() -> None:
    assert set(ALLOWED_CHANGES) == set(IndexType)
    for before, possible in ALLOWED_CHANGES.items():
        assert before not in possible
        if before.endswith("hnsw"):
            assert not any(after.endswith("flat") for after in possible)
            assert not any(before in ALLOWED_CHANGES[after] for after in possible)


@pytest.mark.parametrize(
    ("stored", "after", "expected"),
    [
        ({"type": "hnsw", "m": 32, "ef_construction": 200}, "int8_hnsw",
         {"type": "int8_hnsw", "m": 32, "ef_construction": 200}),
        ({"type": "int8_hnsw", "m": 16, "ef_construction": 100, "confidence_interval": 0.9}, "bbq_hnsw",
         {"type": "bbq_hnsw", "m": 16, "ef_construction": 100}),
        ({"type": "flat"}, "hnsw", {"type": "hnsw"}),
        ({"type": "int8_flat", "confidence_interval": 0.9}, "int4_flat", {"type": "int4_flat"}),
    ],
)  # fmt: skip
def test_changed_index_options_keep_graph_parameters(
    stored: dict[str, object], after: str, expected: dict[str, object]
) -> None:
    assert changed_index_options(stored, IndexType(after)) == expected
