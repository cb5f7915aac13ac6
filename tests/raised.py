"""Errors of es-sbert by what programs read: class, setting and value. Where these do not tell, by message and remedy.

`tests/golden_errors` holds message and remedy by test, one file for each folder of tests. `<any>` in it is any text,
such as that of another library. `ES_SBERT_UPDATE_GOLDEN=1 python -m pytest -n0 FILE` renews the entries of the tests of
a file; read the difference before committing it.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TypeVar
from unittest.mock import ANY

import pytest

from es_sbert.errors import EsSbertError
from es_sbert.messages import escape_unprintable_lines

E = TypeVar("E", bound=EsSbertError)
X = TypeVar("X", bound=Exception)

TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden_errors"
# What differs from run to run, and what is written instead.
_VARYING = [
    (re.escape(str(TESTS.parent)), "CHECKOUT"),
    (r"\b(localhost|127\.0\.0\.1|\[::1\]):\d+", r"\1:PORT"),
    (r"\b[0-9a-f]{32}\b", "FINGERPRINT"),
    (r"\b[0-9a-f]{12}\b", "ID"),
]
_OF_ENGINES = [(r"\b(Elasticsearch|OpenSearch) \d+\.\d+\.\d+", "ENGINE VERSION")]
_running: list[list[str]] = []  # the words that the running test has recorded


@contextmanager
def raises(kind: type[E], setting: str | None, value: object = ANY) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error about a setting, like `pytest.raises`."""
    with pytest.raises(kind) as raised:
        yield raised
    assert (setting, value) == (raised.value.setting, raised.value.value), str(raised.value)


@contextmanager
def raises_as_recorded(kind: type[X] | tuple[type[X], ...]) -> Iterator[pytest.ExceptionInfo[X]]:
    """Expect an error with the words of the test's golden entry."""
    with pytest.raises(kind) as raised:
        yield raised
    record(raised.value)


def record(error: Exception | str) -> None:
    """Compare the words of an error with the test's golden entry, when the test has passed so far."""
    _running[-1].append(str(error))


@cache
def read_entries(file: Path) -> dict[str, list[str]]:
    """Test → the words of each of its errors, of a golden file."""
    blocks = re.split(r"\n+(?=\S)", file.read_text(encoding="utf-8").strip()) if file.exists() else []
    tests = (block.partition("\n") for block in blocks)
    return {test: textwrap.dedent(words).split("\n\n") for test, _, words in tests}


def entry_of(node_id: str) -> str:
    """Name of a test's entry: without its folder, and of an engine if it has another text on each."""
    module, _, test = node_id.partition("::")
    return f"{module.rpartition('/')[2]}::{test}"


def entry_of_any_engine(entry: str) -> str:
    """Name of the entry that a test has on each engine."""
    return re.sub(r"(?<=[\[-])(?:es8|es9|opensearch2?)(?=[\]-])", "engine", entry)


@contextmanager
def compare_recorded(test: pytest.Function, folder: Path) -> Iterator[None]:
    """Compare what a test records with its entry, or renew that. A text that repeats the one before is there once.

    Args:
        folder: That of the run's temporary files.
    """
    _running.append([])
    try:
        yield
    finally:
        recorded = _running.pop()
    file = GOLDEN / test.path.parent.relative_to(TESTS).with_suffix(".txt")
    entries, key = read_entries(file), entry_of(test.nodeid)
    varying = [(re.escape(str(folder)) + r"[\\/][\w.-]+", "TMP"), *_VARYING]
    if test.get_closest_marker("engine"):
        varying += _OF_ENGINES
        key = key if key in entries else entry_of_any_engine(key)
    caught = [text for text, _ in groupby(_without(varying, text) for text in recorded)]
    if _is_same(entries.get(key, []), caught):
        return
    if not os.environ.get("ES_SBERT_UPDATE_GOLDEN"):
        raise AssertionError(
            f"{file.relative_to(GOLDEN.parent)} has other texts for {key}:\n{_indented(entries.get(key, []))}\n"
            f"Now:\n{_indented(caught)}\nTo renew it: ES_SBERT_UPDATE_GOLDEN=1 python -m pytest -n0 '{test.nodeid}'"
        )
    entries = {name: words for name, words in (entries | {key: caught}).items() if words}
    file.parent.mkdir(parents=True, exist_ok=True)
    blocks = (f"{name}\n{_indented(entries[name])}\n" for name in sorted(entries))
    file.write_text("\n".join(blocks), encoding="utf-8")
    read_entries.cache_clear()


def _without(varying: list[tuple[str, str]], text: str) -> str:
    for pattern, instead in varying:
        text = re.sub(pattern, instead, text)
    lines = escape_unprintable_lines(text.replace(os.sep, "/")).splitlines()
    return "\n".join(line for line in lines if line.strip())


def _is_same(recorded: list[str], caught: list[str]) -> bool:
    patterns = [re.escape(words.replace(os.sep, "/")).replace("<any>", ".*") for words in recorded]
    same = [re.fullmatch(pattern, text, re.DOTALL) for pattern, text in zip(patterns, caught, strict=False)]
    return len(recorded) == len(caught) and all(same)


def _indented(texts: list[str]) -> str:
    return textwrap.indent("\n\n".join(texts), "    ")
