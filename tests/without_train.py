"""A plugin of pytest: skips the tests that need the extra `train` where it is not installed (`make matrix`)."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import pytest

from es_sbert import errors

_MODULES = (
    "accelerate",
    "datasets",
    "gensim",
    "matplotlib",
    "peft",
    "sentence_transformers",
    "torch",
    "transformers",
)
_MISSING = {name for name in _MODULES if find_spec(name) is None}
_REASON = "needs the extra train"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A file or a folder whose tests cannot be collected without these libraries."""
    report = yield
    found = re.search(r"No module named '(\w+)", str(report.longrepr)) if report.failed else None
    if found is not None and found[1] in _MISSING:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, _REASON)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """A test whose fixtures need them, or that is marked `train`."""
    if _MISSING and item.get_closest_marker("train"):
        pytest.skip(_REASON)
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
        if str(error.name).partition(".")[0] in _MISSING:
            pytest.skip(_REASON)
        raise


_require = errors.require_extra


def _require_or_skip(extra: str, *modules: str) -> None:
    """Commands say what is missing, as an error that a test may expect for another reason."""
    if not _MISSING.isdisjoint(modules):
        pytest.skip(_REASON)
    _require(extra, *modules)


errors.require_extra = _require_or_skip  # before anything imports it by its name
