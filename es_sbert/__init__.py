"""Search an Elasticsearch or OpenSearch index by meaning, with Sentence-BERT (arXiv 1908.10084)."""

from importlib.util import find_spec as _find_spec
from pathlib import Path as _Path

__version__ = "0.1.0"

# Python that is started in a checkout takes this folder before the installed package; there, `exporters/` and
# `mappings/` stand beside it rather than in it.
if _find_spec("es_sbert.mappings") is None:
    __path__.append(str(_Path(__file__).parents[1]))
