"""Where the time of a variant goes: a small model, measured for an instant, and the tables."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import operator_times
from benchmarks.operator_times import OperatorRun, OperatorTimes, large_product, measure, operations_per_token, section
from es_sbert.bundle.variants import Variant
from es_sbert.encoder.model_loading import find_encoder, open_or_export
from es_sbert.runtime.variant_candidates import default_exports
from tests.tiny import HIDDEN, INTERMEDIATE, LAYERS, write_tiny_bert

_RUNNABLE = [variant for variant in default_exports() if variant.precision.device == "cpu"]


def _run() -> OperatorRun:
    processor = {"kind": "amx", "name": "Some CPU", "features": ["avx2"], "cores": 2}
    shares = {"products": 0.5, "attention": 0.3, "other": 0.2}
    one = OperatorTimes("openvino-bf16", 16, 1024, 1500.4, shares, {"Gelu": 0.15, "Add": 0.05}, 600.0, 1200.0)
    return OperatorRun("some-model", "2026-01-01", "abc", processor, "3.11", 0.1, [one])


@pytest.mark.parametrize("variant", _RUNNABLE)
def test_each_variant_is_measured(variant: Variant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(operator_times, "_LARGE", (16, 32))
    monkeypatch.setattr(operator_times, "_LENGTHS", (4, 8))
    model = write_tiny_bert(tmp_path / "model")
    source, variants = find_encoder(model), [Variant.FP32, variant]
    bundle, refused = open_or_export(source, variants, may_fall_back=False, report=lambda _: None)
    assert not refused
    found = list(measure(bundle, variant, 0.01))
    assert [one.tokens for one in found] == [4, 8]
    for one in found:
        assert one.texts_per_second > 0
        assert sum(one.shares.values()) == pytest.approx(1)
        assert one.shares["products"] > 0
        assert one.shares["attention"] > 0
        assert one.rate > 0
        assert one.large_rate > 0
        assert sum(one.others.values()) <= one.shares["other"] + 1e-9


def test_operations_are_those_of_all_products_with_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    model = write_tiny_bert(tmp_path / "model")
    bundle, _ = open_or_export(find_encoder(model), [Variant.FP32], may_fall_back=False, report=lambda _: None)
    weights = LAYERS * (4 * HIDDEN**2 + 2 * HIDDEN * INTERMEDIATE)
    assert operations_per_token(bundle.variant_file(Variant.FP32)) == 2 * weights


def test_large_product_is_computed_in_the_precision_of_the_variant() -> None:
    assert {node.op_type for node in large_product(Variant.INT8, 8)[0].graph.node} == {"MatMulInteger"}
    for variant in Variant:
        model, left = large_product(variant, 8)
        assert (left.dtype == "uint8") == (variant is Variant.INT8)
        assert ("DequantizeLinear" in {node.op_type for node in model.graph.node}) == (variant is Variant.OPENVINO_INT8)


def test_table_compares_with_the_large_product() -> None:
    assert "| openvino-bf16, 16 | 1,500 | 50% | 30% | 20% | Gelu 15%, Add 5% | 600 | 1,200 | 50% |" in section(
        {"amx": _run()}
    )
    assert "### x86 with AMX: some-model" in section({"amx": _run()})
    assert section({}) == "No processor has been measured yet."
    assert OperatorRun.from_json(asdict(_run())) == _run()


def test_command_writes_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "results.md"
    name, maker = operator_times.NAME, operator_times.MAKER
    page.write_text(f"# Results\n<!-- {name}: made by {maker} -->\n<!-- end of {name} -->\n")
    monkeypatch.setattr(operator_times, "PAGE", page)
    monkeypatch.setattr(operator_times, "kept", lambda: {"amx": _run()})
    result = CliRunner().invoke(operator_times.main, ["--kept", "--write"])
    assert result.exit_code == 0, result.output
    assert "Some CPU (avx2), 2 cores; 2026-01-01" in page.read_text()
