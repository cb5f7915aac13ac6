"""Commands on an index with byte vectors of an earlier version: they name the migration, and it leads out."""

from __future__ import annotations

from pathlib import Path

import pytest

from es_sbert.encoder.encoder import Encoder
from tests.e2e.cli_support import Cli
from tests.engine.byte_index import create_byte_index
from tests.engine.ingest_support import open_engine


@pytest.mark.usefixtures("alone_on_engines")  # the doctor looks at the health of the whole engine
def test_refusal_names_the_migration_that_works(cli: Cli, engine_url: str, index_name: str, model: Path) -> None:
    with Encoder(str(model), precision="fp32", threads=1) as encoder, open_engine(engine_url) as engine:
        create_byte_index(engine, index_name, encoder, ["a man plays guitar", "the cat sleeps"])
    options = ["--url", engine_url, "--precision", "fp32"]
    search = ["search", "--index", index_name, *options, "the cat sleeps", "--json"]
    refusal, remedy = f"{index_name}.embedding holds byte vectors", f"`es-sbert index migrate {index_name}`"
    refused = cli(*search)
    assert (refused.code, refusal in refused.err, remedy in refused.err) == (2, True, True)
    checked = cli("doctor", "--index", index_name, *options, "--model", model)
    assert (checked.code, f"FAIL  index: {refusal}" in checked.out, remedy in checked.out) == (1, True, True)
    moved = cli("index", "migrate", index_name, *options, "--replace-index", "--yes", "--quiet")
    assert moved.code == 0, moved.err
    found = cli(*search)
    assert found.code == 0, found.err
    assert "the cat sleeps" in found.out.splitlines()[0]
    with open_engine(engine_url) as engine:
        new = engine.get_index(index_name)
        assert new is not None
        engine.delete_index(new.name)
