"""Workers, machines and errors of a load on a Ray cluster; without a cluster."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert import __version__
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.engines.index_scan import IndexSlice, ShardSnapshot
from es_sbert.errors import ClusterError, UsageError
from es_sbert.ingest.ledger import DocumentOutcome, Ledger
from es_sbert.ingest.ray_runner import RayWorkerPool, choose_worker_pool, make_probe, remote_error_summary
from tests.raised import raises_as_recorded
from tests.tiny import write_tiny_bert

GPU = {"CPU": 16.0, "GPU": 4.0}
CPU = {"CPU": 8.0, "memory": 1e9}


@pytest.mark.parametrize(
    ("nodes", "device", "threads", "count", "workers"),
    [
        ([CPU], "auto", None, None, RayWorkerPool(2, 4, 0)),
        ([CPU, {"CPU": 2.0}], "cpu", 1, None, RayWorkerPool(10, 1, 0)),
        ([{"CPU": 2.0}, {"CPU": 0.0}, {}], "auto", None, None, RayWorkerPool(1, 2, 0)),
        ([GPU, CPU], "auto", None, None, RayWorkerPool(4, 2, 1)),
        ([GPU, GPU, CPU], "cuda", None, 5, RayWorkerPool(5, 2, 1)),
        ([GPU], "cuda", 8, None, RayWorkerPool(2, 8, 1)),
    ],
)
def test_worker_pool_by_gpus_or_cores(
    nodes: list[dict[str, float]], device: str, threads: int | None, count: int | None, workers: RayWorkerPool
) -> None:
    assert choose_worker_pool(nodes, device, threads, count) == workers


@pytest.mark.parametrize(
    ("nodes", "device", "threads", "count"),
    [
        ([CPU], "cuda", None, None),
        ([{"CPU": 2.0}], "cpu", 4, None),
        ([GPU], "cuda:1", None, None),
        ([CPU], "auto", None, 3),
    ],
)
def test_impossible_worker_pool_raises_cluster_error(
    nodes: list[dict[str, float]], device: str, threads: int | None, count: int | None
) -> None:
    with raises_as_recorded((ClusterError, UsageError)):
        choose_worker_pool(nodes, device, threads, count)


@given(st.integers(-1, 10_000), st.integers(1, 50))
def test_slices_cover_each_sequence_number_once(max_seq_no: int, count: int) -> None:
    snapshot = ShardSnapshot(0, "pit", max_seq_no)
    covered = []
    for number in range(count):
        after, up_to = IndexSlice(number, count, (snapshot,)).bounds(snapshot)
        covered += range(after + 1, up_to + 1)
    assert covered == list(range(max_seq_no + 1))


def test_pickled_ledgers_are_merged() -> None:
    ledger, total = Ledger(), Ledger()
    ledger.add(read=3)
    ledger.add_indexed([(5, 0)])
    ledger.add_outcome(DocumentOutcome.DEAD, 2)
    ledger.add(retries=7)
    for _ in range(2):
        total.merge(pickle.loads(pickle.dumps(ledger)))
    assert (total.read, total.outcomes.total(), total.truncated, total.lost_tokens, total.retries) == (6, 6, 2, 10, 14)
    assert total.counts()[DocumentOutcome.DEAD] == 4
    total.verify()


def test_version_or_model_mismatch_is_a_node_problem(tmp_path: Path) -> None:
    mini = write_tiny_bert(tmp_path / "model")
    fingerprint = read_sentence_model(mini).fingerprint
    assert make_probe(__version__, fingerprint)(str(mini)) is None
    other = make_probe(__version__, "a" * 32)(str(mini))
    assert other == f"has the model {fingerprint[:12]} under that name"
    assert make_probe("1.2.0", fingerprint)(str(mini)) == f"has es-sbert {__version__}"


def test_error_of_another_machine_is_one_line() -> None:
    trace = 'ray::load() (pid=1)\n  File "a.py", line 1, in load\n    fail()\nValueError: no model\nThe above exception'
    assert remote_error_summary(RuntimeError(trace)) == "ValueError: no model"
    assert "the node died" in remote_error_summary(RuntimeError("the node died"))


def test_node_without_es_sbert_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "es_sbert.version", None)  # importing it fails
    assert make_probe(__version__, "a" * 32)("model") == "has no es-sbert in the Python that Ray uses there"
