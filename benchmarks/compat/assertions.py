"""Assertions of YAML tests about an answer, and values stashed from one answer for later steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

_UNESCAPED_DOT = re.compile(r"(?<!\\)\.")
_EMBEDDED = re.compile(r"\$\{([^}]+)\}")
_BODY = "$body"


class AssertionFailed(Exception):
    """An answer is not as the test expects."""


class Stash:
    """Values that a test keeps from one step for another, and the last answer's body."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self.body: Any = None

    def set(self, name: str, value: Any) -> None:
        """Keep a value."""
        self._values[name] = value

    def replace(self, value: Any) -> Any:
        """A value with the stashed ones in the place of their names, keys included."""
        if isinstance(value, str):
            return self._replace_text(value)
        if isinstance(value, Mapping):
            return {str(self.replace(key)): self.replace(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.replace(each) for each in value]
        return value

    def _replace_text(self, text: str) -> Any:
        if text == _BODY:
            return self.body
        if text.startswith(f"{_BODY}."):
            return self.lookup(text.removeprefix(f"{_BODY}."))
        if text.startswith("$") and text[1:] in self._values:
            return self._values[text[1:]]
        return _EMBEDDED.sub(lambda found: str(self._values.get(found[1], found[0])), text)

    def lookup(self, path: str) -> Any:
        """What the last answer holds at a path; None where there is nothing.

        `hits.hits.0._id` with `\\.` for a dot inside a name, `$name` for a stashed one, and `_arbitrary_key_` for any
        key of an object. The empty path is the whole answer.
        """
        if path == _BODY:
            return self.body
        value = self.body
        for part in _UNESCAPED_DOT.split(path) if path else ():
            value = _child(value, str(self.replace(part.replace("\\.", "."))))
        return value


def _child(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        if name == "_arbitrary_key_":
            return next(iter(value), None)
        return value.get(name)
    if isinstance(value, list) and name.lstrip("-").isdecimal() and 0 <= int(name) < len(value):
        return value[int(name)]
    return None


def check(operator: str, argument: Any, stash: Stash) -> None:
    """Check one assertion.

    Args:
        operator: `match`, `length`, `is_true`, …
        argument: Its argument in the test: a path, or an object of a path and the expected value.

    Raises:
        AssertionFailed: It does not hold.
        KeyError: There is no such operator.
    """
    if operator in _OF_ONE_VALUE:
        actual = stash.lookup(argument)
        if is_true(actual) is not _OF_ONE_VALUE[operator]:
            raise AssertionFailed(f"{operator} [{argument}]: it is {_short(actual)}")
        return
    compare = _COMPARISONS[operator]
    for path, expected in argument.items():
        actual, wanted = stash.lookup(path), stash.replace(expected)
        if not compare(actual, wanted):
            raise AssertionFailed(f"{operator} [{path}]: expected {_short(wanted)}, got {_short(actual)}")


def is_true(value: Any) -> bool:
    """Whether a value counts as true: it is there and not false, 0 or empty text."""
    return value is not None and java_text(value).lower() not in ("", "0", "false")


def matches(actual: Any, expected: Any) -> bool:
    """Whether a value is equal to the expected one, or holds the expected `/regular expression/`."""
    if isinstance(expected, str):
        stripped = expected.strip()
        if len(stripped) > 2 and stripped.startswith("/") and stripped.endswith("/"):
            return isinstance(actual, str) and holds(stripped[1:-1], actual)
    return equal(actual, expected)


# Some expressions take seconds on a text. Directly and through the gateway the text is the same.
@cache
def holds(expression: str, text: str) -> bool:
    """Whether a text holds a regular expression of a test, whose white space means nothing."""
    return re.search(expression, text, re.VERBOSE) is not None


def equal(actual: Any, expected: Any) -> bool:
    """Whether two JSON values are equal. Numbers are compared as doubles, so `1` is `1.0`; neither is `true`."""
    if isinstance(actual, Mapping) and isinstance(expected, Mapping):
        return actual.keys() == expected.keys() and all(equal(actual[key], expected[key]) for key in expected)
    if isinstance(actual, list) and isinstance(expected, list):
        return len(actual) == len(expected) and all(map(equal, actual, expected))
    if _is_number(actual) and _is_number(expected):
        return float(actual) == float(expected)
    return type(actual) is type(expected) and bool(actual == expected)


def contains(actual: Any, expected: Any) -> bool:
    """Whether a list has the value, or an object with these entries; whether a text has the part."""
    if isinstance(actual, str):
        return isinstance(expected, str) and expected in actual
    if isinstance(actual, Mapping):
        return isinstance(expected, str) and expected in actual
    if not isinstance(actual, list):
        return False
    if isinstance(expected, Mapping):
        return any(
            isinstance(each, Mapping) and all(key in each and equal(each[key], expected[key]) for key in expected)
            for each in actual
        )
    return any(equal(each, expected) for each in actual)


def java_text(value: Any) -> str:
    """A JSON value as Java shows it, since tests match errors by that text: `{type=…, reason=…}`."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}={java_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(java_text, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _has_length(actual: Any, expected: Any) -> bool:
    return isinstance(actual, (str, list, Mapping)) and len(actual) == int(expected)


def _order(actual: Any, expected: Any) -> int | None:
    """-1, 0 or 1 as the actual value is less, equal or greater; None where they have no order."""
    both_numbers = _is_number(actual) and _is_number(expected)
    if not both_numbers and not (isinstance(actual, str) and isinstance(expected, str)):
        return None
    return int(actual > expected) - int(actual < expected)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_close(actual: Any, expected: Any) -> bool:
    return _is_number(actual) and bool(abs(actual - expected["value"]) <= expected["error"])


_OF_ONE_VALUE = {"is_true": True, "is_false": False}
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "match": matches,
    "length": _has_length,
    "contains": contains,
    "close_to": _is_close,
    "gt": lambda actual, expected: _order(actual, expected) == 1,
    "gte": lambda actual, expected: _order(actual, expected) in (0, 1),
    "lt": lambda actual, expected: _order(actual, expected) == -1,
    "lte": lambda actual, expected: _order(actual, expected) in (-1, 0),
}


def _short(value: Any, most: int = 300) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}…"
