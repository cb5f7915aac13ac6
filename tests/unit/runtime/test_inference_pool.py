"""Where batches run."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.errors import UsageError
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.runtime.inference_pool import InferencePool
from es_sbert.runtime.onnx_session import OnnxCpuModel
from tests.tiny import write_tiny_bert


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workers")
    export_bundle(read_sentence_model(write_tiny_bert(folder / "tiny")), folder / "bundle", [Variant.FP32])
    return folder / "bundle/onnx/model_fp32.onnx"


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
    with pytest.raises(UsageError, match="the model is closed"):
        workers.run([np.array([0])], run_one)


def test_no_batch_starts_after_stop(graph: Path) -> None:
    workers = InferencePool(OnnxCpuModel(graph, 2))
    stop, ran = threading.Event(), []
    stop.set()
    for count in (1, 3):
        workers.run([np.array([number]) for number in range(count)], lambda session, members: ran.append(1), stop)
    workers.close()
    assert not ran
