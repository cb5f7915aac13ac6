"""The result of a run of `es-sbert adapt`, and its file in the run's folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from es_sbert.adaptation.adapt_plan import AdaptPlan
from es_sbert.adaptation.model_comparison import ModelComparison
from es_sbert.engines.rest import Json
from es_sbert.evaluation.significance import PairedDifference


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
