"""`encode`: one vector per record, or an error that names the record and no output file."""

import gzip
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import orjson
import pytest

from es_sbert.cli.encode import encode_file, npy_header
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import OutputError, SourceError, UsageError
from es_sbert.index.text_template import TextTemplate
from es_sbert.ingest.read_texts import read_file_texts, read_texts
from es_sbert.io.file_formats import FileOptions
from tests.raised import raises_as_recorded
from tests.tiny import HIDDEN, write_tiny_bert

LINES = "a man\nplays guitar\r\n\nthe cat sleeps"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_SBERT_CACHE", str(tmp_path_factory.mktemp("cache")))
        folder = write_tiny_bert(tmp_path_factory.mktemp("model") / "tiny")
        with Encoder(str(folder), device="cpu", precision="fp32") as encoder:
            yield encoder


def read(path: Path, data: bytes, field: str = "text", **options: str) -> Iterator[tuple[str, bytes]]:
    path.write_bytes(data)
    return read_texts(str(path), FileOptions(**options), field, left_out="embedding")


def test_writes_npy(encoder: Encoder, tmp_path: Path) -> None:
    summary = encode_file(encoder, read(tmp_path / "a.txt", LINES.encode()), tmp_path / "v.npy")
    expected = encoder.encode(["a man", "plays guitar", "", "the cat sleeps"])
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=2e-6)
    assert summary.texts == 4
    encode_file(encoder, read(tmp_path / "a.txt", b""), tmp_path / "v.npy")
    assert np.load(tmp_path / "v.npy").shape == (0, HIDDEN)


def test_header_of_many_rows_is_as_long_as_that_of_none() -> None:
    """It is written over the first one, at the end."""
    assert len(npy_header(10**18, 10_000)) == len(npy_header(0, 10_000))


def test_jsonl_keeps_the_bytes_of_other_fields(encoder: Encoder, tmp_path: Path) -> None:
    lines = [
        b'{"id": 12345678901234567890123, "price": 1.10, "t": "a man" }',
        b'{"embedding": [1], "t": "plays guitar"}',
    ]
    out = io.BytesIO()
    encode_file(encoder, read(tmp_path / "a.jsonl", b"\n".join(lines), "t"), out)
    first, second = out.getvalue().splitlines()
    assert first.startswith(lines[0].removesuffix(b" }"))
    assert second.count(b"embedding") == 1
    vectors = np.array([orjson.loads(line)["embedding"] for line in (first, second)], dtype=np.float32)
    np.testing.assert_allclose(vectors, encoder.encode(["a man", "plays guitar"]), atol=2e-6)


def test_records_without_a_text_are_left_out_with_their_reasons(tmp_path: Path) -> None:
    path, template = tmp_path / "a.jsonl", TextTemplate.parse("{text}")
    path.write_bytes(b'{"text": "a", "id": 1}\n[]\n{"text": 5, "id": 2}\n{"text": "b"}\n{"text": " ", "id": 3}\n')
    found = read_file_texts([str(path)], template=template, id_field="id")
    assert (found.ids, found.texts) == (["1"], ["a"])
    reasons = ("cannot be read", "text is a JSON number", "the id field id is missing", "it has no text")
    for line, reason in zip(found.skipped.lines(), reasons, strict=True):
        assert line.startswith("1 left out: ")
        assert reason in line
    with raises_as_recorded(SourceError):
        read_file_texts([str(path)], template=TextTemplate.parse("{title}"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt.gz", gzip.compress(b"text")[:-5]),
        ("a.jsonl", b'{"text": "a"}\n[]'),
        ("a.jsonl", b'{"text": "a"}\n{"text": null}'),
        ("a.jsonl", b'{"text": 7}'),
    ],
)
def test_a_bad_record_is_named_and_nothing_is_written(
    encoder: Encoder, tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / "out").mkdir()
    with raises_as_recorded(SourceError):
        encode_file(encoder, read(tmp_path / name, content), tmp_path / "out/v.npy")
    assert list((tmp_path / "out").iterdir()) == []


def test_full_disk_raises_output_error(encoder: Encoder) -> None:
    with Path("/dev/full").open("wb", buffering=0) as full, raises_as_recorded(OutputError):
        encode_file(encoder, [("a", b'{"text": "a"}')], full)


def test_a_pipe_is_written_to_and_not_replaced(encoder: Encoder, tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(pipe.read_bytes)
        encode_file(encoder, [("a man", b'{"text": "a man"}')], link)
        assert orjson.loads(read.result(timeout=60))["text"] == "a man"
    assert pipe.is_fifo()
    assert link.is_symlink()
    os.mkfifo(tmp_path / "pipe.npy")
    with raises_as_recorded(UsageError):
        encode_file(encoder, [("a man", b'{"text": "a man"}')], tmp_path / "pipe.npy")


def test_encode_command_reads_lines_from_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    folder = write_tiny_bert(tmp_path / "tiny", max_tokens=8)
    command = [sys.executable, "-m", "es_sbert.cli.main", "encode", "--model", str(folder), "--device", "cpu"]
    texts = "a man\n" + "cat " * 20
    result = subprocess.run([*command, "--precision", "fp32", "-o", "-"], input=texts, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert [list(orjson.loads(line)) for line in result.stdout.splitlines()] == [["text", "embedding"]] * 2
    assert "1 text was longer than 8 tokens and was truncated (14 tokens lost)" in result.stderr
    assert not Path("-").exists()


def test_closed_pipe_ends_quietly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_bert(tmp_path / "tiny")
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    Encoder(folder, device="cpu").close()  # exports it: the command would import torch for that
    (tmp_path / "texts.txt").write_text("a man\n" * 2_000)
    command = f"{sys.executable} -m es_sbert.cli.main encode --model {folder} --device cpu {tmp_path / 'texts.txt'}"
    script = f"set -o pipefail; {command} | head -c 10"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == '{"text":"a'
    assert "rror" not in done.stderr
