"""benchmarks.host_throughput: what it computes, and that the encoder runs on its instant sessions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import host_throughput
from benchmarks.gpu_check.arithmetic import Shape
from benchmarks.gpu_check.random_models import write_model
from es_sbert.runtime.batching import PackedBatch

COSTS = {"tokenize": {"cpu_us": 20.0, "lock_us": 2.0}, "pack": {"cpu_us": 2.0, "lock_us": 2.0}}


def test_throughput_is_limited_by_lock_or_cores() -> None:
    found = host_throughput.limits(COSTS, cores=16)
    assert found["lock_alone"] == found["at_most"] == 250_000
    assert found["at_least"] == pytest.approx(1e6 / (4 + 18 / 16))
    assert host_throughput.limits(COSTS, cores=2)["at_most"] == pytest.approx(1e6 / 11)


def test_the_encoder_runs_on_instant_sessions(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", Shape(hidden=32, heads=2, layers=1, intermediate=64), vocabulary=200)
    bundle = host_throughput.exported(str(folder), tmp_path)
    with host_throughput.instant_encoder(bundle) as encoder:
        vectors = encoder.encode(["baba", "bebe bibi", "baba"])
    np.testing.assert_array_equal(vectors, np.zeros((3, 32)))
    costs = host_throughput.stage_costs(bundle.model, ["baba", "bebe bibi"], rounds=1)
    assert list(costs) == list(host_throughput._STAGES)
    assert all(0 <= cost["lock_us"] <= 1.5 * cost["cpu_us"] + 1 for cost in costs.values())


def test_instant_session_has_the_inputs_of_packed_graphs() -> None:
    names = [value.name for value in host_throughput.InstantSession().get_inputs()]
    assert names == list(PackedBatch.__dataclass_fields__)
