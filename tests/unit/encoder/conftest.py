"""A tiny encoder that the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from es_sbert.encoder.encoder import Encoder
from tests.tiny import write_tiny_bert


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a prompt for each kind, so that queries and documents differ, and an empty cache."""
    prompts = {"query": "query: ", "document": "passage: "}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_SBERT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield write_tiny_bert(tmp_path_factory.mktemp("model") / "tiny", prompts=prompts)


@pytest.fixture(scope="module")
def encoder(tiny: Path) -> Iterator[Encoder]:
    with Encoder(tiny, device="cpu", precision="fp32", threads=2, budget=64) as encoder:
        yield encoder
