"""Every bad input that users are known to bring, through the command line: none ends in a traceback, and
nothing is lost silently."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.bundle.bundle import cached_bundle_path
from es_sbert.bundle.sentence_model import read_sentence_model
from tests.conftest import free_port
from tests.e2e.cli_support import Cli, Done, ingest_into
from tests.engine.ingest_support import open_engine
from tests.faulty_proxy import FaultyProxy
from tests.tiny import write_tiny_bert

GOOD = [{"id": "a", "text": "a man plays guitar"}, {"id": "b", "text": "the cat sleeps on the mat"}]


@pytest.fixture
def ingest(cli: Cli, model: Path, es9_url: str, fresh_index: Callable[[str], str]) -> Callable[..., Done]:
    """`es-sbert ingest` into an index of this test's own."""
    return ingest_into(cli, model, es9_url, fresh_index(es9_url))


def jsonl(*documents: Any) -> bytes:
    return b"".join(orjson.dumps(document) + b"\n" for document in documents)


def letters() -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in Path("dead.jsonl").read_bytes().splitlines()]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        pytest.param(b'{"id": "x", "text": ', "malformed JSON", id="malformed JSON"),
        pytest.param(b'{"id": "x", "text": "' + b"x" * 50_000_000 + b'"}', "50,000,023 bytes", id="a 50 MB line"),
        pytest.param(b'{"id": "a", "text": "x"}', "read before, in docs.jsonl:1", id="duplicate id"),
        pytest.param(b'{"id": "x", "text": "x", "n": {"m": 1, "m": 2}}', "uplicate", id="a key twice"),
        pytest.param(b'{"id": "x", "text": "x", "": 1}', "refused by the engine (400)", id="a field without a name"),
    ],
)  # fmt: skip
def test_bad_document_is_dead_lettered_and_others_indexed(
    ingest: Callable[..., Done], line: bytes, reason: str
) -> None:
    first, second = jsonl(GOOD[0]), jsonl(GOOD[1])
    Path("docs.jsonl").write_bytes(first + line + b"\n" + second)
    done = ingest("docs.jsonl", "--id-field", "id")
    assert done.code == 1
    assert (done.summary["read"], done.summary["indexed"], done.summary["dead"]) == (3, 2, 1)
    [letter] = letters()
    assert reason in letter["reason"]
    assert (letter["source"], letter["line"]) == ("docs.jsonl", 2)
    assert "not loaded: see dead.jsonl" in done.err
    if len(line) > 1 << 20:
        assert letter["bytes"] == len(line)
        assert Path("dead.jsonl").stat().st_size < 1 << 20
    elif "document" in letter:
        assert letter["document"] == orjson.loads(line)
    else:
        assert letter["raw"].startswith(line[:8].decode())


def test_document_rejected_by_mapping_is_dead_lettered(
    ingest: Callable[..., Done], es9_url: str, fresh_index: Callable[[str], str]
) -> None:
    index = fresh_index(es9_url)
    with open_engine(es9_url) as engine:
        engine.create_index(index, {"mappings": {"properties": {"born": {"type": "date"}}}})
    Path("docs.jsonl").write_bytes(jsonl(*GOOD, {"id": "c", "text": "a cat", "born": "yesterday"}))
    done = ingest("docs.jsonl", "--id-field", "id", "--index", index)
    assert (done.code, done.summary["indexed"], done.summary["dead"]) == (1, 2, 1)
    [letter] = letters()
    assert letter["id"] == "c"
    assert "[born]" in letter["reason"]
    assert "yesterday" in letter["reason"]


@pytest.mark.parametrize(
    ("name", "data"),
    [("e.jsonl", b""), ("e.csv", b"id,text\n")],
)
def test_empty_file_exits_zero(ingest: Callable[..., Done], name: str, data: bytes) -> None:
    Path(name).write_bytes(data)
    done = ingest(name)
    assert (done.code, done.summary["read"]) == (0, 0)
    assert "0 documents read" in done.err


