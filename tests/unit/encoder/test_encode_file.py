"""`encode`: one vector per line, or an error that names the line and no output file."""

import gzip
import io
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import orjson
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.cli.main import cli
from es_sbert.encoder.encode_file import encode_file, npy_header
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import OutputError, SourceError, UsageError
from tests.tiny import HIDDEN, write_tiny_bert

LINES = "a man\nplays guitar\r\n\nthe cat sleeps"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_SBERT_CACHE", str(tmp_path_factory.mktemp("cache")))
        folder = write_tiny_bert(tmp_path_factory.mktemp("model") / "tiny")
        with Encoder(str(folder), device="cpu", precision="fp32") as encoder:
            yield encoder


def _expected(encoder: Encoder) -> np.ndarray:
    return encoder.encode(["a man", "plays guitar", "", "the cat sleeps"])


def test_writes_npy(encoder: Encoder, tmp_path: Path) -> None:
    summary = encode_file(encoder, io.BytesIO(LINES.encode()), tmp_path / "v.npy")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), _expected(encoder), atol=2e-6)
    assert summary.texts == 4


def test_empty_input_writes_an_empty_array(encoder: Encoder, tmp_path: Path) -> None:
    encode_file(encoder, io.BytesIO(b""), tmp_path / "v.npy")
    assert np.load(tmp_path / "v.npy").shape == (0, HIDDEN)


def test_jsonl_keeps_the_objects(encoder: Encoder) -> None:
    lines = [{"id": 1, "t": "a man"}, {"t": "plays guitar", "x": None}]
    out = io.BytesIO()
    encode_file(encoder, io.BytesIO(b"\n".join(map(orjson.dumps, lines))), out, form="jsonl", text_field="t")
    written = [orjson.loads(line) for line in out.getvalue().splitlines()]
    vectors = np.array([record.pop("embedding") for record in written], dtype=np.float32)
    assert written == lines
    np.testing.assert_allclose(vectors, _expected(encoder)[:2], atol=2e-6)


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        ("\ufeffgrüßen\nb".encode(), None),
        ("\ufeffgrüßen\nb\n".encode("utf-16-le"), None),
        ("grüßen\r\nb".encode("windows-1252"), "windows-1252"),
        (gzip.compress("grüßen\nb".encode("utf-16-le")), "utf-16-le"),
    ],
)
def test_texts_are_decoded(encoder: Encoder, content: bytes, encoding: str | None) -> None:
    out = io.BytesIO()
    encode_file(encoder, io.BytesIO(content), out, encoding=encoding)
    assert [orjson.loads(line)["text"] for line in out.getvalue().splitlines()] == ["grüßen", "b"]


