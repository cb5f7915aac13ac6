"""The doctor's judgements, without an engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from es_sbert.diagnostics.doctor import Severity, check_encoder, disk_finding, field_findings, settings_findings
from es_sbert.encoder.text_pipeline import EncoderInfo
from es_sbert.engines.index_state import IndexState
from es_sbert.index.index_summary import FieldSummary
from es_sbert.index.mapping import VectorFieldMeta
from tests.tiny import write_tiny_bert

INFO = EncoderInfo(
    model="tiny",
    fingerprint="f" * 32,
    dimensions=16,
    max_tokens=24,
    variant="int8",
    precision="int8",
    provider="CPUExecutionProvider",
    device="cpu",
    threads=2,
)


def test_model_whose_vectors_are_not_of_unit_length_is_ok(tmp_path: Path) -> None:
    model = write_tiny_bert(tmp_path / "tiny", normalize=False)
    info, findings = check_encoder(str(model), {"device": "cpu"})
    assert info is not None
    assert {finding.level for finding in findings if finding.about == "model"} == {Severity.OK}


@pytest.mark.parametrize(("free", "level"), [(0.5, Severity.OK), (0.15, Severity.WARNING), (0.04, Severity.ERROR)])
def test_disk_finding_follows_the_default_watermarks(free: float, level: Severity) -> None:
    finding = disk_finding(free, "node", 50 * 10**9, by_default=True)
    own_limits = disk_finding(free, "node", 50 * 10**9, by_default=False)
    assert own_limits.level is (Severity.OK if level is Severity.OK else Severity.WARNING)
    assert finding.level is level
    assert finding.message.startswith(f"node has 50.0 GB free, {100 * (1 - free):.0f} % are used")
    assert bool(finding.remedy) is (level is not Severity.OK)


def test_index_blocks_are_reported() -> None:
    state = IndexState("docs", {}, {"index.blocks.write": "true", "index.blocks.read": "false"})
    [blocked] = settings_findings(state)
    assert (blocked.level, "index.blocks.write" in blocked.message) == (Severity.ERROR, True)
    assert "docs/_settings" in blocked.remedy
    [full] = settings_findings(IndexState("docs", {}, {"index.blocks.read_only_allow_delete": "true"}))
    assert "Free disk space" in full.remedy
    assert list(settings_findings(IndexState("docs", {}, {}))) == []


def field(**counts: int) -> FieldSummary:
    meta = VectorFieldMeta(fingerprint="f" * 32, model="tiny", dimensions=16, index_type="hnsw")
    numbers = {"vectors": 10, "current": 10, "truncated": 0, "passages": None} | counts
    return FieldSummary("embedding", meta, **numbers)


def levels(findings: Any) -> list[Severity]:
    return [finding.level for finding in findings]


def test_vector_field_findings() -> None:
    assert levels(field_findings("docs", field(), 10, INFO)) == [Severity.OK]
    assert levels(field_findings("docs", field(), 12, INFO)) == [Severity.WARNING]
    *_, cut = field_findings("docs", field(truncated=3), 10, None)
    assert (cut.level, cut.message) == (Severity.WARNING, "3 of 10 texts (30.0%) are longer than the model reads")
    command = "es-sbert ingest --index docs --vector-field embedding_passages --model tiny --passages 256"
    assert f"`{command}`" in cut.remedy
    assert levels(field_findings("docs", field(current=9), 10, INFO)) == [Severity.ERROR, Severity.OK]
    other = replace(INFO, model="another", fingerprint="0" * 32)
    assert levels(field_findings("docs", field(), 10, other)) == [Severity.WARNING, Severity.OK]
    # Nothing that could be named would search it.
    changed = replace(INFO, fingerprint="0" * 32)
    assert levels(field_findings("docs", field(), 10, changed)) == [Severity.ERROR, Severity.OK]
