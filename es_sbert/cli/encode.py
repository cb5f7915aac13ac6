"""`es-sbert encode`: embed the texts of a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, BinaryIO

import click
import cloup
from cloup import option_group

from es_sbert.cli.logs import log_format_option
from es_sbert.cli.options import OUTPUT_FILE_TYPE, encoder_options, encoding_option
from es_sbert.messages import log_message as report


@cloup.command()
@click.argument("file", type=click.File("rb"), default="-")
@option_group(
    "Options",
    click.option(
        "-o",
        "--output",
        type=OUTPUT_FILE_TYPE,
        help="Output file. A name that ends in .npy gives a NumPy array (texts × dimensions, float32), any other "
        "JSONL.  [default: JSONL on stdout]",
    ),
    click.option(
        "--format",
        "form",
        type=click.Choice(["lines", "jsonl"]),
        default="lines",
        help="Format of the input: one text per line, or one JSON object per line.",
    ),
    click.option(
        "--text-field",
        default="text",
        help="Field of the text, for jsonl; dotted if nested. The values of a list are joined by line feeds.",
    ),
    encoding_option,
    click.option(
        "--as",
        "kind",
        type=click.Choice(["query", "document"]),
        help="Prepend the model's prompt for queries or documents.",
    ),
    log_format_option,
)
@encoder_options
def encode(
    file: BinaryIO, output: Path | None, form: str, text_field: str, encoding: str | None, kind: Any, **options: Any
) -> None:
    """Turn texts into sentence vectors.

    FILE holds one text per line, and may be compressed (gzip, zstd); without it, or with -, stdin is read. The output
    keeps the order of the input, one vector per line. JSONL output is one object per line: the input object, or
    {"text": …}, with the vector under "embedding".

    \b
    Examples:
      echo "A man plays a guitar." | es-sbert encode
      es-sbert encode sentences.txt -o vectors.npy
      es-sbert encode docs.jsonl --format jsonl --text-field title -o docs-with-vectors.jsonl
    """
    from es_sbert.encoder.encode_file import encode_file
    from es_sbert.encoder.encoder import Encoder
    from es_sbert.index.text_template import field_text
    from es_sbert.io.text_encoding import check_encoding

    reading: dict[str, Any] = {"form": form, "text_field": text_field, "text_of": field_text, "kind": kind}
    if encoding is not None:
        reading["encoding"] = check_encoding(encoding)
    with Encoder(**options, kind=kind, report=report) as encoder:
        summary = encode_file(encoder, file, output or sys.stdout.buffer, **reading)
        report(summary.describe(encoder.info))
