"""What a cluster gives a load, and its errors in our words; without a cluster."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import RayTaskError

from es_sbert.engines.index_scan import IndexSlice, ShardSnapshot
from es_sbert.errors import ClusterError, OutputError, UsageError
from es_sbert.ingest.ledger import DocumentOutcome, Ledger
from es_sbert.ingest.ray_actors import find_own_error
from es_sbert.ingest.ray_runner import RayWorkerPool, choose_worker_pool, partition_index

GPU = {"CPU": 16.0, "GPU": 4.0}
CPU = {"CPU": 8.0, "memory": 1e9}


@pytest.mark.parametrize(
    ("nodes", "device", "threads", "count", "workers"),
    [
        ([CPU], "auto", None, None, RayWorkerPool(2, 4, 4, 0)),
        ([CPU, {"CPU": 2.0}], "cpu", None, None, RayWorkerPool(2, 4, 4, 0)),
        ([CPU, {"CPU": 2.0}], "cpu", 1, None, RayWorkerPool(10, 1, 1, 0)),
        ([{"CPU": 2.0}, {"CPU": 0.0}, {}], "auto", None, None, RayWorkerPool(1, 2, 2, 0)),
        ([GPU, CPU], "auto", None, None, RayWorkerPool(4, 2, 2, 1)),
        ([GPU, GPU, CPU], "cuda", None, 5, RayWorkerPool(5, 2, 2, 1)),
        ([GPU], "cuda", 8, None, RayWorkerPool(2, 8, 8, 1)),
        ([GPU], "cpu", None, 3, RayWorkerPool(3, 4, 4, 0)),
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


def test_own_error_is_unwrapped_from_ray_errors() -> None:
    ours = OutputError("the state cannot be written", "Free space.")
    remote = RayTaskError("call", "traceback", ours)
    assert find_own_error(ours) is ours
    assert find_own_error(remote.as_instanceof_cause()) is ours
    outer = RuntimeError("a worker failed")
    outer.__cause__ = remote
    assert find_own_error(outer) is ours
    assert find_own_error(RuntimeError("something else")) is None


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
    ledger.add_read(3)
    ledger.add_indexed([(5, 0)])
    ledger.add_outcome(DocumentOutcome.DEAD, 2)
    ledger.add_retries(7)
    for _ in range(2):
        total.merge(pickle.loads(pickle.dumps(ledger)))
    assert (total.read, total.outcomes.total(), total.truncated, total.lost_tokens, total.retries) == (6, 6, 2, 10, 14)
    assert total.counts()[DocumentOutcome.DEAD] == 4
    total.verify()
