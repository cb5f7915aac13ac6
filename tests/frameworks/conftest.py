"""The model and the index of `articles.py` as fixtures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from es_sbert.encoder.encoder import Encoder
from tests.frameworks.articles import fill, run_example

__all__ = ["fill", "run_example"]


@pytest.fixture(scope="session")
def encoder() -> Iterator[Encoder]:
    """The default model as a user on this machine gets it."""
    with Encoder() as encoder:
        yield encoder
