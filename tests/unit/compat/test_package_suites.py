"""Reports of pytest and go test are read test by test."""

from __future__ import annotations

import json

from benchmarks.compat.package_suites import read_go_events, read_junit


def test_read_junit() -> None:
    report = """<testsuites><testsuite name="pytest">
        <testcase classname="tests.test_a.TestStore" name="test_write[1]" />
        <testcase classname="tests.test_a" name="test_read"><failure message="assert 1 == 2">…</failure></testcase>
        <testcase classname="tests.test_a" name="test_open"><error message="refused">…</error></testcase>
        <testcase classname="tests.test_a" name="test_cloud"><skipped message="no key" /></testcase>
    </testsuite></testsuites>"""
    outcomes = read_junit(report)
    assert {name: outcome.status for name, outcome in outcomes.items()} == {
        "TestStore::test_write[1]": "passed",
        "test_a::test_read": "failed",
        "test_a::test_open": "failed",
        "test_a::test_cloud": "skipped",
    }
    assert (outcomes["test_a::test_open"].step, outcomes["test_a::test_open"].reason) == ("error", "refused")
    assert outcomes["test_a::test_cloud"].reason == "no key"


def test_read_go_events_counts_subtests_instead_of_tests() -> None:
    events = [
        ("run", "TestBulk", ""), ("output", "TestBulk/one", "want 1\n"), ("fail", "TestBulk/one", ""),
        ("pass", "TestBulk/two", ""), ("fail", "TestBulk", ""), ("pass", "TestInfo", ""), ("skip", "TestOld", ""),
    ]  # fmt: skip
    lines = [
        json.dumps({"Package": "x/opensearchapi", "Test": test, "Action": action, "Output": output})
        for action, test, output in events
    ]
    outcomes = read_go_events("\n".join(["FAIL", json.dumps({"Package": "x", "Action": "fail"}), *lines]))
    assert {name: outcome.status for name, outcome in outcomes.items()} == {
        "opensearchapi: TestBulk/one": "failed",
        "opensearchapi: TestBulk/two": "passed",
        "opensearchapi: TestInfo": "passed",
        "opensearchapi: TestOld": "skipped",
    }
    assert outcomes["opensearchapi: TestBulk/one"].reason == "want 1"