@pytest.mark.parametrize(
    ("content", "form", "message"),
    [
        (b"fine\n\xff\n", "lines", "it is not UTF-8: line 2 has the byte 0xff"),
        (b"PK\x03\x04" + b"\0" * 40, "lines", "it is a zip archive, not plain text"),
        ("ab".encode("utf-16")[:-1], "lines", "the input cannot be read: the utf-16-le text is damaged"),
        (gzip.compress(b"text")[:-5], "lines", "the gzip data ends early"),
        (b'{"text": "a"}\n{', "jsonl", "line 2 is not JSON"),
        (b'{"text": "a"}\n[]', "jsonl", "line 2 has no string"),
        (
            b'{"text": "a"}\n{"text": null}',
            "jsonl",
            "line 2 has null under 'text'\n  Remove the line, or give it a text",
        ),
        (b"{}", "jsonl", "line 1 has no string"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_written(
    encoder: Encoder, tmp_path: Path, content: bytes, form: str, message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        encode_file(encoder, io.BytesIO(content), tmp_path / "v.npy", form=form)
    assert list(tmp_path.iterdir()) == []


def test_unwritable_output_raises_output_error(encoder: Encoder, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        encode_file(encoder, io.BytesIO(b"a"), tmp_path / "missing" / "v.npy")


def test_full_disk_raises_output_error(encoder: Encoder) -> None:
    with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(OutputError, match="No space left"):
        encode_file(encoder, io.BytesIO(b"a"), full)


def test_a_pipe_is_written_to_and_not_replaced(encoder: Encoder, tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(pipe.read_bytes)
        encode_file(encoder, io.BytesIO(b"a man"), link)
        assert orjson.loads(read.result(timeout=60))["text"] == "a man"
    assert pipe.is_fifo()
    assert link.is_symlink()
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(UsageError, match="cannot hold an array"):
        encode_file(encoder, io.BytesIO(b"a man"), tmp_path / "pipe.npy")


def test_other_jsonl_fields_keep_their_bytes(encoder: Encoder) -> None:
    line = '{"id": 12345678901234567890123, "price": 1.10, "text": "a man" }'
    out = io.BytesIO()
    encode_file(encoder, io.BytesIO(line.encode()), out, form="jsonl")
    assert out.getvalue().decode().startswith(line[:-1] + ',"embedding":[')


def test_existing_vector_is_replaced(encoder: Encoder) -> None:
    out = io.BytesIO()
    encode_file(encoder, io.BytesIO(b'{"embedding": [1], "text": "a man"}'), out, form="jsonl")
    assert out.getvalue().count(b"embedding") == 1
    assert len(orjson.loads(out.getvalue())["embedding"]) == HIDDEN


def test_text_field_equal_to_vector_field_is_rejected(encoder: Encoder) -> None:
    with pytest.raises(UsageError, match="'embedding'"):
        encode_file(encoder, io.BytesIO(b'{"embedding": "a"}'), io.BytesIO(), form="jsonl", text_field="embedding")


@given(st.integers(0, 10**18), st.integers(1, 10_000))
def test_npy_header_has_constant_length(rows: int, dimensions: int) -> None:
    assert len(npy_header(rows, dimensions)) == len(npy_header(0, dimensions))


def test_encode_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    folder = write_tiny_bert(tmp_path / "tiny", max_tokens=8)
    command = ["encode", "--model", str(folder), "--precision", "fp32", "--device", "cpu"]
    result = CliRunner().invoke(cli, command, input="a man\n" + "cat " * 20, catch_exceptions=False)
    assert result.exit_code == 0
    assert [list(orjson.loads(line)) for line in result.stdout.splitlines()] == [["text", "embedding"]] * 2
    assert "2 texts" in result.stderr
    assert "1 text was longer than 8 tokens and was truncated (14 tokens lost)" in result.stderr


def test_text_field_is_read_as_everywhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    folder = write_tiny_bert(tmp_path / "tiny", max_tokens=16)
    command = ["encode", "--model", str(folder), "--precision", "fp32", "--device", "cpu"]

    def vectors(*arguments: str, lines: list[object] | str) -> np.ndarray:
        text = lines if isinstance(lines, str) else "\n".join(orjson.dumps(line).decode() for line in lines)
        result = CliRunner().invoke(cli, [*command, *arguments], input=text, catch_exceptions=False)
        assert result.exit_code == 0, result.stderr
        return np.array([orjson.loads(line)["embedding"] for line in result.stdout.splitlines()])

    nested = ({"a": {"b": "a man"}}, {"a.b": "a man"}, {"a": [{"b": "a man"}, {"c": 1}]}, {"a": {"b": ["a man", None]}})
    found = vectors("--format", "jsonl", "--text-field", "a.b", lines=[*nested])
    np.testing.assert_allclose(found, vectors(lines="a man\n" * 4), atol=2e-6)
    several = [{"a": [{"b": "a man"}, {"b": "the cat"}]}]
    joined = vectors("--format", "jsonl", lines=[{"text": "a man\nthe cat"}])
    np.testing.assert_allclose(vectors("--format", "jsonl", "--text-field", "a.b", lines=several), joined, atol=2e-6)
    for record in ({"a": {"c": "x"}}, {"a": {"b": 7}}, {"a": "x"}):
        done = CliRunner().invoke(
            cli, [*command, "--format", "jsonl", "--text-field", "a.b"], input=orjson.dumps(record)
        )
        assert isinstance(done.exception, SourceError)
        assert "line 1 has no string under 'a.b'" in str(done.exception)


def test_dash_writes_to_stdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    folder = write_tiny_bert(tmp_path / "tiny", max_tokens=8)
    monkeypatch.chdir(tmp_path)
    command = ["encode", "--model", str(folder), "--precision", "fp32", "--device", "cpu", "-o", "-"]
    result = CliRunner().invoke(cli, command, input="a man\n", catch_exceptions=False)
    assert [list(orjson.loads(line)) for line in result.stdout.splitlines()] == [["text", "embedding"]]
    assert not (tmp_path / "-").exists()


def test_closed_pipe_ends_quietly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_bert(tmp_path / "tiny")
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    Encoder(folder, device="cpu").close()  # exports it: the command would import torch for that
    (tmp_path / "texts").write_text("a man\n" * 2_000)
    command = f"{sys.executable} -m es_sbert.cli.main encode --model {folder} --device cpu {tmp_path / 'texts'}"
    script = f"set -o pipefail; {command} | head -c 10"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == '{"text":"a'
    assert "rror" not in done.stderr
