"""Runs of parts are put together with what is kept, and speeds of different runs never stand in one table."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.model_choice import PAGE, merged, run_text
from es_sbert.bundle.catalog import MODELS

ABOUT = {"date": "2026-01-02", "commit": "abc", "rounds": 3, "processor": {"name": "P", "features": ["x"], "cores": 2}}


def quality(score: float) -> dict[str, Any]:
    return {
        "variant": "int8", "dimensions": 384, "max_tokens": 256, "megabytes": 90, "sts": 80.0,
        "retrieval": {"cisi": score, "arguana": score + 1},
    }  # fmt: skip


def test_table_shows_means_and_which_speeds_are_missing() -> None:
    speed = {"short": 1234.0, "paragraphs": 99.0, "memory": 500.0}
    run = merged({}, {"quality": {"mine": quality(10), "other": quality(20)}, "speed": {"mine": speed}}, ABOUT)
    lines = [line for line in run_text("avx512-bf16", run).splitlines() if line.startswith("|")]
    assert "| mine | 10.0 | 11.0 | 10.5 | 80.00 | 1,234 | 99 | 384 | 256 | 90 | 500 | int8 |" in lines
    assert "| other | 20.0 | 21.0 | 20.5 | 80.00 | – | – | 384 | 256 | 90 | – | int8 |" in lines


def test_page_has_license_size_and_limits_of_every_model_of_the_catalog() -> None:
    page = PAGE.read_text()
    for model in MODELS.values():
        numbers = dict(re.findall(r"(\d+) (dimensions|layers|tokens)", model.summary)[i][::-1] for i in (0, 2))
        row = f"| {model.name} | {model.license} | {model.megabytes} | {numbers['dimensions']} | {numbers['tokens']} |"
        assert row in page, row
