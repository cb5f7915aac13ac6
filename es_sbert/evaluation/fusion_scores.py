"""Measure settings of hybrid search in an index. Every fusion runs as it does in production."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.evaluation.fusion_tuning import FusionScores, FusionSetting, default_setting
from es_sbert.evaluation.ranking_metrics import MAIN_METRIC, measure_ranking
from es_sbert.evaluation.task_data import RetrievalCollection
from es_sbert.messages import pluralize
from es_sbert.search.hybrid_search import Fusion, HybridOptions, HybridSearch, hybrid_request
from es_sbert.search.search_scope import SearchScope
from es_sbert.vectors import Vectors

# nDCG@10 needs 10 hits, and one more may be the query itself.
_HITS = 11
_PROGRESS_QUERIES = 100


def measure_fusions(
    engine: Engine,
    scope: SearchScope,
    encoder: Encoder,
    data: RetrievalCollection,
    settings: Sequence[FusionSetting],
    *,
    lexical_fields: Sequence[str] | None = None,
    report: Callable[[str], None] = lambda message: None,
) -> FusionScores:
    """Measure nDCG@10 of each search alone and of each setting, for every judged query.

    Args:
        engine: The engine.
        scope: The searched indices and their only vector field.
        encoder: The encoder of the field's model.
        data: Queries and judgements, each query with a relevant document.
        settings: The settings to measure; the default of reciprocal rank fusion is always measured.
        lexical_fields: Fields of the keyword query; by default those of the embedded text.
        report: Called with progress messages.

    Raises:
        UsageError: the mapping does not say which fields the text is made of, and `lexical_fields` is not set.
        UnsupportedEngine: the engine does not support a fusion.
        EngineError: the engine failed.
    """
    default = default_setting(engine.info.engine_type)
    settings = list(dict.fromkeys([default, *settings]))
    vectors = encoder.encode(list(data.queries.values()), "query")  # (queries, dimensions)
    searcher = _FusionSearcher(engine, scope, settings, lexical_fields)
    rows: list[list[float]] = []
    for (query, text), vector in zip(data.queries.items(), vectors, strict=True):
        own, grades = data.own(query), data.judgements[query]
        rankings = ([id for id in ranking if id != own] for ranking in searcher.rankings(text, vector))
        rows.append([measure_ranking(ranking, grades)[MAIN_METRIC] for ranking in rankings])
        if len(rows) % _PROGRESS_QUERIES == 0:
            report(f"{len(rows):,} of {pluralize(len(data.queries), 'query', 'queries')}")
    lexical, semantic, *hybrid = np.array(rows, dtype=np.float64).T  # (queries,) each
    return FusionScores(list(data.queries), lexical, semantic, dict(zip(settings, hybrid, strict=True)), default)


class _FusionSearcher:
    """Ranks documents by each search alone, and by each setting."""

    def __init__(
        self,
        engine: Engine,
        scope: SearchScope,
        settings: Sequence[FusionSetting],
        lexical_fields: Sequence[str] | None,
    ) -> None:
        self._engine = engine
        self._scope = scope
        self._settings = settings
        self._lexical_fields = lexical_fields

    def rankings(self, text: str, vector: Vectors) -> list[list[str]]:
        """Search, and return ids, best first: of the keyword search, of the semantic search, and of each setting."""
        requests = {setting: self._request(text, vector, setting.options()) for setting in self._settings}
        in_client = next(request for setting, request in requests.items() if setting.fusion is Fusion.RRF)
        # One request serves all settings: the client fuses the hits, so weights and constant are not in the bodies.
        answers = self._engine.multi_search(in_client.indices, in_client.bodies, routing=in_client.routing)
        semantic, lexical = ([hit["_id"] for hit in answer["hits"]["hits"]] for answer in answers)
        found = [lexical[:_HITS], semantic[:_HITS]]
        for setting, request in requests.items():
            if setting.fusion is Fusion.RRF:
                found.append([hit.id for hit in request.read(answers)])
            else:
                answer = self._engine.search(
                    request.indices, request.bodies[0], hit_fields=("_id",), routing=request.routing
                )
                found.append([hit["_id"] for hit in answer.get("hits", {}).get("hits", [])])
        return found

    def _request(self, text: str, vector: Vectors, options: HybridOptions) -> Any:
        given: HybridOptions = options | {"source": False, "lexical_fields": self._lexical_fields}
        search = HybridSearch.from_options(text, _HITS, given)
        return hybrid_request(self._engine.info.engine_type, self._scope, {self._scope.names[0]: vector}, search)
