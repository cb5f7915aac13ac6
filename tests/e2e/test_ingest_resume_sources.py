"""A load of a table that is killed: the same command completes it, document by document."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from es_sbert.encoder.encoder import Encoder
from tests.engine.ingest_support import sentences
from tests.faults.bench import Bench
from tests.faults.compare import compare
from tests.faults.corpus import Corpus

COUNT = 600
DOCUMENTS = [{name: document[name] for name in ("id", "text", "price")} for document in sentences(COUNT)]
WANTED = {document["id"]: document for document in DOCUMENTS}


@pytest.fixture
def bench(
    es9_url: str, fresh_index: Callable[[str], str], model: Path, tiny: Encoder, tmp_path: Path
) -> Iterator[Bench]:
    corpus = Corpus(COUNT, [], WANTED, set(), broken=0, empty=0, repeated=0)
    made = Bench("es9", es9_url, fresh_index(es9_url), model, tiny, tmp_path, corpus, outage=0)
    path = tmp_path / "docs.parquet"
    parquet.write_table(pa.Table.from_pylist(DOCUMENTS), path, row_group_size=200)
    made.arguments = [str(path)]
    with closing(made):
        made.create(shards=1)
        yield made


def test_load_killed_at_random_ends_complete(bench: Bench) -> None:
    """And terminated, which closes the source where a kill leaves it open."""
    chance = random.Random(0)
    for _ in range(2):
        bench.kill_in_the_middle(chance.uniform(0, 0.1), part=0)
        assert bench.state.exists()
    stopped = bench.terminate_in_the_middle().summary
    assert stopped["indexed"] > 0
    summary = bench.finish()
    assert (summary["read"], summary["dead"]) == (COUNT, 0)
    assert summary["resumed"]
    assert summary["unchanged"] >= stopped["indexed"] + stopped["unchanged"]
    assert summary["unchanged"] + summary["indexed"] == COUNT
    assert compare(bench).good
