"""A forked process searches with its own connections: it never reads the response to another process's request."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elasticsearch import Elasticsearch
from opensearchpy import OpenSearch

from es_sbert import SemanticIndex
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import UsageError
from tests.engine.sample_indices import COUNT, SampleIndices, samples
from tests.raised import record

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows does not fork")


@pytest.fixture(scope="module")
def site(engine_url: str, tiny: Encoder) -> Iterator[SampleIndices]:
    with samples(engine_url, tiny) as made:
        yield made


def in_forked_process(work: Callable[[], object]) -> int:
    """Start a process; it ends with 0 if `work` raises no error."""
    process = os.fork()
    if process:
        return process
    signal.alarm(60)
    try:
        work()
        os._exit(0)
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode())
        os._exit(1)


def test_forked_processes_get_their_own_answers(site: SampleIndices, engine_url: str) -> None:
    vectors = np.random.default_rng(0).normal(size=(24, site.v.shape[1])).astype(np.float32)
    for engine in (engine_url, [engine_url, engine_url.replace("localhost", "127.0.0.1")]):
        with SemanticIndex(site.one, engine, encoder=site.encoder, vector_field="v") as index:

            def search(number: int, index: SemanticIndex = index) -> list[str]:
                return [hit.id for hit in index.search_vector(vectors[number], 5, num_candidates=COUNT)]

            expected = [search(number) for number in range(len(vectors))]

            def check(first: int, search: Any = search, expected: Any = expected) -> None:
                for number in range(first, first + 200):
                    assert search(number % len(vectors)) == expected[number % len(vectors)]

            processes = [in_forked_process(lambda first=first: check(first)) for first in (0, 7, 13)]
            check(3)
            assert [os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in processes] == [0, 0, 0]


def test_client_of_the_caller_is_refused_in_a_forked_process(site: SampleIndices, tmp_path: Path) -> None:
    client: Any = (OpenSearch if site.opensearch else Elasticsearch)(site.engine.info.url)
    with closing(client), SemanticIndex(site.one, client, encoder=site.encoder, vector_field="v") as index:
        index.search_vector(site.v[0], 1)

        def search() -> None:
            with pytest.raises(UsageError) as refused:
                index.search_vector(site.v[0], 1)
            (tmp_path / "refused").write_text(str(refused.value))

        assert os.waitstatus_to_exitcode(os.waitpid(in_forked_process(search), 0)[1]) == 0
        record((tmp_path / "refused").read_text())
        assert index.search_vector(site.v[0], 1)
        with pytest.raises(TypeError, match="a SemanticIndex cannot be pickled: open it in the other process"):
            pickle.dumps(index)
