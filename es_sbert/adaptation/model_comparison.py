"""Compare a tuned model with the model that it started from, on the same queries; the result of a run of adapt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from es_sbert.adaptation.adapt_plan import AdaptPlan
from es_sbert.engines.rest import Json
from es_sbert.evaluation.exact_search import search_exact
from es_sbert.evaluation.ranking_metrics import measure_ranking
from es_sbert.evaluation.significance import PairedDifference, Verdict, paired_difference

_NDCG, _RECALL = "ndcg@10", "recall@10"
_DEPTH = 10


@dataclass(frozen=True)
class ModelComparison:
    """A tuned model and the model that it started from.

    Attributes:
        documents: Number of documents that the queries were ranked against.
        ndcg, recall: nDCG@10 and recall@10 × 100 of the tuned model (`first`) and the stock model (`second`).
    """

    documents: int
    ndcg: PairedDifference
    recall: PairedDifference

    @property
    def queries(self) -> int:
        """Number of queries."""
        return self.ndcg.queries

    @property
    def metrics(self) -> dict[str, PairedDifference]:
        """The metrics by their names."""
        return {"nDCG@10": self.ndcg, "recall@10": self.recall}

    @property
    def verdict(self) -> Verdict:
        """Better by nDCG@10, unless worse by recall@10; worse if it is worse by either."""
        if Verdict.WORSE in (self.ndcg.verdict, self.recall.verdict):
            return Verdict.WORSE
        return self.ndcg.verdict


def query_metrics(
    queries: NDArray[np.float32], documents: NDArray[np.float32], relevant: Sequence[Sequence[int]]
) -> NDArray[np.float64]:
    """Rank all documents by cosine; return nDCG@10 and recall@10 × 100 of each query.

    Args:
        queries, documents: Vectors. *Shape:* ``(queries, dimensions)``, ``(documents, dimensions)``.
        relevant: Rows of the documents that are relevant to each query, at least one.

    Returns:
        *Shape:* ``(2, queries)``.
    """
    found, _ = search_exact(queries, documents, _DEPTH)  # (queries, ranks)
    scores = [
        measure_ranking([str(row) for row in best], dict.fromkeys(map(str, rows), 1))
        for best, rows in zip(found.tolist(), relevant, strict=True)
    ]
    return np.array([[score[name] for score in scores] for name in (_NDCG, _RECALL)])


def compare_metrics(
    stock: NDArray[np.float64], tuned: NDArray[np.float64], documents: int, seed: int
) -> ModelComparison:
    """Compare the metrics of two models, query by query.

    Args:
        stock, tuned: Results of `query_metrics` for the same queries.
        documents: Number of documents.
        seed: Seed of the resampling.
    """
    ndcg, recall = (paired_difference(after, before, seed=seed) for before, after in zip(stock, tuned, strict=True))
    return ModelComparison(documents, ndcg, recall)


@dataclass(frozen=True)
class AdaptResult:
    """A finished run.

    Attributes:
        comparison: The stock model and the tuned one.
        model: Folder of the tuned model; None if it was not better and has been deleted.
        fingerprint: Fingerprint of the tuned model.
        plan: The plan of the run.
        trained: Number of pairs that the tuned model was trained on.
        is_alias: Whether the name of the index is an alias, which `es-sbert index migrate` needs.
    """

    comparison: ModelComparison
    model: Path | None
    fingerprint: str
    plan: AdaptPlan
    trained: int
    is_alias: bool


def result_json(result: AdaptResult) -> Json:
    """Build the content of `result.json`."""
    comparison: Json = asdict(result.comparison)
    return {
        "verdict": result.comparison.verdict,
        "comparison": comparison,
        "fingerprint": result.fingerprint,
        "trained": result.trained,
    }


def read_result(path: Path, plan: AdaptPlan) -> AdaptResult | None:
    """Read the result of a finished run, without the folder of its model; None if the run is not finished.

    Args:
        path: `result.json` of the run.
        plan: The plan of the run, which is in another file.
    """
    if not path.is_file():
        return None
    found = orjson.loads(path.read_bytes())
    scores = found["comparison"]
    ndcg, recall = PairedDifference(**scores["ndcg"]), PairedDifference(**scores["recall"])
    comparison = ModelComparison(scores["documents"], ndcg, recall)
    return AdaptResult(comparison, None, found["fingerprint"], plan, found["trained"], False)
