"""`encode`: one vector per record, or an error that names the record and no output file."""

import gzip
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import orjson
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.cli.encode import encode_file, npy_header
from es_sbert.cli.main import cli
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import OutputError, SourceError, UsageError
from es_sbert.ingest.read_texts import read_texts
from es_sbert.ingest.sources.file_sources import FileOptions
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


def read(path: Path, data: bytes, field: str = "text", **options: str) -> Iterator[tuple[str, bytes]]:
    path.write_bytes(data)
    return read_texts(str(path), FileOptions(**options), field, left_out="embedding")


def records(*texts: str) -> list[tuple[str, bytes]]:
    return [(text, orjson.dumps({"text": text})) for text in texts]


def test_writes_npy(encoder: Encoder, tmp_path: Path) -> None:
    summary = encode_file(encoder, read(tmp_path / "a.txt", LINES.encode()), tmp_path / "v.npy")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), _expected(encoder), atol=2e-6)
    assert summary.texts == 4


def test_empty_input_writes_an_empty_array(encoder: Encoder, tmp_path: Path) -> None:
    encode_file(encoder, read(tmp_path / "a.txt", b""), tmp_path / "v.npy")
    assert np.load(tmp_path / "v.npy").shape == (0, HIDDEN)


def test_jsonl_keeps_the_objects(encoder: Encoder, tmp_path: Path) -> None:
    lines = [{"id": 1, "t": "a man"}, {"t": "plays guitar", "x": None}]
    out = io.BytesIO()
    encode_file(encoder, read(tmp_path / "a.jsonl", b"\n".join(map(orjson.dumps, lines)), "t"), out)
    written = [orjson.loads(line) for line in out.getvalue().splitlines()]
    vectors = np.array([record.pop("embedding") for record in written], dtype=np.float32)
    assert written == lines
    np.testing.assert_allclose(vectors, _expected(encoder)[:2], atol=2e-6)


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.txt", "\ufeffgrüßen\nb".encode(), {}),
        ("a.txt.gz", gzip.compress("grüßen\r\nb".encode()), {}),
        ("a.txt", "grüßen\nb".encode("utf-16"), {}),
        ("a.txt", "grüßen\nb".encode("windows-1252"), {"encoding": "windows-1252"}),
        ("a.csv", "id#text\n1#grüßen\n2#b\n".encode(), {"delimiter": "#"}),
    ],
)
def test_files_are_read_as_by_ingest(tmp_path: Path, name: str, content: bytes, options: dict[str, str]) -> None:
    assert [text for text, _ in read(tmp_path / name, content, **options)] == ["grüßen", "b"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\n\xff\n", "it is not UTF-8: line 2 has the byte 0xff"),
        ("a.txt", b"PK\x03\x04" + b"\0" * 40, "it is UTF-16 or not a text"),
        ("a.txt.gz", gzip.compress(b"text")[:-5], "the gzip data ends early"),
        ("a.jsonl", b'{"text": "a"}\n{', "a.jsonl:2: malformed JSON"),
        ("a.jsonl", b'{"text": "a"}\n[]', "a.jsonl:2: the line is a JSON array"),
        ("a.jsonl", b'{"text": "a"}\n{"text": null}', "a.jsonl:2: the text field text is missing, null"),
        ("a.jsonl", b"{}", "a.jsonl:1: the text field text is missing"),
        ("a.jsonl", b'{"text": 7}', "a.jsonl:1: the text field text is a JSON number, not a string"),
        ("a", b"text", "does not indicate its format\n  Add `format="),
    ],
)
def test_a_bad_record_is_named_and_nothing_is_written(
    encoder: Encoder, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(SourceError, match=message):
        encode_file(encoder, read(tmp_path / name, content), tmp_path / "out/v.npy")
    assert list((tmp_path / "out").iterdir()) == []


def test_unwritable_output_raises_output_error(encoder: Encoder, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        encode_file(encoder, records("a"), tmp_path / "missing" / "v.npy")


def test_full_disk_raises_output_error(encoder: Encoder) -> None:
    with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(OutputError, match="No space left"):
        encode_file(encoder, records("a"), full)


def test_a_pipe_is_written_to_and_not_replaced(encoder: Encoder, tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(pipe.read_bytes)
        encode_file(encoder, records("a man"), link)
        assert orjson.loads(read.result(timeout=60))["text"] == "a man"
    assert pipe.is_fifo()
    assert link.is_symlink()
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(UsageError, match="cannot hold an array"):
        encode_file(encoder, records("a man"), tmp_path / "pipe.npy")


def test_other_jsonl_fields_keep_their_bytes(tmp_path: Path) -> None:
    line = b'{"id": 12345678901234567890123, "price": 1.10, "text": "a man" }'
    assert list(read(tmp_path / "a.jsonl", line)) == [("a man", line)]


def test_existing_vector_is_replaced(encoder: Encoder, tmp_path: Path) -> None:
    out = io.BytesIO()
    encode_file(encoder, read(tmp_path / "a.jsonl", b'{"embedding": [1], "text": "a man"}'), out)
    assert out.getvalue().count(b"embedding") == 1
    assert len(orjson.loads(out.getvalue())["embedding"]) == HIDDEN


def test_text_field_equal_to_vector_field_is_rejected() -> None:
    done = CliRunner().invoke(cli, ["encode", "--text-field", "embedding"])
    assert isinstance(done.exception, UsageError)
    assert "'embedding'" in done.exception.message


@given(st.integers(0, 10**18), st.integers(1, 10_000))
def test_npy_header_has_constant_length(rows: int, dimensions: int) -> None:
    assert len(npy_header(rows, dimensions)) == len(npy_header(0, dimensions))


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """`es-sbert encode` with a tiny model; the texts are written to its standard input."""
    folder = write_tiny_bert(tmp_path / "tiny", max_tokens=8)
    program = [sys.executable, "-m", "es_sbert.cli.main", "encode", "--model", str(folder), "--precision", "fp32"]

    def run(*arguments: str, texts: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"ES_SBERT_CACHE": str(tmp_path / "cache")}
        return subprocess.run(
            [*program, "--device", "cpu", *arguments], input=texts, env=environment, capture_output=True, text=True
        )

    return run


@pytest.mark.parametrize("arguments", [(), ("-o", "-")])
def test_encode_command_reads_lines_from_stdin(command: Command, arguments: tuple[str, ...]) -> None:
    result = command(*arguments, texts="a man\n" + "cat " * 20)
    assert result.returncode == 0, result.stderr
    assert [list(orjson.loads(line)) for line in result.stdout.splitlines()] == [["text", "embedding"]] * 2
    assert "2 texts" in result.stderr
    assert "1 text was longer than 8 tokens and was truncated (14 tokens lost)" in result.stderr
    assert not Path("-").exists()


def test_encode_command_reads_json_lines_from_stdin(command: Command) -> None:
    result = command("--format", "jsonl", "--text-field", "a", texts='{"a": "a man", "id": 1}\n')
    assert [list(orjson.loads(line)) for line in result.stdout.splitlines()] == [["a", "id", "embedding"]]


def test_text_field_is_read_as_everywhere_else(tmp_path: Path) -> None:
    nested = ({"a": {"b": "a man"}}, {"a.b": "a man"}, {"a": [{"b": "a man"}, {"c": 1}]}, {"a": {"b": ["a man", None]}})
    lines = b"\n".join(map(orjson.dumps, nested))
    assert [text for text, _ in read(tmp_path / "a.jsonl", lines, "a.b")] == ["a man"] * 4
    several = orjson.dumps({"a": [{"b": "a man"}, {"b": "the cat"}]})
    assert [text for text, _ in read(tmp_path / "a.jsonl", several, "a.b")] == ["a man\nthe cat"]
    for record in ({"a": {"c": "x"}}, {"a": {"b": 7}}, {"a": "x"}):
        with pytest.raises(SourceError, match=r"a.jsonl:1: the text field a.b is"):
            list(read(tmp_path / "a.jsonl", orjson.dumps(record), "a.b"))


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
