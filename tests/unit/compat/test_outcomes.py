"""Outcomes are compared, counted and kept; a difference counts when it is seen twice."""

from __future__ import annotations

import json
from collections.abc import Callable

from benchmarks.compat.outcomes import Outcome, SuiteResult, compare

_PASSED = Outcome("passed", answers=("200 application/json",))
_FAILED = Outcome("failed", "step 2: match", "expected 1, got 2", ("200 application/json",))


def _result(outcomes: dict[str, list[tuple[Outcome, Outcome]]]) -> SuiteResult:
    """The result of tests with these outcomes, one pair for each time that they are run."""
    left = {name: list(pairs) for name, pairs in outcomes.items()}
    result = SuiteResult("suite", "package 1.0", "OpenSearch 3.6.0")
    run: Callable[[str], tuple[Outcome, Outcome]] = lambda name: left[name].pop(0)  # noqa: E731
    compare(result, outcomes, run)
    assert not any(left.values()), "a pair was not run"
    return result


def test_outcomes_agree_by_status_step_and_answers() -> None:
    assert _FAILED.agrees_with(Outcome("failed", "step 2: match", "expected 1, got 3", _FAILED.answers))
    assert not _FAILED.agrees_with(Outcome("failed", "step 3: match", _FAILED.reason, _FAILED.answers))
    assert not _PASSED.agrees_with(Outcome("passed", answers=("200 text/plain",)))
    assert not _PASSED.agrees_with(_FAILED)


def test_equal_outcomes_are_counted() -> None:
    skipped = Outcome("skipped", reason="feature yaml")
    result = _result({"a": [(_PASSED, _PASSED)], "b": [(_FAILED, _FAILED)], "c": [(skipped, skipped)]})
    assert (result.tests, result.passed, result.failed, dict(result.skipped)) == (3, 1, 1, {"feature yaml": 1})
    assert not result.differences
    assert not result.flaky


def test_difference_not_reproduced_is_flaky() -> None:
    result = _result({"a": [(_PASSED, _FAILED), (_PASSED, _PASSED)]})
    assert (result.passed, result.differences) == (1, [])
    [flaky] = result.flaky
    assert (flaky.test, flaky.direct) == ("a", "passed")
    assert flaky.gateway.startswith("failed: step 2")


def test_reproduced_difference_reports_both_outcomes() -> None:
    other = Outcome("passed", answers=("200 application/json", "404 text/plain"))
    result = _result({"a": [(_PASSED, _FAILED)] * 2, "b": [(_PASSED, other)] * 2})
    first, second = result.differences
    assert (first.test, first.direct) == ("a", "passed")
    assert first.gateway == "failed: step 2: match: expected 1, got 2"
    assert second.direct == "passed (answer 2: none)"
    assert second.gateway == "passed (answer 2: 404 text/plain)"


def test_suite_result_json_round_trip() -> None:
    result = _result({"a": [(_PASSED, _FAILED)] * 2, "b": [(Outcome("skipped", reason="x"),) * 2]})
    assert SuiteResult.from_json(json.loads(json.dumps(result.as_json()))) == result
