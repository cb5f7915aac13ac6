"""Files of YAML tests are read as the official runner reads them."""

from __future__ import annotations

import pytest

from benchmarks.compat.yaml_suite import in_range, load_yaml, read_tests, skip_reason

_FILE = """
setup:
  - skip:
      features: allowed_warnings
  - do:
      indices.create: {index: docs}
---
teardown:
  - do:
      indices.delete: {index: docs}
---
"First":
  - do:
      search: {}
  - match: {hits.total: 0}
---
"Second":
  - skip:
      version: " - 2.99.99"
      reason: new
      features: [headers, telepathy]
  - is_true: hits
"""


def test_tests_have_the_setup_of_their_file() -> None:
    first, second = read_tests("search/10.yml", _FILE)
    assert (first.name, second.name) == ("search/10.yml: First", "search/10.yml: Second")
    assert first.setup == (("do", {"indices.create": {"index": "docs"}}),)
    assert first.steps == (("do", {"search": {}}), ("match", {"hits.total": 0}))
    assert first.teardown == (("do", {"indices.delete": {"index": "docs"}}),)
    assert first.skip == ({"features": "allowed_warnings"},)


def test_skip_reason_for_version_or_feature() -> None:
    first, second = read_tests("search/10.yml", _FILE)
    assert skip_reason(first, "OpenSearch", "3.6.0") is None
    assert skip_reason(second, "OpenSearch", "2.19.0") == "not for this version"
    assert skip_reason(second, "OpenSearch", "3.6.0") == "feature telepathy"


@pytest.mark.parametrize(
    ("version", "ranges", "product", "expected"),
    [
        ("3.6.0", " - 2.99.99", "OpenSearch", False),
        ("3.6.0", "3.0.0 - ", "OpenSearch", True),
        ("3.6.0", " - 2.6.99, 3.6.0 - ", "OpenSearch", True),
        ("3.6.0", "all", "OpenSearch", True),
        ("3.6.0", " - 7.99.99", "OpenSearch", False),
        ("3.6.0", "7.4.0 - ", "OpenSearch", True),
        ("9.5.0", " - 7.99.99", "Elasticsearch", False),
        ("9.5.0", "7.4.0 - ", "Elasticsearch", True),
        ("9.5.0", "8.0.0 - 9.5.0", "Elasticsearch", True),
    ],
)
def test_in_range(version: str, ranges: str, product: str, expected: bool) -> None:
    assert in_range(version, ranges, product) is expected


def test_yaml_scalars_are_read_like_jackson() -> None:
    text = "{date: 2017-01-01, yes: no, time: 10:30, number: 1, real: 1.5, none: ~, empty: , flag: true, 0: zero}"
    assert load_yaml(text) == {
        "date": "2017-01-01",
        "yes": "no",
        "time": "10:30",
        "number": 1,
        "real": 1.5,
        "none": None,
        "empty": None,
        "flag": True,
        "0": "zero",
    }
