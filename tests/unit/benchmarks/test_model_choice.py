"""The page about the choice of a model names every model of the catalog."""

from __future__ import annotations

import re

from benchmarks.model_choice import PAGE
from es_sbert.bundle.catalog import MODELS


def test_page_has_license_size_and_limits_of_every_model_of_the_catalog() -> None:
    page = PAGE.read_text()
    for model in MODELS.values():
        numbers = dict(re.findall(r"(\d+) (dimensions|layers|tokens)", model.summary)[i][::-1] for i in (0, 2))
        row = f"| {model.name} | {model.license} | {model.megabytes} | {numbers['dimensions']} | {numbers['tokens']} |"
        assert row in page, row
