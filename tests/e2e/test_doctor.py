"""`es-sbert doctor` as users call it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from es_sbert.diagnostics.doctor import inspect_index
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
from tests.conftest import free_port
from tests.e2e.cli_support import Cli
from tests.engine.ingest_support import open_engine

# The doctor looks at the health of the whole engine.
pytestmark = pytest.mark.usefixtures("alone_on_engines")


def test_healthy_setup_reports_no_failures(cli: Cli, engine_url: str, index_name: str, model: Path) -> None:
    Path("docs.txt").write_text("a man plays guitar\nthe cat sleeps\n")
    options = ["--index", index_name, "--url", engine_url, "--model", model, "--precision", "fp32"]
    assert cli("ingest", *options, "docs.txt").code == 0
    done = cli("doctor", *options)
    assert (done.code, done.err) == (0, "")
    assert "FAIL" not in done.out
    for about in ("model", "device", "runtime", "engine", "health", "disk", "index", "field embedding"):
        assert f"  {about}: " in done.out
    assert "all 2 documents have a vector" in done.out
    options[3] += f",http://localhost:{free_port()}"
    rows = [orjson.loads(line) for line in cli("doctor", *options, "--json").out.splitlines()]
    assert {row["level"] for row in rows} <= {"ok", "warning"}
    assert [row["message"] for row in rows if "does not respond" in row["message"] and row["about"] == "address"]


def test_problems_are_reported_with_remedy(
    cli: Cli, es9_url: str, fresh_index: Callable[[str], str], model: Path
) -> None:
    index = fresh_index(es9_url)
    with open_engine(es9_url) as engine:
        engine.create_index(index, {"settings": {"index.blocks.write": True}})
    done = cli("doctor", "--index", index, "--url", es9_url, "--model", model, "--precision", "fp32")
    assert done.code == 1
    assert f"FAIL  index: {index} has index.blocks.write" in done.out
    assert f"{index} has no vector field" in done.out
    missing = cli("doctor", "--index", "no-such-index", "--url", es9_url, "--model", model, "--precision", "fp32")
    assert (missing.code, "look  index: there is no index no-such-index" in missing.out) == (0, True)


def test_indices_that_cannot_be_searched_together_or_at_all_are_errors(
    engine_url: str, fresh_index: Callable[[str], str]
) -> None:
    one, other, broken = (fresh_index(engine_url) for _ in range(3))
    entry = {"fields": {"v": {"fingerprint": "a" * 32, "model": "m", "dimensions": 4, "index_type": "hnsw"}}}
    with open_engine(engine_url) as engine:
        for index, fingerprint in ((one, "a" * 32), (other, "b" * 32)):
            ensure_vector_field(engine, index, FieldRequest("v", fingerprint, "m", 4))
        engine.update_aliases([{"add": {"index": name, "alias": f"{one}-both"}} for name in (one, other)])
        count, mixed = inspect_index(engine, f"{one}-both", [], [])
        assert count.message.endswith("which are searched together, and none of them is its write index")
        assert (mixed.level, mixed.about, "cannot be compared" in mixed.message) == ("error", "field v", True)
        engine.create_index(broken, {"mappings": {"_meta": {"es_sbert": entry}}})
        [lost] = inspect_index(engine, broken, [], [])
        assert (lost.level, lost.message) == ("error", f"the index {broken} has no vector field 'v'")


def test_index_without_the_field_of_its_alias_gets_commands(
    cli: Cli, engine_url: str, index_name: str, model: Path
) -> None:
    """As after a rollover without a template; the commands that doctor prints close the gap."""
    alias = f"{index_name}-logs"
    old, new = f"{alias}-000001", f"{alias}-000002"
    Path("docs.jsonl").write_text('{"id": "1", "body": "a man plays guitar"}\n')
    options = ["--url", engine_url, "--precision", "fp32"]
    with open_engine(engine_url) as engine:
        try:
            texts = ["--text-field", "body", "--id-field", "id", "--model", model]
            assert cli("ingest", "--index", old, *options, *texts, "docs.jsonl").code == 0
            engine.create_index(new, {})
            engine.update_aliases(
                [{"add": {"index": name, "alias": alias, "is_write_index": name == new}} for name in (old, new)]
            )
            engine.bulk(new, b'{"index":{"_id":"2"}}\n{"body":"the cat sleeps"}\n')
            for name in (alias, f"{old},{new}", f"{alias}-*"):
                done = cli("doctor", "--index", name, *options)
                assert done.code == 0, done.out
                assert (
                    f"look  field embedding: missing in {new}: searches of {name} miss the documents there" in done.out
                )
                assert f"{new} has no vector field" not in done.out
            assert f"documents are written to {new}" in cli("doctor", "--index", alias, *options).out
            [command] = set(re.findall(rf"`es-sbert (ingest --index {new} [^`]*)`", done.out))
            assert cli(*shlex.split(command), *options).code == 0
            found = cli("search", "--index", alias, *options, "the cat sleeps", "--json")
            assert (found.code, len(found.out.splitlines()), "lacks" in found.err) == (0, 2, False)
        finally:
            engine.delete_index(old)
            engine.delete_index(new)


def test_unreachable_engine_and_missing_model_are_reported(cli: Cli, tmp_path: Path) -> None:
    done = cli("doctor", "--url", f"http://localhost:{free_port()}", "--model", tmp_path / "no-model")
    assert done.code == 1
    assert "FAIL  model: " in done.out
    assert "FAIL  engine: " in done.out
    assert "`es-sbert engine up`" in done.out
