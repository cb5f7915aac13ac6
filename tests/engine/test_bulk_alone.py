"""The row of the comparison of loads that sends ready vectors, without a model."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.ingest_peers.bulk_alone import load_ready_vectors


def test_ready_vectors_are_loaded(es9_url: str, fresh_index: Callable[[str], str], tmp_path: Path) -> None:
    file = tmp_path / "documents.jsonl"
    file.write_text("".join(json.dumps({"id": str(n), "text": f"text {n}"}) + "\n" for n in range(3)), encoding="utf-8")
    report = load_ready_vectors(es9_url, fresh_index(es9_url), file, np.eye(3, 4, dtype=np.float32), "flat")
    assert report.exit_code == 0
    assert report.indexed == 3
