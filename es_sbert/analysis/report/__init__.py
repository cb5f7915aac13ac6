"""The report of an analysis: one HTML file with a map, the groups and their texts, which loads nothing else."""

from es_sbert.analysis.report.contents import Report, ReportGroup, ReportKind
from es_sbert.analysis.report.page import report_bytes
from es_sbert.analysis.report.text_map import map_points

__all__ = ["Report", "ReportGroup", "ReportKind", "map_points", "report_bytes"]
