"""`es-sbert encode`: embed the texts of a file into a .npy or JSONL file, in bounded memory."""

from __future__ import annotations

import io
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, get_args

import click
import cloup
from cloup import option_group

from es_sbert.bundle.modules import PromptKind
from es_sbert.cli.logs import log_format_option
from es_sbert.cli.options import OUTPUT_FILE_TYPE, encoder_arguments, encoder_options, file_options, select_options
from es_sbert.errors import OutputError, UsageError
from es_sbert.filesystem import is_stream, open_output
from es_sbert.messages import be, pluralize
from es_sbert.messages import log_message as report

if TYPE_CHECKING:
    from es_sbert.encoder.encoder import Encoder
    from es_sbert.encoder.text_pipeline import EncoderInfo
    from es_sbert.vectors import Vectors

VECTOR_FIELD = "embedding"


@cloup.command()
@click.argument("file", default="-")
@option_group(
    "Options",
    click.option(
        "-o",
        "--output",
        type=OUTPUT_FILE_TYPE,
        help="Output file. A name that ends in .npy gives a NumPy array (texts × dimensions, float32), any other "
        "JSONL.  [default: JSONL on stdout]",
    ),
    file_options(),
    click.option(
        "--text-field",
        default="text",
        help="Field of the text; dotted if nested. The values of a list are joined by line feeds.",
    ),
    click.option(
        "--as",
        "kind",
        type=click.Choice(get_args(PromptKind)),
        help="Prepend the model's prompt for queries or documents.",
    ),
    log_format_option,
)
@encoder_options
def encode(
    file: str,
    output: Path | None,
    text_field: str,
    kind: Any,
    **options: Any,
) -> None:
    """Turn texts into sentence vectors.

    FILE is read as by es-sbert ingest: plain lines, JSON Lines, CSV, TSV or Parquet, by its name. Without it, or with
    -, stdin is read, as plain lines by default. The output keeps the order of the input, one vector per record. JSONL
    output is one object per line: the record, or {"text": …} for a plain line, with the vector under "embedding".

    \b
    Examples:
      echo "A man plays a guitar." | es-sbert encode
      es-sbert encode sentences.txt -o vectors.npy
      es-sbert encode docs.jsonl --text-field title -o docs-with-vectors.jsonl
    """
    from es_sbert.encoder.encoder import Encoder
    from es_sbert.ingest.read_texts import read_texts
    from es_sbert.ingest.sources.file_sources import STDIN
    from es_sbert.io.file_formats import FileFormat, FileOptions

    if text_field.partition(".")[0] == VECTOR_FIELD:
        raise UsageError(
            f"the text field {text_field!r} conflicts with {VECTOR_FIELD!r}, where the vector is written",
            "Rename the text field.",
        )
    if file == STDIN and options["format"] is None:
        options["format"] = FileFormat.LINES
    reading = FileOptions(**select_options(options, FileOptions.__annotations__))
    with Encoder(**encoder_arguments(options), report=report) as encoder:
        records = read_texts(file, reading, text_field, left_out=VECTOR_FIELD)
        summary = encode_file(encoder, records, output or sys.stdout.buffer, kind=kind)
        report(summary.describe(encoder.info))


@dataclass
class EncodeSummary:
    """The result of `encode_file`.

    Attributes:
        texts: Texts read, each of which has a vector in the output.
        truncated: Texts longer than the model reads.
        lost_tokens: Tokens of these texts that were not read.
        max_tokens: Maximum tokens that the model reads of a text.
        seconds: Wall time.
    """

    texts: int = 0
    truncated: int = 0
    lost_tokens: int = 0
    max_tokens: int = 0
    seconds: float = 0.0

    def describe(self, info: EncoderInfo) -> str:
        """Format the summary as lines of text."""
        from es_sbert.encoder.encoder import preparation_text

        rate = self.texts / self.seconds if self.seconds else 0.0
        lines = [
            f"{pluralize(self.texts, 'text')} in {self.seconds:.1f} s ({rate:,.0f}/s) by {info.model} "
            f"({info.variant}, {info.provider}, {info.device}){preparation_text(info.prepared_seconds)}"
        ]
        if self.truncated:
            lines.append(
                f"{pluralize(self.truncated, 'text')} {be(self.truncated, past=True)} longer than "
                f"{self.max_tokens} tokens and {be(self.truncated, past=True)} truncated "
                f"({pluralize(self.lost_tokens, 'token')} lost)"
            )
        return "\n".join([*lines, *(f"Warning: {warning}" for warning in info.warnings)])


