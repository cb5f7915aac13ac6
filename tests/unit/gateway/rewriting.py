"""A rewriter over indices made up for a test, with vectors that stand for their texts."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.gateway.index_lookup import ResolvedIndices
from es_sbert.gateway.search.field_resolver import FieldResolver
from es_sbert.gateway.search.hybrid_queries import HybridDetector, ranks_hits
from es_sbert.gateway.search.incoming_search import is_from_query_bar, request_defined_fields
from es_sbert.gateway.search.knn_clauses import CandidateCounts, Placeholder, SectionPlaceholder
from es_sbert.gateway.search.query_finder import QueryFinder
from es_sbert.gateway.search.semantic_query import SemanticQuery, SemanticQueryParser
from es_sbert.gateway.settings import SemanticSettings
from es_sbert.index.document_vectors import to_float_list
from es_sbert.index.mapping import ChunkRules, VectorFieldMeta
from es_sbert.vectors import Vectors


def vector_field(**changed: Any) -> VectorFieldMeta:
    said = {
        "fingerprint": "f" * 64,
        "model": "all-MiniLM-L6-v2",
        "dimensions": 3,
        "index_type": "hnsw",
        "text": "{title}. {body}",
    }
    return VectorFieldMeta.model_validate(said | changed)


PLAIN = ResolvedIndices({"docs": {"embedding": vector_field()}}, {"docs": 1, "old": 1}, ordinary=False)
PASSAGES = ResolvedIndices(
    {"docs": {"embedding": vector_field(passages=ChunkRules(tokens=64, overlap=8))}}, {"docs": 1, "old": 1}
)
TWO_FIELDS = ResolvedIndices(
    {"docs": {"title_vector": vector_field(text="{title}"), "embedding": vector_field()}},
    {"docs": 1, "old": 1},
    ordinary=False,
)
MIXED = ResolvedIndices(
    {"docs": {"embedding": vector_field()}, "old": {"embedding": vector_field(fingerprint="e" * 64)}},
    {"docs": 1, "old": 1},
)
CUT_HERE_WHOLE_THERE = ResolvedIndices(PASSAGES.fields | {"old": {"embedding": vector_field()}}, {"docs": 1, "old": 1})
SEVERAL_TYPES = ResolvedIndices(
    {
        "docs": {"embedding": vector_field()},
        "old": {"embedding": vector_field(index_type="flat")},
        "small": {"embedding": vector_field(index_type="int8_hnsw")},
    },
    {"docs": 1, "old": 1, "small": 1},
    filters={"old": {"term": {"tenant": 1}}},
)


@dataclass
class Rewriting:
    """Rewrites bodies and keeps the texts that vectors were asked for."""

    searched: ResolvedIndices = PLAIN
    engine_type: EngineType = EngineType.ELASTICSEARCH
    meaning: SemanticSettings = field(default_factory=lambda: SemanticSettings(k=10))
    hybrid: bool = False
    least: float | None = None
    texts: list[str] = field(default_factory=list)

    def __call__(self, body: Json) -> Json:
        """Rewrite a copy; the identical object if nothing is rewritten."""
        copied: Json = copy_json(body)
        virtual_field, defined = self.meaning.virtual_field, request_defined_fields(body)
        names = FieldResolver(self.searched, virtual_field, defined, lenient=is_from_query_bar(body))
        parser = SemanticQueryParser(names, self.meaning, 1000)
        hybrid = HybridDetector(parser) if self.hybrid and ranks_hits(body, {}) else None
        found = QueryFinder(self.engine_type, parser, hybrid).find(copied)
        counts = CandidateCounts()
        for placeholder, (holder, name) in found.items():
            holder[name] = self._native_query(placeholder, counts)
        return copied if found else body

    def _native_query(self, placeholder: Placeholder, counts: CandidateCounts) -> Json:
        semantic = placeholder.semantic
        self.texts.append(semantic.text)
        numbers = to_float_list(self._vector(semantic))
        if isinstance(placeholder, SectionPlaceholder):
            return placeholder.native_section(numbers)
        least = self.least if placeholder.has_cutoff else None
        nearest = placeholder.native_query(self.engine_type, numbers, least, counts)
        if placeholder.words is None:
            return nearest
        # What the ranking looks at, see hybrid_queries.py.
        return {"dis_max": {"queries": [placeholder.words, nearest, placeholder.exact]}}

    def _vector(self, semantic: SemanticQuery) -> Vectors:
        """*Shape:* ``(dimensions,)``."""
        random = np.random.default_rng(zlib.crc32(semantic.text.encode()))
        return random.integers(1, 9, semantic.target.meta.dimensions).astype(np.float32)

    def query(self, query: Json, **body: Any) -> Json:
        rewritten: Json = self({"query": query} | body)["query"]
        return rewritten


def copy_json(value: Any) -> Any:
    """A copy in which no object is in two places, as in a parsed body."""
    if isinstance(value, dict):
        return type(value)({name: copy_json(inner) for name, inner in dict.items(value)})
    return [copy_json(inner) for inner in value] if isinstance(value, list) else value


def clauses(value: Any, name: str) -> list[Json]:
    """What stands under a name anywhere in JSON, outermost first."""
    found: list[Json] = []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += [inner] if key == name else []
            found += clauses(inner, name)
    elif isinstance(value, list):
        for inner in value:
            found += clauses(inner, name)
    return found
