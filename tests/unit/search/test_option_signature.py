"""The signatures that Python shows name every keyword argument, with the default that it has."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from es_sbert import AsyncSemanticIndex, SemanticIndex
from es_sbert.arguments import with_defaults
from es_sbert.engines.engine_info import EngineType
from es_sbert.index.vector_field import request_vector_field
from es_sbert.search.hybrid_search import hybrid_request
from es_sbert.search.reranking import search_depth
from es_sbert.search.search_request import search_request
from es_sbert.settings import AddOptions, HybridOptions, IndexOptions, SearchOptions
from tests.tiny import write_tiny_bert
from tests.unit.search.test_search_request import ONE, VECTOR


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("search", SearchOptions), ("search_vector", SearchOptions), ("similar_to", SearchOptions),
        ("body", SearchOptions), ("similar_body", SearchOptions), ("hybrid", HybridOptions),
        ("hybrid_bodies", HybridOptions), ("add", AddOptions), ("embed_missing", AddOptions),
    ],
)  # fmt: skip
def test_signature_names_all_options_in_both_classes(name: str, options: Any) -> None:
    for kind in (SemanticIndex, AsyncSemanticIndex):
        names = list(inspect.signature(getattr(kind, name)).parameters)
        assert names[-len(options.__annotations__) :] == list(options.__annotations__)


def test_shown_defaults_are_those_of_a_call_without_options() -> None:
    given: Any = with_defaults(HybridOptions, {})
    for engine_type in EngineType:
        default = search_request(engine_type, ONE, VECTOR, 7, {})
        assert search_request(engine_type, ONE, VECTOR, 7, given).bodies == default.bodies
        hybrid = hybrid_request(engine_type, ONE, VECTOR, 7, {}, "storm damage")
        assert hybrid_request(engine_type, ONE, VECTOR, 7, given, "storm damage").bodies == hybrid.bodies
    assert search_depth(None, 7, None) == 7
    reranker: Any = SimpleNamespace(score_pairs=None)
    assert search_depth(reranker, 7, None) == 50
    parameters = inspect.signature(SemanticIndex.search).parameters
    assert (parameters["exact"].default, parameters["filter"].default) == (False, None)
    assert inspect.signature(SemanticIndex.add).parameters["retry_seconds"].default == 300.0


def test_shown_defaults_of_a_new_index_are_those_of_a_call_without_options(tmp_path: Path) -> None:
    tiny = write_tiny_bert(tmp_path / "tiny")
    assert request_vector_field(str(tiny), **with_defaults(IndexOptions, {})) == request_vector_field(str(tiny))
