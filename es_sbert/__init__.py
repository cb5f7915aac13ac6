"""Semantic search over an Elasticsearch or OpenSearch index, with Sentence-BERT models (arXiv 1908.10084)."""

import os as _os

# The version's only place: pyproject.toml, `es-sbert --version` and the bundles read it here.
__version__ = "0.1.0"

# `exporters/` and `mappings/` are top-level folders of a checkout and are installed inside this package. In a checkout
# that is not installed, Python finds them by this path. Links in their place would not survive a checkout on Windows.
_folder = _os.path.dirname(__file__)
if not _os.path.isdir(_os.path.join(_folder, "mappings")):
    from importlib.util import find_spec as _find_spec

    # An editable installation finds them, but possibly those of another checkout.
    _found = _find_spec("es_sbert.mappings")
    if _found is None or not str(_found.origin).startswith(_os.path.join(_os.path.dirname(_folder), "")):
        __path__.append(_os.path.dirname(_folder))
