"""Scaling laws, the model of a large load, and the tables of both."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.encode_peers.processor import KINDS
from benchmarks.scale import __main__ as command
from benchmarks.scale import results
from benchmarks.scale.cells import _PARTS, Cell
from benchmarks.scale.isolation import ProcessFailed, TimeLimitReached, within
from benchmarks.scale.laws import (
    LAWS,
    LogCurve,
    expected_seconds,
    fit_log_curve,
    neighbor_exponents,
    overall_exponent,
)
from benchmarks.scale.plan import Cluster, Costs, machines_for_node, plan
from benchmarks.scale.results import Run
from es_sbert.diagnostics.index_size import estimate_size
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.index.mapping import IndexType

_ENGINE = EngineInfo(EngineType.ELASTICSEARCH, (9, 5, 0), "")
_CLUSTER = Cluster(_ENGINE)
# A worker core does 1,000 documents a second, a core of the engine 10,000 flat and 1,000 with a graph.
_COSTS = Costs(
    read=0.0001,
    detect=0.0001,
    tokenize=0.0001,
    embed=0.0005,
    pack=0.0001,
    write=0.0001,
    coordinator=LogCurve(0.000005, 0.0),
    flat=LogCurve(0.00009, 0.0),
    hnsw=LogCurve(0.00099, 0.0),
    document=0.00001,
    document_bytes=200.0,
    words=19.0,
)


def test_exponents_of_a_power_law() -> None:
    points = [(count, 3e-6 * count**2) for count in (1_000, 10_000, 450_000)]
    assert neighbor_exponents(points) == pytest.approx([2.0, 2.0])
    assert overall_exponent(points) == pytest.approx(2.0)
    assert neighbor_exponents(points[:1]) == []
    assert overall_exponent(points[:1]) is None


def test_curve_through_logarithmic_costs() -> None:
    curve = fit_log_curve([(count, 5 + 2 * math.log(count)) for count in (10_000, 100_000, 450_000)])
    assert (curve.base, curve.per_log) == pytest.approx((5.0, 2.0))
    assert curve.at(10_000_000) == pytest.approx(5 + 2 * math.log(10_000_000))
    assert curve.at(1) == curve.least == pytest.approx(5 + 2 * math.log(10_000))


def test_curve_ignores_small_loads_and_never_falls() -> None:
    grown = fit_log_curve([(1_000, 900.0), (10_000, 10.0), (100_000, 20.0)])
    assert grown.at(1_000_000) == pytest.approx(30.0)
    assert fit_log_curve([(1_000, 9.0), (10_000, 5.0), (100_000, 4.0)]) == LogCurve(4.0, 0.0)
    assert fit_log_curve([(500, 7.0)]) == LogCurve(7.0, 0.0)
    with pytest.raises(ValueError, match="no points"):
        fit_log_curve([])


def test_expected_seconds_follow_the_law_of_the_part() -> None:
    assert expected_seconds("pairs", 100_000, [(1_000, 9.0), (10_000, 2.0)]) == pytest.approx(200.0)
    assert expected_seconds("encode", 100_000, [(10_000, 8.0)]) == pytest.approx(80.0)
    assert expected_seconds("encode", 100_000, []) is None


def test_every_part_has_a_law() -> None:
    assert list(_PARTS) == list(LAWS)


def test_plan_is_limited_by_the_slowest() -> None:
    one = plan(100_000_000, 1, _COSTS, _CLUSTER, nodes=2)
    assert (one.limit, one.rate) == ("workers", pytest.approx(16_000))
    assert one.hours == pytest.approx(100_000_000 / 16_000 / 3600)
    ten = plan(100_000_000, 10, _COSTS, _CLUSTER, nodes=2)
    assert (ten.limit, ten.rate) == ("engine", pytest.approx(32_000))
    flat = plan(100_000_000, 100, _COSTS, _CLUSTER, IndexType.FLAT, nodes=10)
    assert (flat.limit, flat.rate) == ("coordinator", pytest.approx(200_000))
    with pytest.raises(ValueError, match="0 machines"):
        plan(1, 0, _COSTS, _CLUSTER)


def test_machines_that_a_data_node_keeps_up_with() -> None:
    assert machines_for_node(_COSTS, _CLUSTER, IndexType.HNSW, 10_000_000) == pytest.approx(1.0)
    assert machines_for_node(_COSTS, _CLUSTER, IndexType.FLAT, 10_000_000) == pytest.approx(10.0)
    # Quantized types are taken to cost the same.
    assert machines_for_node(_COSTS, _CLUSTER, IndexType.BBQ_HNSW, 10_000_000) == pytest.approx(1.0)


def test_graph_costs_grow_with_the_shard() -> None:
    costs = replace(_COSTS, hnsw=LogCurve(0.0001, 0.0001))
    large = plan(1_000_000_000, 100, costs, _CLUSTER, nodes=1)
    more_shards = plan(1_000_000_000, 100, costs, replace(_CLUSTER, shard_bytes=_CLUSTER.shard_bytes // 4), nodes=1)
    assert large.engine < more_shards.engine


@pytest.mark.parametrize("index_type", IndexType)
def test_sizes_are_those_of_index_estimate(index_type: IndexType) -> None:
    found = plan(1_000_000_000, 1, _COSTS, _CLUSTER, index_type)
    size = estimate_size(_ENGINE, index_type, 1_000_000_000, 384)
    assert found.memory == 2 * size.memory
    assert found.disk == 2 * (size.disk + 200 * 1_000_000_000)
    assert found.disk / 2 / found.shards <= _CLUSTER.shard_bytes
    assert found.nodes * _CLUSTER.cache >= found.memory
    assert found.nodes * _CLUSTER.node_disk >= 2 * found.disk


def test_every_data_node_has_a_shard() -> None:
    found = plan(1_000_000_000, 100, _COSTS, _CLUSTER)
    assert found.shards >= found.nodes > 2
    assert found.engine == pytest.approx(found.nodes * 16_000)


def test_no_more_nodes_index_than_there_are_shards() -> None:
    assert plan(1_000, 1, _COSTS, _CLUSTER).engine == pytest.approx(16_000)
    everywhere = replace(_CLUSTER, indexing_copies=2)
    assert plan(1_000, 1, _COSTS, everywhere).engine == pytest.approx(16_000)
    assert plan(100_000_000, 1, _COSTS, everywhere, nodes=4).engine == pytest.approx(32_000)


def test_a_small_index_has_a_node_for_each_copy() -> None:
    found = plan(1_000, 1, _COSTS, _CLUSTER)
    assert (found.shards, found.nodes) == (1, 2)


def _run(**changes: object) -> Run:
    sizes = (1_000, 10_000, 100_000)
    cells = [Cell("encode", size, size / 1_000, 400 + size / 512) for size in sizes[:2]]
    cells.append(Cell("encode", 100_000, reason="skipped: 401 s are expected"))
    cells += [Cell("coordinator", size, size / 1e6, 200.0, figures={"cpu": 5.0}) for size in sizes]
    for part, cpu in (("search-flat", 90.0), ("search-hnsw", 990.0)):
        figures = {"engine_cpu": cpu, "sent_seconds": 2.0, "settled_seconds": 4.0, "segments": 3.0, "p95": 0.009}
        cells += [Cell(part, size, 0.004, figures=figures, others=0.02) for size in sizes]
    costs = {"documents": 20_000.0, "words": 19.0, "tokens": 26.0, "engine": 100.0, "document_bytes": 200.0}
    costs |= {"read": 100.0, "detect": 100.0, "tokenize": 100.0, "embed": 500.0, "pack": 100.0, "write": 100.0}
    fields = {
        "processor": {"kind": "amx", "name": "Some Xeon", "features": ["avx2"], "cores": 2},
        "engine": {"engine_type": str(EngineType.ELASTICSEARCH), "version": [9, 5, 0]},
        "date": "2026-01-02",
        "commit": "abc",
        "limit": 400.0,
        "load": 0.5,
        "cells": cells,
        "costs": costs,
    }
    return Run(**{**fields, **changes})  # type: ignore[arg-type]


def test_costs_of_a_run() -> None:
    costs = results.costs_of(_run())
    assert costs is not None
    assert costs.worker == pytest.approx(_COSTS.worker)
    assert costs.document == pytest.approx(_COSTS.document)
    assert costs.engine(IndexType.HNSW, 1_000_000) == pytest.approx(_COSTS.engine(IndexType.HNSW, 1_000_000))
    assert results.costs_of(_run(costs={})) is None
    assert results.costs_of(_run(cells=[])) is None


def test_tables_of_a_run() -> None:
    lines = results.run_text(_run()).splitlines()
    assert "| embed the texts | O(n): 1 | 1.00 | 10.0 | – | 1.00 | 1.00 |" in lines
    assert "| embed the texts | 402 | 420 | – | 0.02 | 0.02 | 2,048 |" in lines
    assert "- embed the texts, n = 100,000: skipped: 401 s are expected" in lines
    assert "| hnsw | 100,000 | 50,000 | 25,000 | 990 | 3 | 4.0 | 9.0 |" in lines
    assert "| 10 worker machines | 160,000 |  |" in lines
    assert "| a data node, hnsw | 16,000 | 1.0 |" in lines
    assert any(line.startswith("| 1,000,000,000 | bbq_hnsw | 220 |") for line in lines)
    assert "the machine was quiet" in lines[0]


def test_run_without_costs_has_no_model() -> None:
    assert not results.model_text(_run(costs={}))
    assert "worker machines" not in results.run_text(_run(costs={}, engine={}))


def test_a_new_run_replaces_the_parts_that_it_measured(tmp_path: Path) -> None:
    results.keep(_run(), tmp_path)
    again = Cell("encode", 1_000, 0.5, 300.0)
    results.keep(_run(cells=[again], costs={}, engine={}, date="2026-01-03"), tmp_path)
    [(kind, run)] = results.kept(tmp_path).items()
    assert (kind, run.date) == ("amx", "2026-01-03")
    assert run.of("encode") == [again]
    assert run.of("search-hnsw") == _run().of("search-hnsw")
    assert run.costs == _run().costs
    assert run.engine == _run().engine


def test_section_has_the_tables_of_each_kind() -> None:
    assert results.section({}) == "No processor has been measured yet."
    text = results.section({"amx": _run(), "avx2": _run()})
    assert [line for line in text.splitlines() if line.startswith("### ")] == [
        f"### {KINDS[k]}" for k in ("amx", "avx2")
    ]


def test_larger_sizes_are_skipped_once_one_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(part: str, size: int, task: object, url: str, limit: float) -> Cell:
        return Cell(part, size, size / 1_000, whole_seconds=size / 1_000)

    monkeypatch.setattr(command, "_measured", measured)
    task = command.Task(Path(), Path())
    found = command._cells("encode", [1_000, 10_000, 100_000, 450_000], task, "", 50.0)
    reasons = ["", "", "skipped: 100 s are expected", "skipped, like the size before"]
    assert [cell.reason for cell in found] == reasons


def test_model_only_reads_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "kept", lambda: {"amx": _run()})
    done = CliRunner().invoke(command.main, ["--model-only"])
    assert done.exit_code == 0
    assert "| a data node, hnsw | 16,000 | 1.0 |" in done.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--data is needed"),
        (["--data", ".", "--parts", "some"], "unknown parts: some"),
        (["--data", ".", "--parts", "encode,ingest"], "--url is needed for ingest"),
    ],
)
def test_missing_options_are_refused(options: list[str], message: str) -> None:
    done = CliRunner().invoke(command.main, options)
    assert done.exit_code == 2
    assert message in done.output


def _exit(code: int) -> None:
    os._exit(code)  # by a function of this module: the one that coverage puts in its place cannot be pickled


def test_a_process_answers_fails_or_is_stopped() -> None:
    assert within(60, math.sqrt, 4.0) == 2.0
    with pytest.raises(ProcessFailed, match="ValueError"):
        within(60, math.sqrt, -1.0)
    with pytest.raises(ProcessFailed, match="ended with 3"):
        within(60, _exit, 3)
    with pytest.raises(TimeLimitReached, match="stopped after 0 s"):
        within(0.2, time.sleep, 60)