def test_truncated_archive_is_loaded_up_to_the_break(ingest: Callable[..., Done]) -> None:
    documents = [{"id": n, "text": f"the cat {n * 7919 % 10007}"} for n in range(300)]
    whole = gzip.compress(jsonl(*documents))
    Path("docs.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    done = ingest("docs.jsonl.gz", "--id-field", "id")
    assert done.code == 1
    assert done.summary["indexed"] > 50
    [letter] = letters()
    assert "the gzip data ends early" in letter["reason"]


@pytest.mark.parametrize(
    ("name", "data", "arguments", "message"),
    [
        pytest.param(None, b"", ["gone.jsonl"], "gone.jsonl cannot be read", id="missing file"),
        pytest.param("c.csv", b'{"id": 1, "text": "x"}', ["c.csv"], "c.csv has no column text", id="JSON as CSV"),
        pytest.param("d.csv", b"id,text\n1,caf\xe9", ["d.csv"], "--encoding windows-1252", id="Windows-1252"),
        pytest.param(None, b"", ["s3://bucket/a.jsonl"], "s3://… is an address", id="address"),
    ],
)
def test_unreadable_sources_are_refused_before_loading(
    ingest: Callable[..., Done], name: str | None, data: bytes, arguments: list[str], message: str
) -> None:
    Path("fine.txt").write_bytes(b"the cat\n")
    if name:
        Path(name).write_bytes(data)
    done = ingest("fine.txt", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Error: ")
    assert message in done.err
    assert not Path("dead.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text-field", "a", "--text-template", "{b}"], "cannot be combined"),
        (["--text-template", "{a"], "cannot be read"),
        (["--text-template", "words"], "has no field"),
        (["--index", "Capital"], "Capital"),
        (["--index", "a,b"], "is not the name of one index"),
        (["--index-type", "fast"], "does not support the index type fast"),
        (["--vector-field", "a b*"], "cannot be the name of a vector field"),
        (["--dead-letters", "no/such/folder/x"], "could not be written"),
        (["--username", "me"], "must be given together"),
        (["--batch-window", "0"], "--batch-window"),
        (["--retry", "dead.jsonl"], "FILE and --retry cannot be combined"),
        (["--format", "xml"], "'xml' is not one of"),
    ],
)
def test_invalid_option_combinations_exit_2(ingest: Callable[..., Done], arguments: list[str], message: str) -> None:
    Path("fine.txt").write_bytes(b"the cat\n")
    done = ingest("fine.txt", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:9200", "begins with http:// or https://"),
        ("http://127.0.0.1:{port}", "nothing listens at http://127.0.0.1:{port}"),
        ("http://no-such-host.invalid:9200", "http://no-such-host.invalid:9200"),
    ],
)
def test_wrong_url_exits_2(ingest: Callable[..., Done], url: str, message: str) -> None:
    Path("fine.txt").write_bytes(b"the cat\n")
    port = free_port()
    waiting = ["--retry-seconds", "0"] if "{port}" in url else []  # else it would be waited for: it may be starting
    done = ingest("fine.txt", "--url", url.format(port=port), *waiting)
    assert "Waiting for the engine" not in done.err
    assert (done.code, done.out) == (2, "")
    assert message.format(port=port) in done.err


def test_wrong_credentials_exit_2_without_leaking_password(
    ingest: Callable[..., Done], es9_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("fine.txt").write_bytes(b"the cat\n")
    with FaultyProxy(es9_url, authorization="ApiKey right") as proxy:
        monkeypatch.setenv("ES_SBERT_API_KEY", "wrong-and-secret")
        done = ingest("fine.txt", "--url", proxy.url)
        assert (done.code, done.out) == (2, "")
        assert "refused the credentials (401)" in done.err
        assert "wrong-and-secret" not in done.err
        monkeypatch.setenv("ES_SBERT_API_KEY", "right")
        assert ingest("fine.txt", "--url", proxy.url).code == 0


def test_index_of_another_model_exits_2(ingest: Callable[..., Done], tmp_path: Path) -> None:
    Path("docs.jsonl").write_bytes(jsonl(*GOOD))
    assert ingest("docs.jsonl").code == 0
    other = write_tiny_bert(tmp_path / "other", seed=1)
    done = ingest("docs.jsonl", "--model", other)
    assert (done.code, done.out) == (2, "")
    assert "holds vectors of the model" in done.err
    assert "--model" in done.err


def _edit_manifest(bundle: Path) -> None:
    path = bundle / "es_sbert.json"
    path.write_text(path.read_text().replace('"max_tokens": 24', '"max_tokens": 20'))


def _edit_graph(bundle: Path) -> None:
    [path] = bundle.rglob("*.onnx")
    path.write_bytes(path.read_bytes()[:-1] + b"\0")


def _edit_prompts(bundle: Path) -> None:
    path = bundle / "config_sentence_transformers.json"
    path.write_text(path.read_text().replace('"prompts": {}', '"prompts": {"query": "query: "}'))


@pytest.mark.parametrize("edit", [_edit_manifest, _edit_graph, _edit_prompts])
def test_edited_model_bundle_is_refused(
    ingest: Callable[..., Done], model: Path, tmp_path: Path, edit: Callable[[Path], None]
) -> None:
    Path("docs.jsonl").write_bytes(jsonl(*GOOD))
    assert ingest("docs.jsonl").code == 0
    # What was exported on first use is a bundle like any other.
    bundle = Path(shutil.copytree(cached_bundle_path(read_sentence_model(model).fingerprint), tmp_path / "bundle"))
    assert ingest("docs.jsonl", "--model", bundle).code == 0
    before = {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()}
    edit(bundle)
    assert before != {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()}
    done = ingest("docs.jsonl", "--model", bundle)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Error: ")
    assert str(bundle) in done.err


@pytest.mark.parametrize(
    ("broken", "content"),
    [
        ("config.json", b"{"), ("config.json", None), ("tokenizer.json", b"{}"), ("model.safetensors", b"\x00" * 20),
        ("model.safetensors", None), ("modules.json", b"[]"), ("1_Pooling/config.json", b'{"pooling_mode": "best"}'),
    ],
)  # fmt: skip
def test_broken_model_folder_is_refused(
    ingest: Callable[..., Done], tmp_path: Path, broken: str, content: bytes | None
) -> None:
    folder = write_tiny_bert(tmp_path / "broken")
    (folder / broken).unlink()
    if content is not None:
        (folder / broken).write_bytes(content)
    Path("docs.jsonl").write_bytes(jsonl(*GOOD))
    done = ingest("docs.jsonl", "--model", folder)
    assert (done.code, done.out) == (2, "")
    assert "Error: " in done.err
    assert not Path("dead.jsonl").exists()
