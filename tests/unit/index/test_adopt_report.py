"""What `es-sbert index adopt` shows, against golden files (ES_SBERT_UPDATE_GOLDEN=1 rewrites them)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from es_sbert.index.adopt_report import AdoptionReport, ComparedDocument, MetadataCounts, SampleCheck, adoption_lines
from es_sbert.index.document_vectors import row_cosines
from es_sbert.index.mapping import VectorFieldMeta

GOLDEN = Path(__file__).parents[1] / "golden" / "adoption"
META = VectorFieldMeta(
    fingerprint="f" * 32, model="all-MiniLM-L6-v2", dimensions=384, index_type="hnsw", text="{title}\n{body}"
)


def check(*cosines: float) -> SampleCheck:
    documents = [ComparedDocument((f"d{row}", None), cosine, False) for row, cosine in enumerate(cosines)]
    return SampleCheck(documents=documents, min_cosine=0.999)


def sample(failing: int, of: int, *, cosine: float = 0.4) -> SampleCheck:
    return check(*(cosine + n / 1000 for n in range(failing)), *(1.0 - n / 1e6 for n in range(of - failing)))


def report(check: SampleCheck, written: MetadataCounts | None = None) -> AdoptionReport:
    return AdoptionReport("docs-1", "vector", META, 1200, 1100, 1100, check, written)


ONE = ComparedDocument(("bad\x1b[2J", None), 0.25, True)
REPORTS = {
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
}  # fmt: skip


@pytest.mark.parametrize("name", REPORTS)
def test_report_and_exit_code(name: str) -> None:
    text = "\n".join(adoption_lines(REPORTS[name], "docs")) + "\n"
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("ES_SBERT_UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
    assert text.isprintable() or set(text) - {"\n"} == {c for c in text if c.isprintable()}
    assert REPORTS[name].exit_code == int(name.startswith("refused") or name == "adopted-with-failing")


def test_changed_documents_are_a_failure() -> None:
    assert report(sample(0, 300), written=MetadataCounts(adopted=1099, changed=["c1"])).exit_code == 1


def test_json_report_lists_every_failing_document() -> None:
    plain = REPORTS["adopted-with-failing"].as_json()
    assert [one["id"] for one in plain["sample"]["failing"]] == ["d0", "d1"]
    assert len(plain["written"]["failing"]) == 13
    assert (plain["accepted"], plain["meta"]["text"]) == (True, "{title}\n{body}")
    routed = ComparedDocument(("a", "r"), 0.12345678, False).as_json()
    assert routed == {"id": "a", "routing": "r", "cosine": 0.123457, "truncated": False}


def test_cosine_is_independent_of_vector_length() -> None:
    one, two = np.random.default_rng(0).normal(size=(2, 50, 16)).astype(np.float32)
    expected = np.sum(one.astype(float) * two, axis=1) / np.sqrt(
        np.sum(one.astype(float) ** 2, axis=1) * np.sum(two.astype(float) ** 2, axis=1)
    )
    np.testing.assert_allclose(row_cosines(one, two), expected, atol=1e-12)
    np.testing.assert_allclose(row_cosines(one * 1e-3, two * 1e6), expected, atol=1e-6)
    assert 1 - 1e-12 < row_cosines(one, one).min() <= row_cosines(one, one).max() <= 1


@pytest.mark.parametrize("broken", [0.0, np.nan, np.inf])
def test_zero_or_non_finite_vector_has_cosine_zero(broken: float) -> None:
    rows = np.full((1, 4), broken, dtype=np.float32)
    assert row_cosines(rows, np.ones((1, 4), dtype=np.float32)).tolist() == [0.0]
    assert row_cosines(rows, rows).tolist() == [0.0]


def test_sample_is_accepted_if_99_percent_reach_the_minimum() -> None:
    found = check(0.5, 0.999, 0.9989, 1.0, -0.2)
    assert [one.key[0] for one in found.failing] == ["d4", "d0", "d2"]
    assert (found.matching, found.is_accepted) == (2, False)
    assert [sample(failing, 100).is_accepted for failing in (0, 1, 2)] == [True, True, False]
