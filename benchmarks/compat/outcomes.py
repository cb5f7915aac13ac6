"""Outcomes of tests, directly and through the gateway, and what differs between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Outcome:
    """How one test ended.

    Attributes:
        status: passed, failed or skipped.
        step: The step that failed, for example `step 3: do search`.
        reason: Why the step failed, or why the test was skipped.
        answers: Status, content type and warnings of each answer, in order; empty if the runner does not see them.
    """

    status: Status
    step: str = ""
    reason: str = ""
    answers: tuple[str, ...] = ()

    def agrees_with(self, other: Self) -> bool:
        """Whether both ended alike. The reason is not compared: it may hold times and generated ids."""
        return (self.status, self.step, self.answers) == (other.status, other.step, other.answers)

    def describe(self, other: Self) -> str:
        """This outcome as one line, with the first answer that differs from the other outcome."""
        text = ": ".join(filter(None, (self.status, self.step, self.reason)))
        for number in range(max(len(self.answers), len(other.answers))):
            mine, its = (each.answers[number] if number < len(each.answers) else "none" for each in (self, other))
            if mine != its:
                return f"{text} (answer {number + 1}: {mine})"
        return text


@dataclass(frozen=True)
class Difference:
    """A test that ended differently through the gateway."""

    test: str
    direct: str
    gateway: str

    @classmethod
    def from_outcomes(cls, test: str, direct: Outcome, gateway: Outcome) -> Self:
        """What differs between two outcomes."""
        return cls(test, direct.describe(gateway), gateway.describe(direct))


@dataclass
class SuiteResult:
    """Counts of one suite.

    Attributes:
        suite: Name, as `--suite` takes it.
        source: Package that carries the tests, with its version.
        engine: Product and version of the server.
        tests: All tests of the suite.
        passed: Passed directly and through the gateway.
        failed: Failed in the same step both times.
        flaky: Ended differently at first, alike when both were run again.
        skipped: Reason → tests that were not run.
        differences: Tests that ended differently twice.
    """

    suite: str
    source: str
    engine: str
    tests: int = 0
    passed: int = 0
    failed: int = 0
    flaky: list[Difference] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)

    def add(self, test: str, direct: Outcome, gateway: Outcome) -> None:
        """Count a test by its last two outcomes."""
        self.tests += 1
        if not direct.agrees_with(gateway):
            self.differences.append(Difference.from_outcomes(test, direct, gateway))
        elif direct.status == "skipped":
            self.skipped[direct.reason] += 1
        elif direct.status == "passed":
            self.passed += 1
        else:
            self.failed += 1

    def as_json(self) -> dict[str, Any]:
        """As it is kept in a file."""
        return asdict(self) | {"skipped": dict(sorted(self.skipped.items()))}

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> Self:
        """From a file."""
        return cls(
            **{
                **kept,
                "skipped": Counter(kept["skipped"]),
                "flaky": [Difference(**each) for each in kept["flaky"]],
                "differences": [Difference(**each) for each in kept["differences"]],
            }
        )


def compare(
    result: SuiteResult,
    tests: Iterable[str],
    run: Callable[[str], tuple[Outcome, Outcome]],
    *,
    seen: Callable[[str, Outcome, Outcome], None] = lambda test, direct, gateway: None,
) -> None:
    """Run tests directly and through the gateway, and count them. A test that ends differently is run again both times.

    Args:
        run: Runs one test directly, then through the gateway.
        seen: Called with the outcomes that count.
    """
    for test in tests:
        direct, gateway = run(test)
        if not direct.agrees_with(gateway):
            first = Difference.from_outcomes(test, direct, gateway)
            direct, gateway = run(test)
            if direct.agrees_with(gateway):
                result.flaky.append(first)
        result.add(test, direct, gateway)
        seen(test, direct, gateway)
