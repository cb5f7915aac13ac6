"""Sessions are opened when needed, one a thread as long as memory allows, and batches run in them."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.errors import BundleInvalid, UsageError
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.runtime import onnx_session as session_module
from es_sbert.runtime.device import Device
from es_sbert.runtime.inference_pool import InferencePool
from es_sbert.runtime.onnx_session import OnnxCpuModel, open_session, session_count
from tests.raised import raises_as_recorded
from tests.tiny import write_tiny_bert


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("session")
    export_bundle(read_sentence_model(write_tiny_bert(folder / "tiny")), folder / "bundle", [Variant.FP32])
    return folder / "bundle/onnx/model_fp32.onnx"


@given(st.integers(0, 10**11), st.integers(1, 256))
def test_session_count_stays_within_memory(size: int, threads: int) -> None:
    held = session_count(size, threads)
    assert 1 <= held <= threads
    assert held == 1 or held * size <= 2_000_000_000


@pytest.mark.parametrize(("threads", "memory", "expected"), [(3, 10**9, 3), (3, 0, 1)])
def test_each_thread_gets_a_session_if_memory_allows(
    graph: Path, threads: int, memory: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_MAX_WEIGHT_BYTES", memory)
    pool = InferencePool(OnnxCpuModel(graph, threads))
    together = threading.Barrier(threads, timeout=60)
    lent: list[int] = []

    def compute() -> None:
        with pool.session() as session:
            together.wait()  # all threads hold one at the same time
            lent.append(id(session))

    workers = [threading.Thread(target=compute) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(lent) == threads
    assert len(set(lent)) == expected


def test_invalid_graph_prints_nothing_to_stdout(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with raises_as_recorded(BundleInvalid):
        open_session(tmp_path / "model.onnx", Device("cpu"))
    assert capfd.readouterr().out == ""


def test_batches_run_in_threads_and_a_single_one_in_the_caller(graph: Path) -> None:
    workers = InferencePool(OnnxCpuModel(graph, 2))
    together = threading.Barrier(2, timeout=60)
    ran: list[threading.Thread] = []

    def run_one(session: object, members: object) -> None:
        ran.append(threading.current_thread())

    def run_together(session: object, members: object) -> None:
        together.wait()
        run_one(session, members)

    workers.run([np.array([0]), np.array([1])], run_together)
    assert len(set(ran)) == 2
    assert threading.current_thread() not in ran
    workers.run([np.array([0])], run_one)
    assert ran[2:] == [threading.current_thread()]
    workers.close()
    with raises_as_recorded(UsageError):
        workers.run([np.array([0])], run_one)


def test_no_batch_starts_after_stop(graph: Path) -> None:
    workers = InferencePool(OnnxCpuModel(graph, 2))
    stop, ran = threading.Event(), []
    stop.set()
    for count in (1, 3):
        workers.run([np.array([number]) for number in range(count)], lambda session, members: ran.append(1), stop)
    workers.close()
    assert not ran
