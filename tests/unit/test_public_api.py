"""The names that `es_sbert` and its packages promise, and the reference that is generated from their docstrings."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import es_sbert

ROOT = Path(__file__).parents[2]

# A change of these lists is a change of the public API: it needs a line in CHANGELOG.md.
PUBLIC = {
    "es_sbert": ["AsyncSemanticIndex", "Encoder", "Reranker", "SemanticIndex"],
    "es_sbert.evaluation": ["evaluate"],
    "es_sbert.exporters": ["export"],
    "es_sbert.training": ["distill", "train"],
    "es_sbert.search": [
        "AsyncSemanticIndex",
        "Hit",
        "HybridHit",
        "HybridResult",
        "Passage",
        "RankedHits",
        "Reranking",
        "SearchResult",
        "SemanticIndex",
    ],
}
INDEX_METHODS = [
    "add", "close", "count", "create", "delete", "embed_missing", "exists", "get", "hybrid", "search", "search_many",
    "similar_to",
]  # fmt: skip
METHODS = {
    "Encoder": ["close", "embed_documents", "embed_query", "encode", "encode_document", "encode_query", "similarity"],
    "Reranker": ["close", "predict", "rank"],
    "SemanticIndex": INDEX_METHODS,
    "AsyncSemanticIndex": INDEX_METHODS,
}


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names_are_exported_and_documented(package: str) -> None:
    module = import_module(package)
    assert sorted(module.__all__) == PUBLIC[package]
    assert all(inspect.getdoc(getattr(module, name)) for name in PUBLIC[package])


@pytest.mark.parametrize("name", METHODS)
def test_public_methods_are_documented(name: str) -> None:
    """Private and special methods, and those inherited from object, need no docstring."""
    methods = inspect.getmembers(getattr(es_sbert, name), lambda value: callable(value) or isinstance(value, property))
    public = {method: value for method, value in methods if not method.startswith("_")}
    assert set(METHODS[name]) <= set(public)
    assert [method for method, value in public.items() if not inspect.getdoc(value)] == []


def test_sync_and_async_index_have_the_same_methods() -> None:
    def methods(of: type) -> set[str]:
        return {name for name, value in vars(of).items() if callable(value) and not name.startswith("_")}

    assert methods(es_sbert.SemanticIndex) - {"create"} == methods(es_sbert.AsyncSemanticIndex) - {"create"}


@pytest.mark.slow
def test_api_reference_builds_without_warnings(tmp_path: Path) -> None:
    done = subprocess.run(
        ["scripts/api-reference", str(tmp_path)],
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "es_sbert.html").read_text(encoding="utf-8")
    assert all(f'id="{name}"' in page for name in es_sbert.__all__)
