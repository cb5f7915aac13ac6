"""Workers, machines and errors of a load on a Ray cluster; without a cluster."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import RayTaskError

from es_sbert import __version__
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.engines.index_scan import IndexSlice, ShardSnapshot
from es_sbert.errors import ClusterError, OutputError, UsageError
from es_sbert.ingest.ledger import DocumentOutcome, Ledger
from es_sbert.ingest.ray_runner import (
    LOCAL_CLUSTER,
    RayWorkerPool,
    choose_worker_pool,
    get_result,
    make_probe,
    partition_index,
    ray_connection,
    remote_error_summary,
)
from tests.tiny import write_tiny_bert

GPU = {"CPU": 16.0, "GPU": 4.0}
CPU = {"CPU": 8.0, "memory": 1e9}


@pytest.mark.parametrize(
    ("nodes", "device", "threads", "count", "workers"),
    [
        ([CPU], "auto", None, None, RayWorkerPool(2, 4, 0)),
        ([CPU, {"CPU": 2.0}], "cpu", None, None, RayWorkerPool(2, 4, 0)),
        ([CPU, {"CPU": 2.0}], "cpu", 1, None, RayWorkerPool(10, 1, 0)),
        ([{"CPU": 2.0}, {"CPU": 0.0}, {}], "auto", None, None, RayWorkerPool(1, 2, 0)),
        ([GPU, CPU], "auto", None, None, RayWorkerPool(4, 2, 1)),
        ([GPU, GPU, CPU], "cuda", None, 5, RayWorkerPool(5, 2, 1)),
        ([GPU], "cuda", 8, None, RayWorkerPool(2, 8, 1)),
        ([GPU], "cpu", None, 3, RayWorkerPool(3, 4, 0)),
    ],
)
def test_worker_pool_by_gpus_or_cores(
    nodes: list[dict[str, float]], device: str, threads: int | None, count: int | None, workers: RayWorkerPool
) -> None:
    assert choose_worker_pool(nodes, device, threads, count) == workers


@pytest.mark.parametrize(
    ("nodes", "device", "threads", "count", "message"),
    [
        ([CPU], "cuda", None, None, "no machine of the Ray cluster has a GPU and 2 CPUs"),
        ([{"CPU": 2.0}], "cpu", 4, None, "no machine of the Ray cluster has 4 CPUs"),
        ([], "auto", None, None, "no machine of the Ray cluster"),
        ([CPU], "auto", None, 3, "can run 2 workers of 4 CPUs, not 3"),
    ],
)
def test_impossible_worker_pool_raises_cluster_error(
    nodes: list[dict[str, float]], device: str, threads: int | None, count: int | None, message: str
) -> None:
    with pytest.raises(ClusterError, match=message):
        choose_worker_pool(nodes, device, threads, count)


def test_choosing_a_gpu_index_is_rejected() -> None:
    with pytest.raises(UsageError, match="Ray assigns GPUs"):
        choose_worker_pool([GPU], "cuda:1", None, None)


def test_own_error_of_a_remote_call_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = OutputError("the state cannot be written", "Free space.")
    for cause, raised in ((ours, OutputError), (ValueError("a bug"), RayTaskError)):

        def get(reference: Any, cause: Exception = cause) -> None:
            raise RayTaskError("call", "traceback", cause).as_instanceof_cause()

        monkeypatch.setattr(ray, "get", get)
        with pytest.raises(raised) as caught:
            get_result(None)
        assert (caught.value is ours) is (cause is ours)


def test_slices_are_numbered() -> None:
    snapshots = (ShardSnapshot(0, "pit", 99),)
    parts = partition_index(1, snapshots)
    assert parts == [IndexSlice(number, len(parts), snapshots) for number in range(len(parts))]
    assert len(parts) >= 2


def test_number_of_slices_is_limited() -> None:
    assert len(partition_index(200, (ShardSnapshot(0, "pit", 99),))) == 1024


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


def test_node_without_es_sbert_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "es_sbert", None)  # importing it fails
    assert make_probe(__version__, "a" * 32)("model") == "has no es-sbert in the Python that Ray uses there"


def test_only_nodes_that_fit_a_worker_are_checked() -> None:
    assert RayWorkerPool(1, 4, 0).fits({"CPU": 4.0, "memory": 1e9})
    assert not RayWorkerPool(1, 4, 0).fits({"CPU": 2.0})
    assert not RayWorkerPool(1, 4, 0).fits({})
    assert RayWorkerPool(1, 1, 1).fits({"CPU": 8.0, "GPU": 1.0})
    assert not RayWorkerPool(1, 1, 1).fits({"CPU": 8.0})


# As Ray writes it: the worker's traceback, and that of Ray's own error, which came of it.
REMOTE = """ray::MapWorker(MapBatches(PartLoader)).submit() (pid=1, ip=192.0.2.2)
    ^^^^^^^^^^^^^^^^^^
  File "/somewhere/worker.py", line 12, in __call__
    raise ValueError("the true reason")
ValueError: the true reason

The above exception was the direct cause of the following exception:

ray::MapWorker(MapBatches(PartLoader)).submit() (pid=1, ip=192.0.2.2)
  File "/somewhere/else.py", line 3, in _submit
    for block in blocks:
ray.exceptions.UserCodeException: UDF failed to process a data block.
To change retry attempts, configure it."""


def test_summary_is_the_root_cause() -> None:
    assert remote_error_summary(RuntimeError(REMOTE)) == "ValueError: the true reason"
    assert remote_error_summary(RuntimeError("The node was lost.\n  more about it")) == "The node was lost."
    assert remote_error_summary(RuntimeError()) == "RuntimeError"


def test_nothing_that_ray_prints_reaches_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A thread prints that a node was lost whenever it hears of it, also while Ray starts or shuts down."""
    monkeypatch.setattr(ray, "init", lambda **options: print("(raylet) a node was lost"))
    monkeypatch.setattr(ray, "shutdown", lambda: print("(raylet) another node was lost"))
    with ray_connection(LOCAL_CLUSTER):
        print("(raylet) a third node was lost")
    assert capsys.readouterr().out == ""