def encode_file(
    encoder: Encoder,
    records: Iterable[tuple[str, bytes]],
    target: Path | BinaryIO,
    *,
    kind: PromptKind | None = None,
) -> EncodeSummary:
    """Encode texts and write them with their vectors, in order.

    Args:
        records: Each text, and the JSON object to which its vector is added.
        target: A path (with the suffix .npy, an array is written, otherwise JSONL), or a stream, to which JSONL is
            written. A file appears under its name only when it is complete; a pipe or a device is written to directly.

    Raises:
        OutputError: the output cannot be written (no such folder, a full disk).
        UsageError: an array cannot be written to a pipe.
        BrokenPipeError: the reader has closed the stream.
    """
    started = time.perf_counter()
    summary = EncodeSummary(max_tokens=encoder.pipeline.input_limit(kind))
    parts = _encode_records(encoder, records, kind, summary)
    is_array = isinstance(target, Path) and target.suffix == ".npy"
    if isinstance(target, Path) and is_array and is_stream(target):
        raise UsageError(f"{target} is a pipe or a device, which cannot hold an array", "Write it to a file.")
    try:
        with open_output(target) if isinstance(target, Path) else nullcontext(target) as file:
            if is_array:
                _write_npy(file, parts, encoder.info.dimensions)
            else:
                _write_jsonl(file, parts)
    except BrokenPipeError:
        raise
    except OSError as error:
        name = target if isinstance(target, Path) else "the output"
        raise OutputError(
            f"{name} cannot be written: {error.strerror}", "Free space there, or choose another `output`."
        ) from error
    summary.seconds = time.perf_counter() - started
    return summary


def _encode_records(
    encoder: Encoder, records: Iterable[tuple[str, bytes]], kind: PromptKind | None, summary: EncodeSummary
) -> Iterator[tuple[list[bytes], Vectors]]:
    """Yield windows of records with their vectors, *shape* ``(records, dimensions)``, and count them in `summary`."""
    pending: deque[bytes] = deque()

    def texts() -> Iterator[str]:
        for text, line in records:
            pending.append(line)
            yield text

    for result in encoder.encode_stream(texts(), kind):
        count = len(result.vectors)
        summary.texts += count
        summary.truncated += int(result.truncated.sum())
        summary.lost_tokens += int((result.tokens - summary.max_tokens).clip(0).sum())
        yield [pending.popleft() for _ in range(count)], result.vectors


def _write_jsonl(file: BinaryIO, parts: Iterable[tuple[list[bytes], Vectors]]) -> None:
    import orjson

    for lines, vectors in parts:
        for line, vector in zip(lines, vectors, strict=True):
            numbers = orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY)
            file.write(b'%s,"%s":%s}\n' % (line[:-1], VECTOR_FIELD.encode(), numbers))
        file.flush()


def _write_npy(file: BinaryIO, parts: Iterable[tuple[list[bytes], Vectors]], dimensions: int) -> None:
    file.write(npy_header(0, dimensions))  # the number of rows is only known at the end
    rows = 0
    for _, vectors in parts:
        file.write(vectors.astype("<f4", copy=False).tobytes())
        rows += len(vectors)
    file.seek(0)
    file.write(npy_header(rows, dimensions))


def npy_header(rows: int, dimensions: int) -> bytes:
    """Return the header of a .npy file of `(rows, dimensions)` little-endian float32.

    NumPy reserves space for a longer first axis, so the header has the same length for any number of rows.
    Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
    """
    import numpy as np

    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (rows, dimensions)})
    return header.getvalue()
