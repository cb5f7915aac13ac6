"""Choosing a fusion: cross-validation by brute force, no gain from noise, and what is recommended."""

from __future__ import annotations

import numpy as np
import pytest

from es_sbert.engines.engine_info import EngineType
from es_sbert.errors import UsageError
from es_sbert.evaluation.fusion_tuning import (
    DEFAULT,
    TUNED,
    FusionScores,
    FusionSetting,
    cross_validate,
    default_setting,
    fusion_lines,
    fusion_report,
    fusion_settings,
)
from es_sbert.evaluation.significance import Verdict
from es_sbert.search.hybrid_search import Fusion, FusionWeights, HybridSearch, supported_fusions

SETTINGS = fusion_settings(EngineType.ELASTICSEARCH, [Fusion.RRF])
DEFAULT_SETTING = default_setting(EngineType.ELASTICSEARCH)


@pytest.mark.parametrize("engine_type", EngineType)
def test_every_setting_is_a_valid_search_and_the_defaults_come_first(engine_type: EngineType) -> None:
    fusions = supported_fusions(engine_type)
    settings = fusion_settings(engine_type, fusions)
    assert [each.fusion for each in settings[: len(fusions)]] == fusions
    assert settings[0] == default_setting(engine_type)
    assert len(settings) == len(set(settings)) >= 20
    for each in settings:
        assert HybridSearch.from_options("text", 10, each.options()).options["weights"][0] > 0  # type: ignore[index]


def test_setting_as_options_of_the_command() -> None:
    assert FusionSetting(Fusion.RRF, FusionWeights(2, 1), 10).command_options() == (
        "--hybrid --fusion rrf --weights 2:1 --rank-constant 10"
    )
    assert FusionSetting(Fusion.WEIGHTED, FusionWeights(40.0, 1)).command_options() == (
        "--hybrid --fusion weighted --weights 40:1"
    )


def test_held_out_scores_equal_brute_force() -> None:
    random = np.random.default_rng(0)
    scores = {setting: random.uniform(0, 100, 23) for setting in SETTINGS}
    found = cross_validate(scores, folds=5, seed=3)
    folds = np.array_split(np.random.default_rng(3).permutation(23), 5)
    for fold, chosen in zip(folds, found.chosen, strict=True):
        rest = [query for query in range(23) if query not in fold]
        means = {setting: values[rest].mean() for setting, values in scores.items()}
        assert chosen == max(means, key=lambda setting: means[setting])
        assert found.held_out[fold].tolist() == scores[chosen][fold].tolist()
    assert found.best == max(scores, key=lambda setting: scores[setting].mean())


def _scores(queries: int, default: float, other: float, *, noise: float = 5.0, seed: int = 0) -> FusionScores:
    """Scores where one setting differs from the others."""
    random = np.random.default_rng(seed)
    base = random.uniform(20, 60, queries)  # (queries,): some are harder
    hybrid = {setting: base + random.normal(default, noise, queries) for setting in SETTINGS}
    hybrid[SETTINGS[4]] = base + random.normal(other, noise, queries)
    ids = [str(number) for number in range(queries)]
    return FusionScores(ids, base - 10, base - 5, hybrid, DEFAULT_SETTING)


def test_a_better_setting_is_found_and_recommended() -> None:
    report = fusion_report("docs", _scores(60, 0, 10))
    assert report.recommended == report.validation.best == SETTINGS[4]
    assert report.differences[TUNED, DEFAULT].difference == pytest.approx(10, abs=2)
    lines = list(fusion_lines(report))
    assert lines[-1] == f"Use: `es-sbert search --index docs {SETTINGS[4].command_options()}`"
    assert "chosen in 10 of 10 folds" in lines[5]
    assert lines[6].startswith("tuned is better than default: nDCG@10 +")
    assert report.as_json()["recommended"] == SETTINGS[4].options()


def test_noise_is_not_taken_for_a_better_setting() -> None:
    gains, kept = [], 0
    for seed in range(20):
        scores = _scores(60, 0, 0, seed=seed)
        report = fusion_report("docs", scores, seed=seed)
        gains.append(report.differences[TUNED, DEFAULT].difference)
        kept += report.recommended == DEFAULT_SETTING
        # The best setting looks better on the queries that it was chosen by.
        assert report.means[report.validation.best] >= report.means[DEFAULT_SETTING]
    assert abs(np.mean(gains)) < 3 * np.std(gains) / np.sqrt(len(gains))
    assert kept >= 17
    assert list(fusion_lines(report))[-1].startswith("Keep the defaults")


def test_semantic_search_alone_is_recommended_where_words_do_harm() -> None:
    scores = _scores(60, -20, -20)
    report = fusion_report("docs", scores)
    assert report.recommended == "semantic only"
    assert report.differences["semantic only", DEFAULT].verdict is Verdict.BETTER
    assert list(fusion_lines(report))[-1].startswith("Use semantic search alone")


def test_too_few_queries_are_refused() -> None:
    with pytest.raises(UsageError, match="only 9 queries have a relevant document"):
        fusion_report("docs", _scores(9, 0, 0))
