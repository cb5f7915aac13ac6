"""What `es-sbert index adopt` shows, against golden files (ES_SBERT_UPDATE_GOLDEN=1 rewrites them)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from es_sbert.index.adopt_report import AdoptionReport, MetadataCounts, adoption_lines
from es_sbert.index.adopt_sample import ComparedDocument, SampleCheck
from es_sbert.index.mapping import VectorFieldMeta

GOLDEN = Path(__file__).parents[1] / "golden" / "adoption"
META = VectorFieldMeta(
    fingerprint="f" * 32, model="all-MiniLM-L6-v2", dimensions=384, index_type="hnsw", text="{title}\n{body}"
)


def sample(failing: int, of: int, *, cosine: float = 0.4, truncated: bool = False) -> SampleCheck:
    documents = [ComparedDocument((f"bad{n}", None), cosine + n / 1000, truncated) for n in range(failing)]
    documents += [ComparedDocument((f"d{n}", None), 1.0 - n / 1e6, False) for n in range(of - failing)]
    return SampleCheck(documents, 0.999, 0.99, max_tokens=256)


def report(check: SampleCheck, written: MetadataCounts | None = None) -> AdoptionReport:
    return AdoptionReport("docs-1", "vector", META, 1200, 1100, 1100, check, written)


ONE = ComparedDocument(("bad\x1b[2J", None), 0.25, True)
REPORTS = {
    "adopted": report(sample(0, 300), written=MetadataCounts(adopted=1100)),
    "adopted-with-failing": report(
        sample(2, 300),
        written=MetadataCounts(
            adopted=1080, failing=[ONE, *sample(12, 12).documents], without_text=3, unreadable=1, changed=["c1", "c2"],
            deleted=1, refused={f"r{n}": "(400) document_parsing_exception: too many fields" for n in range(12)},
        ),
    ),
    "adopted-the-rest": replace(
        report(sample(0, 5), written=MetadataCounts(adopted=5)), documents=1100, without_metadata=5
    ),
    "dry-run": report(sample(1, 300)),
    "refused": report(replace(sample(290, 300, cosine=-0.05), without_text=4, unreadable=2)),
    "refused-close": report(sample(12, 12, cosine=0.985)),
    "refused-stale": report(sample(30, 300)),
    "refused-truncated": report(sample(30, 300, truncated=True)),
}  # fmt: skip


@pytest.mark.parametrize("name", REPORTS)
def test_report_matches_golden_file(name: str) -> None:
    text = "\n".join(adoption_lines(REPORTS[name], "docs")) + "\n"
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("ES_SBERT_UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
    assert text.isprintable() or set(text) - {"\n"} == {c for c in text if c.isprintable()}


@pytest.mark.parametrize("name", REPORTS)
def test_exit_code_reflects_acceptance_and_failed_updates(name: str) -> None:
    assert REPORTS[name].exit_code == int(name.startswith("refused") or name == "adopted-with-failing")
    changed = report(sample(0, 300), written=MetadataCounts(adopted=1099, changed=["c1"]))
    assert changed.exit_code == 1


def test_json_report_lists_every_failing_document() -> None:
    plain = REPORTS["adopted-with-failing"].as_json()
    assert [one["id"] for one in plain["sample"]["failing"]] == ["bad0", "bad1"]
    assert len(plain["written"]["failing"]) == 13
    assert (plain["accepted"], plain["meta"]["text"]) == (True, "{title}\n{body}")
