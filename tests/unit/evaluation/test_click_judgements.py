"""Judgements from clicks: by hand, with a simulated position bias, and as a file that can be read again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from es_sbert.evaluation.click_judgements import Click, ClickLog, click_judgements, judgement_csv
from es_sbert.evaluation.judgement_files import read_judgements


def test_clicks_over_expected_clicks_by_hand() -> None:
    searches = {f"s{number}": "Heavy  rain" if number % 2 else "heavy rain" for number in range(6)}
    searches |= {f"t{number}": "sun" for number in range(4)}
    clicks = [Click(f"s{number}", "first", 1) for number in range(4)]
    clicks += [Click(f"s{number}", "third", 3) for number in range(2)]
    clicks += [Click("t0", "first", 1)]
    found = click_judgements(ClickLog(searches, clicks))
    assert [(each.document, each.clicks, each.searches) for each in found] == [("third", 2, 6), ("first", 4, 6)]
    # 2 of 10 searches have a click at position 3, 5 of 10 one at position 1.
    assert [each.expected for each in found] == [pytest.approx(6 * 0.2), pytest.approx(6 * 0.5)]
    assert [each.grade for each in found] == [2, 2]
    assert found[0].query.casefold().split() == ["heavy", "rain"]


def test_repeated_and_unknown_clicks_do_not_count() -> None:
    searches = {f"s{number}": "rain" for number in range(5)}
    clicks = [Click("s0", "d", 1), Click("s0", "d", 2), Click("unknown", "d", 1), Click("s1", "d", 2)]
    [found] = click_judgements(ClickLog(searches, clicks))
    assert (found.clicks, found.expected) == (2, pytest.approx(2))


@pytest.mark.parametrize(("searches", "clicks", "judged"), [(5, 2, 1), (4, 2, 0), (5, 1, 0)])
def test_little_evidence_is_left_out(searches: int, clicks: int, judged: int) -> None:
    log = ClickLog({f"s{n}": "rain" for n in range(searches)}, [Click(f"s{n}", "d", 1) for n in range(clicks)])
    assert len(click_judgements(log)) == judged


def test_position_bias_is_removed() -> None:
    """Users look at a position with a chance that falls with it, and open what they look at if it is relevant."""
    random = np.random.default_rng(0)
    relevance = {"poor": 0.2, "good": 0.8}
    examined = 1 / np.arange(1, 11)  # (positions,)
    searches, clicks = {}, []
    for query in range(40):
        # In each query, the good document is somewhere, and all others are poor.
        good = int(random.integers(2, 11))
        for run in range(300):
            id = f"{query}-{run}"
            searches[id] = f"query {query}"
            for position in range(1, 11):
                kind = "good" if position == good else "poor"
                if random.random() < examined[position - 1] * relevance[kind]:
                    clicks.append(Click(id, f"{kind} {position}", position))
    found = click_judgements(ClickLog(searches, clicks))
    by_kind = {kind: [each for each in found if each.document.startswith(kind)] for kind in relevance}
    # A poor document at the top gets more clicks than a good one further down, but no better grade.
    top = [each for each in by_kind["poor"] if each.document == "poor 1"]
    assert np.mean([each.clicks for each in top]) > np.mean([each.clicks for each in by_kind["good"]])
    assert all(each.grade == 3 for each in by_kind["good"])
    assert np.mean([each.grade for each in by_kind["poor"]]) < 2
    assert max(each.grade for each in top) <= 2


def test_list_can_be_read_again(tmp_path: Path) -> None:
    searches = {f"s{number}": 'rain, "heavy"' for number in range(5)}
    clicks = [Click(f"s{number}", "a,b", 1) for number in range(3)]
    path = tmp_path / "judgements.csv"
    path.write_bytes(b"".join(judgement_csv(click_judgements(ClickLog(searches, clicks)))))
    assert read_judgements(path).judgements == {'rain, "heavy"': {"a,b": 2}}
