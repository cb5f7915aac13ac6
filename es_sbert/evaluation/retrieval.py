"""Report rows of rankings of test collections."""

from __future__ import annotations

from collections.abc import Sequence

from es_sbert.evaluation.evaluation_report import ReportRow
from es_sbert.evaluation.ranking_metrics import METRICS, Run, mean_scores, measure_queries
from es_sbert.evaluation.task_data import RetrievalCollection
from es_sbert.messages import pluralize

AVERAGE = "average"


def retrieval_row(data: RetrievalCollection, run: Run, part: str) -> ReportRow:
    """Metrics of a ranking of a collection."""
    scores = measure_queries(run, data.judgements)
    return ReportRow(data.name, part, len(data.queries), "queries", mean_scores(scores), scores)


def average_row(rows: Sequence[ReportRow]) -> ReportRow:
    """Means over several collections, each of which counts the same, as BEIR and NanoBEIR average."""
    figures = {name: sum(row.figures[name] for row in rows) / len(rows) for name in METRICS}
    return ReportRow(AVERAGE, pluralize(len(rows), "collection"), sum(row.size for row in rows), "queries", figures)
