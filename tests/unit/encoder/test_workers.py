"""Worker threads run at the priority that their owner asks for."""

import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from es_sbert.bundle.checkpoint import read_model
from es_sbert.bundle.model import Precision
from es_sbert.encoder.device import Device
from es_sbert.encoder.workers import Workers
from es_sbert.exporters.export import export_bundle
from tests.tiny import write_tiny_bert

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of single threads")


@pytest.mark.parametrize("nice", [0, 3])
def test_worker_threads_are_nicer_by_what_was_asked_and_the_caller_is_not(tmp_path: Path, nice: int) -> None:
    export_bundle(read_model(write_tiny_bert(tmp_path / "tiny")), tmp_path / "bundle", [Precision.FP32])
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    workers = Workers(tmp_path / "bundle/onnx/model_fp32.onnx", Device("cpu"), 2, nice)
    priorities: list[int] = []
    together = threading.Barrier(2, timeout=60)

    def run_batch(session: object, members: object) -> None:
        together.wait()  # in both threads
        priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    workers.run([np.array([0]), np.array([1])], run_batch)
    workers.close()
    assert priorities == [before + nice] * 2
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
