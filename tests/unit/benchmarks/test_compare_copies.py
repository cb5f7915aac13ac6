"""The comparison of `benchmarks.cluster_faults` notices each way in which a copy of a document can be wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.cluster_faults.copies import Comparison, Expected, compare_hits

VECTORS = {"one": np.array([1.0, 0.0], np.float32), "two": np.array([0.0, 1.0], np.float32)}
PLACE = ("0", "id", "name")


def hit(document_id: str, text: str, vector: list[float] | None = None, **more: Any) -> tuple[Any, dict[str, Any]]:
    meta = {} if vector is None else {"embedding": vector, "embedding_meta": {"fingerprint": "f"}}
    return PLACE, {"_id": document_id, "_source": {"text": text} | meta | more}


def compare(*hits: Any, without_vector: frozenset[str] = frozenset()) -> Comparison:
    encoder: Any = SimpleNamespace(info=SimpleNamespace(fingerprint="f"))
    documents = {"1": {"text": "one"}, "2": {"text": "two"}}
    result = Comparison()
    compare_hits(list(hits), Expected(documents, encoder, without_vector), VECTORS, result)
    return result


ONE, TWO = hit("1", "one", [1, 0]), hit("2", "two", [0, 1])


def test_right_documents_are_exact() -> None:
    assert compare(ONE, TWO).exact


@pytest.mark.parametrize(
    ("hits", "kind"),
    [
        ([ONE], "lost"),
        ([ONE, hit("2", "two")], "lost"),
        ([ONE, hit("2", "two", [0, 1], embedding_meta={"fingerprint": "another"})], "lost"),
        ([ONE, TWO, TWO], "doubled"),
        ([ONE, TWO, hit("3", "two", [0, 1])], "doubled"),
        ([ONE, hit("2", "two", [1, 0])], "stale"),
        ([ONE, hit("2", "one", [1, 0])], "wrong"),
        ([ONE, hit("2", "two", [0, 1], price=1)], "wrong"),
    ],
)
def test_each_difference_is_counted(hits: list[Any], kind: str) -> None:
    result = compare(*hits)
    assert {name for name in ("lost", "doubled", "stale", "wrong") if getattr(result, name)} == {kind}
    assert not result.exact
    assert result.examples


def test_vector_that_may_be_missing_is_not_compared() -> None:
    assert compare(ONE, hit("2", "two"), without_vector=frozenset({"2"})).exact
    assert not compare(ONE, hit("2", "one"), without_vector=frozenset({"2"})).exact
