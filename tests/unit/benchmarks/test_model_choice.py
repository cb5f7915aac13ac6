"""Runs of parts are put together with what is kept, and speeds of different runs never stand in one table."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.model_choice import PAGE, merged, run_text
from es_sbert.catalog.models import MODELS

ABOUT = {"date": "2026-01-02", "commit": "abc", "rounds": 3, "processor": {"name": "P", "features": ["x"], "cores": 2}}


def quality(score: float) -> dict[str, Any]:
    return {
        "variant": "int8", "dimensions": 384, "max_tokens": 256, "megabytes": 90, "sts": 80.0,
        "retrieval": {"cisi": score, "arguana": score + 1},
    }  # fmt: skip


def test_models_are_added_to_the_kept_ones_in_the_order_of_the_catalog() -> None:
    first = merged({}, {"quality": {"e5-small-v2": quality(1), "mine": quality(2)}}, ABOUT)
    second = merged(first, {"quality": {"all-MiniLM-L6-v2": quality(3), "mine": quality(4)}}, ABOUT)
    assert list(second["quality"]["models"]) == ["all-MiniLM-L6-v2", "e5-small-v2", "mine"]
    assert second["quality"]["models"]["mine"] == quality(4)
    assert second["speed"] == {"models": {}}


def test_new_speeds_replace_all_others() -> None:
    first = merged({}, {"quality": {"mine": quality(1)}, "speed": {"mine": {"short": 1.0}}}, ABOUT)
    second = merged(first, {"speed": {"e5-small-v2": {"short": 2.0}}}, ABOUT)
    assert second["speed"]["models"] == {"e5-small-v2": {"short": 2.0}}
    assert second["quality"]["models"] == {"mine": quality(1)}


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
