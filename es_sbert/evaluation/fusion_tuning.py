"""Choose the fusion of a hybrid search, from the scores of each setting for the same queries.

The functions here compute a recommendation from scores; `fusion_scores` measures an index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import UsageError
from es_sbert.evaluation.significance import PairedDifference, Verdict, difference_line, paired_difference
from es_sbert.messages import pluralize
from es_sbert.search.hybrid_search import (
    DEFAULT_BOOSTS,
    DEFAULT_WEIGHTS,
    RANK_CONSTANT,
    Fusion,
    FusionWeights,
    HybridOptions,
)

Doubles = NDArray[np.float64]

FOLDS = 10
MIN_QUERIES = 10

_RRF_WEIGHTS = ((1, 4), (1, 2), (1, 1), (2, 1), (3, 1), (4, 1), (8, 1))
_RANK_CONSTANTS = (10, RANK_CONSTANT)
# Factors of the default semantic weight, which depends on the engine.
_BOOST_FACTORS = (1 / 40, 1 / 10, 1 / 4, 1 / 2, 1, 2, 4)
_SEMANTIC_SHARES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class FusionSetting:
    """A fusion and its parameters.

    Attributes:
        rank_constant: Rank constant of `rrf`; None for the other fusions.
    """

    fusion: Fusion
    weights: FusionWeights
    rank_constant: int | None = None

    @property
    def label(self) -> str:
        """The setting as text, for example `rrf 3:1, rank constant 60`."""
        constant = "" if self.rank_constant is None else f", rank constant {self.rank_constant}"
        return f"{self.fusion} {self.weights.semantic:g}:{self.weights.lexical:g}{constant}"

    def options(self) -> HybridOptions:
        """Convert the setting to arguments of a hybrid search."""
        options: HybridOptions = {"fusion": str(self.fusion), "weights": (self.weights.semantic, self.weights.lexical)}
        return options if self.rank_constant is None else options | {"rank_constant": self.rank_constant}

    def command_options(self) -> str:
        """Format the setting as options of `es-sbert search`."""
        constant = "" if self.rank_constant is None else f" --rank-constant {self.rank_constant}"
        return f"--hybrid --fusion {self.fusion} --weights {self.weights.semantic:g}:{self.weights.lexical:g}{constant}"


def default_setting(engine_type: EngineType, fusion: Fusion = Fusion.RRF) -> FusionSetting:
    """The setting that a hybrid search uses by default."""
    weights = DEFAULT_BOOSTS[engine_type] if fusion is Fusion.WEIGHTED else DEFAULT_WEIGHTS[fusion]
    return FusionSetting(fusion, weights, RANK_CONSTANT if fusion is Fusion.RRF else None)


def fusion_settings(engine_type: EngineType, fusions: Sequence[Fusion]) -> list[FusionSetting]:
    """List the settings to compare, the defaults first: of equally good settings, the first is chosen."""
    found = [default_setting(engine_type, fusion) for fusion in fusions]
    if Fusion.RRF in fusions:
        found += [
            FusionSetting(Fusion.RRF, FusionWeights(*weights), constant)
            for constant in reversed(_RANK_CONSTANTS)
            for weights in _RRF_WEIGHTS
        ]
    if Fusion.WEIGHTED in fusions:
        boost = DEFAULT_BOOSTS[engine_type].semantic
        found += [FusionSetting(Fusion.WEIGHTED, FusionWeights(boost * factor, 1)) for factor in _BOOST_FACTORS]
    if Fusion.NORMALIZED in fusions:
        found += [
            FusionSetting(Fusion.NORMALIZED, FusionWeights(share, round(1 - share, 1))) for share in _SEMANTIC_SHARES
        ]
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class FusionScores:
    """nDCG@10 × 100 of each query.

    Attributes:
        queries: The queries.
        lexical, semantic: Scores of each search alone. *Shape:* ``(queries,)``.
        hybrid: Setting → scores, *shape* ``(queries,)``; the default of the engine is among them.
        default: The default setting.
    """

    queries: Sequence[str]
    lexical: Doubles
    semantic: Doubles
    hybrid: Mapping[FusionSetting, Doubles]
    default: FusionSetting


@dataclass(frozen=True)
class CrossValidation:
    """Settings chosen on some queries and measured on others.

    Attributes:
        best: Setting with the best mean over all queries.
        chosen: Setting chosen for each fold.
        held_out: Score of each query with the setting that was chosen on the other folds. *Shape:* ``(queries,)``.
    """

    best: FusionSetting
    chosen: Sequence[FusionSetting]
    held_out: Doubles


def require_queries(count: int) -> None:
    """Check that there are enough queries to choose a setting.

    Raises:
        UsageError: there are fewer than `MIN_QUERIES` queries.
    """
    if count < MIN_QUERIES:
        raise UsageError(
            f"only {count} queries have a relevant document",
            f"Judge at least {MIN_QUERIES} queries; with fewer, the choice would be random.",
        )


def cross_validate(scores: Mapping[FusionSetting, Doubles], *, folds: int = FOLDS, seed: int = 0) -> CrossValidation:
    """For each fold of the queries, choose a setting on the other folds and measure it on the fold.

    On the queries that a setting was chosen with, its score is too high, and the more so the more settings there are.
    On held-out queries, it is not.

    Args:
        scores: Setting → score of each query, *shape* ``(queries,)`` each; of settings with equal means, the first is
            chosen.
        folds: Maximum number of folds, whose sizes differ by at most 1.
        seed: Seed of the assignment of queries to folds.

    Raises:
        UsageError: there are fewer than `MIN_QUERIES` queries.
    """
    settings, table = list(scores), np.stack(list(scores.values()))  # (settings, queries)
    queries = table.shape[1]
    require_queries(queries)
    shuffled = np.random.default_rng(seed).permutation(queries)
    held_out, chosen = np.empty(queries), []
    for fold in np.array_split(shuffled, min(folds, queries)):
        best = int(np.argmax(np.delete(table, fold, axis=1).mean(axis=1)))
        chosen.append(settings[best])
        held_out[fold] = table[best, fold]
    return CrossValidation(settings[int(np.argmax(table.mean(axis=1)))], chosen, held_out)


TUNED, DEFAULT, SEMANTIC, LEXICAL_ONLY = "tuned", "default", "semantic only", "lexical only"


@dataclass(frozen=True)
class FusionReport:
    """The comparison of settings for an index, and the recommendation.

    Attributes:
        index: Searched index.
        queries: Number of judged queries.
        means: Setting → nDCG@10 × 100 over all queries.
        default: The default setting.
        validation: The cross-validation.
        differences: The held-out scores of the tuned setting against `default`, `semantic only` and `lexical only`,
            and each of those two against the default.
    """

    index: str
    queries: int
    means: Mapping[FusionSetting, float]
    default: FusionSetting
    validation: CrossValidation
    differences: Mapping[tuple[str, str], PairedDifference]

    @property
    def recommended(self) -> FusionSetting | str:
        """The setting to use, or `semantic only` or `lexical only`: the default unless another one is better."""
        if self.differences[TUNED, DEFAULT].verdict is Verdict.BETTER:
            return self.validation.best
        better = {
            name: self.differences[name, DEFAULT]
            for name in (SEMANTIC, LEXICAL_ONLY)
            if self.differences[name, DEFAULT].verdict is Verdict.BETTER
        }
        return max(better, key=lambda name: better[name].difference, default=self.default)

    def as_json(self) -> Json:
        chosen = self.recommended
        return {
            "index": self.index,
            "queries": self.queries,
            "settings": [dict(setting.options()) | {"ndcg@10": mean} for setting, mean in self.means.items()],
            "default": dict(self.default.options()),
            "best": dict(self.validation.best.options()),
            "differences": [
                {"first": first, "second": second, **asdict(found), "verdict": found.verdict}
                for (first, second), found in self.differences.items()
            ],
            "recommended": dict(chosen.options()) if isinstance(chosen, FusionSetting) else chosen,
        }


def fusion_report(index: str, scores: FusionScores, *, seed: int = 0) -> FusionReport:
    """Cross-validate the settings, and compare the result with the default and with each search alone.

    Raises:
        UsageError: see `cross_validate`.
    """
    validation = cross_validate(scores.hybrid, seed=seed)
    systems = {
        TUNED: validation.held_out,
        DEFAULT: scores.hybrid[scores.default],
        SEMANTIC: scores.semantic,
        LEXICAL_ONLY: scores.lexical,
    }
    pairs = [
        (TUNED, DEFAULT), (TUNED, SEMANTIC), (TUNED, LEXICAL_ONLY), (SEMANTIC, DEFAULT), (LEXICAL_ONLY, DEFAULT),
    ]  # fmt: skip
    differences = {
        (first, second): paired_difference(systems[first], systems[second], seed=seed) for first, second in pairs
    }
    means = {setting: float(values.mean()) for setting, values in scores.hybrid.items()}
    return FusionReport(index, len(scores.queries), means, scores.default, validation, differences)


def fusion_lines(report: FusionReport) -> Iterator[str]:
    """Format the lines of the report: a table, the comparisons, and the recommendation last."""
    validation, best = report.validation, report.validation.best
    found = report.differences
    yield f"{report.index}: nDCG@10 of {pluralize(report.queries, 'judged query', 'judged queries')}"
    rows = [
        (LEXICAL_ONLY, "", found[TUNED, LEXICAL_ONLY].second),
        (SEMANTIC, "", found[TUNED, SEMANTIC].second),
        (DEFAULT, report.default.label, report.means[report.default]),
        (TUNED, f"held out, {pluralize(len(validation.chosen), 'fold')}", found[TUNED, DEFAULT].first),
    ]
    for name, what, value in rows:
        yield f"  {name:<14}{value:>7.2f}  {what}".rstrip()
    agreeing = sum(setting == best for setting in validation.chosen)
    yield (
        f"Best of {pluralize(len(report.means), 'setting')} on all queries: {best.label} "
        f"({report.means[best]:.2f}, chosen in "
        f"{agreeing} of {pluralize(len(validation.chosen), 'fold')})"
    )
    for (first, second), difference in found.items():
        yield difference_line(difference, first, second, "nDCG@10")
    chosen = report.recommended
    if not isinstance(chosen, FusionSetting):
        kind = "semantic" if chosen == SEMANTIC else "keyword"
        yield f"Use {kind} search alone: it is better than the default fusion, and no tuned fusion is."
    elif chosen == report.default:
        yield "Keep the defaults: no other setting is better by more than chance. More judged queries may show one."
    else:
        yield f"Use: `es-sbert search --index {report.index} {chosen.command_options()}`"
