"""A plugin of pytest: skips the tests that need what is missing here.

That is the extra `train` (`make matrix`), and on Windows the modules of Python that only Unix-like systems have.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import pytest

from es_sbert import errors
from tests.posix_modules import POSIX_ONLY

_OF_TRAIN = (
    "accelerate",
    "datasets",
    "gensim",
    "sentence_transformers",
    "torch",
    "transformers",
)
_MISSING = {name: "needs the extra train" for name in _OF_TRAIN if find_spec(name) is None}
_MISSING |= {name: f"needs {name}, of Unix-like systems" for name in POSIX_ONLY if find_spec(name) is None}


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A file or a folder whose tests cannot be collected without these modules."""
    report = yield
    found = re.search(r"No module named '(\w+)", str(report.longrepr)) if report.failed else None
    if found is not None and found[1] in _MISSING:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, _MISSING[found[1]])
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """A test whose fixtures need them, or that is marked `train`."""
    if item.get_closest_marker("train"):
        _skip_if_missing(*_OF_TRAIN)
    with _skipped():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """A test that needs them itself."""
    with _skipped():
        return (yield)


@contextmanager
def _skipped() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        _skip_if_missing(str(error.name).partition(".")[0])
        raise


def _skip_if_missing(*modules: str) -> None:
    for module in modules:
        if module in _MISSING:
            pytest.skip(_MISSING[module])


_require = errors.require_extra


def _require_or_skip(extra: str, *modules: str) -> None:
    """Commands say what is missing, as an error that a test may expect for another reason."""
    _skip_if_missing(*modules)
    _require(extra, *modules)


errors.require_extra = _require_or_skip  # before anything imports it by its name
