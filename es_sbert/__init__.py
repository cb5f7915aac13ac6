"""Semantic search over an Elasticsearch or OpenSearch index, with Sentence-BERT models (arXiv 1908.10084).

    from es_sbert import Encoder, SemanticIndex

    vectors = Encoder("all-MiniLM-L6-v2").encode(["A first text.", "A second text."])

    with SemanticIndex.create("docs", "http://localhost:9200", model="all-MiniLM-L6-v2") as index:
        index.add([{"_id": "1", "text": "A cat sits on the mat."}])
        for hit in index.search("feline", k=5):
            print(hit.id, hit.cosine)

Names are imported when they are first used, so `import es_sbert` is fast. `es_sbert.training.train`,
`es_sbert.evaluation.evaluate` and `es_sbert.exporters.export` train, evaluate and export models. Errors are in
`es_sbert.errors`.
"""

import os as _os
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from es_sbert.encoder.encoder import Encoder as Encoder
    from es_sbert.encoder.reranker import Reranker as Reranker
    from es_sbert.search import AsyncSemanticIndex as AsyncSemanticIndex
    from es_sbert.search import SemanticIndex as SemanticIndex

# Usage reporting of dependencies is off unless the environment says otherwise. onnxruntime reads its variable during
# its import, writes a device id and a database below ~/.cache, and resolves its collector's name; its
# `disable_telemetry_events()` comes after that. Every module of this package, in worker processes and Ray actors too,
# is imported after this line.
NO_TELEMETRY = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "ORT_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
for _name, _value in NO_TELEMETRY.items():
    _os.environ.setdefault(_name, _value)

# `exporters/` and `mappings/` are top-level folders of a checkout and are installed inside this package. In a checkout
# that is on the path but not installed (a worktree, a machine of `make gpu-check`), this entry lets Python find them.
# Symbolic links would not survive a checkout on Windows.
_folder = _os.path.dirname(__file__)
if not _os.path.isdir(_os.path.join(_folder, "mappings")):
    from importlib.util import find_spec as _find_spec

    # An editable installation finds them, but possibly those of another checkout.
    _found = _find_spec("es_sbert.mappings")
    if _found is None or not str(_found.origin).startswith(_os.path.join(_os.path.dirname(_folder), "")):
        __path__.append(_os.path.dirname(_folder))

from es_sbert.lazy_names import lazy_names as _lazy_names  # noqa: E402 - after the environment was set
from es_sbert.version import __version__ as __version__  # noqa: E402

_NAMES = {
    "es_sbert.encoder.encoder": ("Encoder",),
    "es_sbert.encoder.reranker": ("Reranker",),
    "es_sbert.search.async_semantic_index": ("AsyncSemanticIndex",),
    "es_sbert.search.semantic_index": ("SemanticIndex",),
}
__all__ = ["AsyncSemanticIndex", "Encoder", "Reranker", "SemanticIndex"]

__getattr__, __dir__ = _lazy_names(__name__, _NAMES)
