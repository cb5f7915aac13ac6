"""Assertions of YAML tests hold for the answers that they describe, and for no others."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.compat.assertions import AssertionFailed, Stash, check, java_text

_ANSWER = {
    "hits": {"total": 2, "hits": [{"_id": "1", "_score": 1.0}, {"_id": "2", "_score": None}]},
    "index.number": "5",
    "empty": "",
    "zero": 0,
    "large": 4.611686018427388e18,
    "no": False,
    "text": "index  docs\nbooks  12\n",
}


def _stash() -> Stash:
    stash = Stash()
    stash.body = _ANSWER
    stash.set("id", "2")
    stash.set("name", "hits")
    return stash


@pytest.mark.parametrize(
    ("operator", "argument"),
    [
        ("match", {"hits.total": 2}),
        ("match", {"hits.total": 2.0}),
        ("match", {"hits.hits.0": {"_id": "1", "_score": 1}}),
        ("match", {"large": 4611686018427387903}),
        ("match", {"hits.hits.1._id": "$id"}),
        ("match", {"$name.total": 2}),
        ("match", {"hits.hits.1._score": None}),
        ("match", {"absent": None}),
        ("match", {"index\\.number": "5"}),
        ("match", {"$body": _ANSWER}),
        ("match", {"": _ANSWER}),
        ("match", {"text": "/^ index \\s+ docs \\n books \\s+ \\d+ \\n $/\n"}),
        ("length", {"hits.hits": 2}),
        ("length", {"index\\.number": 1}),
        ("is_true", "hits"),
        ("is_false", "absent"),
        ("is_false", "empty"),
        ("is_false", "zero"),
        ("is_false", "no"),
        ("gt", {"hits.total": 1}),
        ("gte", {"hits.total": 2}),
        ("lt", {"hits.total": 3}),
        ("lte", {"hits.total": 2}),
        ("contains", {"hits.hits": {"_id": "2"}}),
        ("contains", {"text": "books"}),
        ("close_to", {"hits.total": {"value": 2.1, "error": 0.2}}),
        ("match", {"hits._arbitrary_key_": "total"}),
    ],
)
def test_check_passes(operator: str, argument: Any) -> None:
    check(operator, argument, _stash())


@pytest.mark.parametrize(
    ("operator", "argument"),
    [
        ("match", {"hits.total": 3}),
        ("match", {"hits.total": "2"}),
        ("match", {"zero": False}),
        ("match", {"hits.hits.0": {"_id": "1"}}),
        ("match", {"hits.hits.7._id": "1"}),
        ("match", {"text": "/^ docs/"}),
        ("match", {"zero": "/0/"}),
        ("length", {"hits.hits": 1}),
        ("length", {"absent": 0}),
        ("is_true", "zero"),
        ("is_true", "absent"),
        ("is_false", "hits"),
        ("gt", {"hits.total": 2}),
        ("gt", {"absent": 0}),
        ("lt", {"hits.total": 2}),
        ("gte", {"text": 1}),
        ("lte", {"hits.total": 1}),
        ("contains", {"hits.hits": {"_id": "3"}}),
        ("close_to", {"hits.total": {"value": 2.5, "error": 0.2}}),
    ],
)
def test_check_raises_assertion_failed(operator: str, argument: Any) -> None:
    with pytest.raises(AssertionFailed):
        check(operator, argument, _stash())


def test_unknown_operator_raises_key_error() -> None:
    with pytest.raises(KeyError):
        check("resembles", {"hits": 1}, _stash())


def test_stashed_values_keep_their_type() -> None:
    stash = Stash()
    stash.set("size", 3)
    stash.set("key", "a")
    given = {"$key": ["$size", "Basic ${size}", "$unknown", "costs $5"], "plain": {"x": "${key}b"}}
    assert stash.replace(given) == {"a": [3, "Basic 3", "$unknown", "costs $5"], "plain": {"x": "ab"}}


def test_stash_replaces_body() -> None:
    stash = _stash()
    assert stash.replace("$body") == _ANSWER
    assert stash.replace("$body.hits.total") == 2


def test_errors_are_formatted_like_java() -> None:
    error = {"type": "x", "root_cause": [{"reason": None}], "ok": True}
    assert java_text(error) == "{type=x, root_cause=[{reason=null}], ok=true}"
