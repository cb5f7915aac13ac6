"""What a machine of a cluster must have; without a cluster."""

from __future__ import annotations

import pytest

from es_sbert.ingest.ray_runner import RayWorkerPool, node_problem


@pytest.mark.parametrize(
    ("version", "fingerprint", "problem"),
    [
        ("1.2.0", "a" * 32, None),
        ("1.2.0", "b" * 32, "has the model bbbbbbbbbbbb under that name"),
        ("1.1.9", None, "has es-sbert 1.1.9"),
        (None, None, "has no es-sbert in the Python that Ray uses there"),
    ],
)
def test_version_or_model_mismatch_is_a_node_problem(
    version: str | None, fingerprint: str | None, problem: str | None
) -> None:
    assert node_problem(version, fingerprint, "a" * 32, "1.2.0") == problem


def test_only_nodes_that_fit_a_worker_are_checked() -> None:
    assert RayWorkerPool(1, 4, 4, 0).fits({"CPU": 4.0, "memory": 1e9})
    assert not RayWorkerPool(1, 4, 4, 0).fits({"CPU": 2.0})
    assert not RayWorkerPool(1, 4, 4, 0).fits({})
    assert RayWorkerPool(1, 1, 1, 1).fits({"CPU": 8.0, "GPU": 1.0})
    assert not RayWorkerPool(1, 1, 1, 1).fits({"CPU": 8.0})
