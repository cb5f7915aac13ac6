"""The comparison of `tests.cluster_faults` notices each way in which a copy of a document can be wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.cluster_faults.copies import Comparison, Expected, compare_hits

VECTORS = {"one": np.array([1.0, 0.0], np.float32), "two": np.array([0.0, 1.0], np.float32)}


def hit(document_id: str, text: str, vector: list[float] | None = None, **more: Any) -> tuple[Any, dict[str, Any]]:
    meta = {} if vector is None else {"embedding": vector, "embedding_meta": {"fingerprint": "f"}}
    return ("0", "id", "name"), {"_id": document_id, "_source": {"text": text} | meta | more}


ONE, TWO = hit("1", "one", [1, 0]), hit("2", "two", [0, 1])


@pytest.mark.parametrize(
    ("hits", "kinds"),
    [
        ([ONE, TWO], []),
        ([ONE], ["lost"]),
        ([ONE, hit("2", "two")], ["lost"]),
        ([ONE, hit("2", "two", [0, 1], embedding_meta={"fingerprint": "another"})], ["lost"]),
        ([ONE, TWO, TWO], ["doubled"]),
        ([ONE, TWO, hit("3", "two", [0, 1])], ["doubled"]),
        ([ONE, hit("2", "two", [1, 0])], ["stale"]),
        ([ONE, hit("2", "one", [1, 0])], ["wrong"]),
        ([ONE, hit("2", "two", [0, 1], price=1)], ["wrong"]),
    ],
)
def test_each_difference_is_counted(hits: list[Any], kinds: list[str]) -> None:
    encoder: Any = SimpleNamespace(info=SimpleNamespace(fingerprint="f"))
    result = Comparison()
    compare_hits(hits, Expected({"1": {"text": "one"}, "2": {"text": "two"}}, encoder), VECTORS, result)
    assert [name for name in ("lost", "doubled", "stale", "wrong") if getattr(result, name)] == kinds
    assert result.exact is not bool(kinds)
