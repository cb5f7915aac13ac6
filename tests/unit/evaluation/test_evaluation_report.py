"""Reports as tables and JSON."""

from __future__ import annotations

import json

import pytest

import es_sbert
from es_sbert.evaluation.evaluation_report import (
    EvaluationReport,
    ReportRow,
    text_table,
    versions,
)
from es_sbert.evaluation.task_data import EvaluationTask

STS = EvaluationReport(
    EvaluationTask.STS,
    "m (int8)",
    (
        ReportRow("stsb-test", "all", 1379, "pairs", {"spearman_cosine": 85.3456, "pearson_cosine": 8.0}),
        ReportRow("s|t", "x", 7, "pairs", {"spearman_cosine": -3.0, "pearson_cosine": 0.0}),
    ),
    {"device": "auto", "limit": None},
    {"es-sbert": "1.2"},
)


def test_text_table() -> None:
    assert text_table(STS).splitlines() == [
        "sts: m (int8)",
        "data       part  pairs  ρ cosine  r cosine",
        "stsb-test  all   1,379     85.35      8.00",
        "s|t        x         7     -3.00      0.00",
    ]


def test_thresholds_keep_four_digits() -> None:
    row = ReportRow("d", "all", 2, "pairs", {"f1": 80.0, "f1_threshold": 0.78934})
    assert text_table(EvaluationReport(EvaluationTask.DUPLICATES, "m", (row,))).splitlines()[-1].split() == [
        "d",
        "all",
        "2",
        "80.00",
        "0.7893",
    ]


def test_report_as_json() -> None:
    value = json.loads(STS.as_json())
    assert value["task"] == "sts"
    assert value["rows"][0]["figures"]["spearman_cosine"] == 85.3456
    assert value["settings"] == {"device": "auto", "limit": None}
    assert b"\n" not in STS.as_json()


def test_versions_of_installed_packages() -> None:
    found = versions()
    assert {"python", "es-sbert", "numpy", "scipy"} <= set(found)
    assert all(found.values())


@pytest.mark.usefixtures("without_metadata")
def test_versions_in_a_checkout_include_its_own() -> None:
    assert versions()["es-sbert"] == es_sbert.__version__
