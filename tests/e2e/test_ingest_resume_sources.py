"""Loads of tables, addresses and queries that are killed: the same command completes them, document by document."""

from __future__ import annotations

import gzip
import random
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyarrow import parquet

from es_sbert.encoder.encoder import Encoder
from es_sbert.loading import load_encoder
from tests.e2e.test_ingest_resume import Loads
from tests.engine.ingest_support import sentences
from tests.http_files import HttpFiles

COUNT = 4000
SECRET = "s3cret-of-the-address"
DOCUMENTS = [{name: document[name] for name in ("id", "text", "price")} for document in sentences(COUNT)]


@pytest.fixture(scope="module")
def tiny(model: Path) -> Any:
    with load_encoder(str(model), precision="fp32", threads=1) as encoder:
        yield encoder


@pytest.fixture
def server() -> Iterator[HttpFiles]:
    with HttpFiles({"/docs.jsonl.gz": gzip.compress(b"\n".join(map(orjson.dumps, DOCUMENTS)))}) as server:
        yield server


@pytest.fixture(params=["parquet", "http", "sql"])
def loads(
    request: pytest.FixtureRequest, server: HttpFiles, es9_url: str, fresh_index: Callable[[str], str], model: Path,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> Loads:  # fmt: skip
    made = Loads(es9_url, fresh_index(es9_url), model, tmp_path)
    made.state = tmp_path / f"{made.index}.load-state"
    if request.param == "parquet":
        path = tmp_path / "docs.parquet"
        parquet.write_table(pa.Table.from_pylist(DOCUMENTS), path, row_group_size=500)
        made.take_from(str(path))
        made.state = tmp_path / f"docs.parquet.{made.index}.load-state"
    elif request.param == "http":
        made.take_from(f"http://anna:{SECRET}@{server.host}/docs.jsonl.gz?signature={SECRET}")
    else:
        with closing(sqlite3.connect(tmp_path / "docs.db")) as db, db:
            db.execute("CREATE TABLE docs (id TEXT, text TEXT, price REAL)")
            db.executemany("INSERT INTO docs VALUES (:id, :text, :price)", DOCUMENTS)
        monkeypatch.setenv("ES_SBERT_DATABASE", f"sqlite:///{tmp_path / 'docs.db'}")
        made.take_from("--sql", "SELECT id, text, price FROM docs")
    return made


def test_killed_at_random_moments_a_load_ends_as_if_nothing_had_happened(loads: Loads, tiny: Encoder) -> None:
    chance = random.Random(0)
    for _ in range(3):
        code, err = loads.end_in_the_middle(signal.SIGKILL, chance.uniform(0, 0.1), written=False)
        assert code == -signal.SIGKILL, err
        assert loads.state.exists()
        assert SECRET not in err
        for path in loads.folder.glob(f"{loads.state.name}*"):
            assert SECRET.encode() not in path.read_bytes()
    summary = loads.to_the_end()
    assert (summary["read"], summary["dead"]) == (COUNT, 0)
    assert summary["resumed"]
    loads.check(DOCUMENTS, tiny)


def test_a_load_goes_on_where_it_was_terminated(loads: Loads, tiny: Encoder) -> None:
    code, err = loads.end_in_the_middle(signal.SIGTERM, 0)
    assert code == 130, err
    assert SECRET not in err
    summary = loads.to_the_end()
    assert summary["resumed"]
    assert summary["unchanged"] > 0
    assert summary["unchanged"] + summary["indexed"] == COUNT
    loads.check(DOCUMENTS, tiny)
