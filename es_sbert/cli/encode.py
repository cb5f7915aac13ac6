"""`es-sbert encode`: embed the texts of a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import cloup
from cloup import option_group

from es_sbert.cli.logs import log_format_option
from es_sbert.cli.options import OUTPUT_FILE_TYPE, encoder_options, file_options
from es_sbert.errors import UsageError
from es_sbert.messages import log_message as report


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
    file_options,
    click.option(
        "--text-field",
        default="text",
        help="Field of the text; dotted if nested. The values of a list are joined by line feeds.",
    ),
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
    file: str,
    output: Path | None,
    format: str,
    delimiter: str | None,
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
    from es_sbert.encoder.encode_file import VECTOR_FIELD, encode_file
    from es_sbert.encoder.encoder import Encoder
    from es_sbert.ingest.read_texts import read_texts
    from es_sbert.ingest.sources.file_sources import STDIN, FileOptions
    from es_sbert.io.file_formats import FileFormat

    if text_field.partition(".")[0] == VECTOR_FIELD:
        raise UsageError(
            f"the text field {text_field!r} conflicts with {VECTOR_FIELD!r}, where the vector is written",
            "Rename the text field.",
        )
    default = FileFormat.LINES if file == STDIN else None
    form = default if format == "auto" else FileFormat(format)
    reading = FileOptions(form, delimiter)
    with Encoder(**options, report=report) as encoder:
        records = read_texts(file, reading, text_field, left_out=VECTOR_FIELD)
        summary = encode_file(encoder, records, output or sys.stdout.buffer, kind=kind)
        report(summary.describe(encoder.info))
