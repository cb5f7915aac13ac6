"""Tables of examples: JSON Lines, CSV, TSV, Parquet and datasets folders, read whole and checked by line."""

from es_sbert.tabular.missing import MissingColumns
from es_sbert.tabular.problems import Problems
from es_sbert.tabular.read import read_table
from es_sbert.tabular.table import Table

__all__ = ["MissingColumns", "Problems", "Table", "read_table"]
