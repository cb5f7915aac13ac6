"""`es-sbert distill`: distill a sentence encoder into a smaller or static one."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli.analysis import file_reading
from es_sbert.cli.options import (
    FILE_TYPE,
    file_options,
    json_option,
    select_options,
    setting_options,
    text_options,
    training_options,
)
from es_sbert.cli.output import print_message
from es_sbert.errors import UsageError
from es_sbert.messages import escape_unprintable, pluralize
from es_sbert.settings import Student

if TYPE_CHECKING:
    from es_sbert.training.distillation import Distillation


@cloup.command()
@click.argument("model")
@option_group(
    "Student",
    setting_options(Student, "layers N", "base MODEL"),
    click.option("--static", is_flag=True, help="Replace the transformer with a table of token vectors."),
    click.option(
        "-o", "--output", type=FILE_TYPE, required=True, metavar="FOLDER", help="Folder to write; new or empty."
    ),
    click.option("--name", help="Name for --model.  [default: that of FOLDER]"),
)
@option_group(
    "Texts",
    click.option(
        "--texts",
        multiple=True,
        metavar="FILE",
        help="File of texts to train on, as es-sbert ingest reads it; no labels are needed. Repeatable.",
    ),
    text_options,
    file_options(),
)
@option_group(
    "Training",
    setting_options(Student, "epochs", "batch", "learning_rate", "seed", "precision"),
    training_options,
    json_option("Print the result as JSON on stdout."),
)
def distill(model: str, static: bool, output: Path, texts: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Distill MODEL into a smaller, faster student.

    The student has some of MODEL's layers (--layers), is a smaller model (--base), or has no layers: with --static, the
    vector of a text is the mean of its token vectors. It is trained toward MODEL's vectors of your texts, which need no
    labels. Its vectors have the dimensions of MODEL's and are compared by cosine too. An index of MODEL has to be
    loaded again. The student is exported to a checked ONNX bundle and registered (es-sbert model list).

    A tenth of the texts, at most 1,000, chooses the best checkpoint: the summary shows how near the student's vectors
    are to MODEL's on these texts, before and after training. Without texts, --static writes an untrained student, with
    a note.

    \b
    Examples:
      es-sbert distill all-MiniLM-L6-v2 --layers 3 --texts docs.jsonl --text-field title -o minilm-3
      es-sbert distill all-MiniLM-L6-v2 --static --texts docs.jsonl --texts queries.txt -o minilm-static
      es-sbert distill bge-small-en-v1.5 --layers 4 --texts docs.csv -o bge-4
      es-sbert distill bge-small-en-v1.5 --base all-MiniLM-L6-v2 --texts docs.jsonl -o minilm-bge
    """
    from es_sbert import training
    from es_sbert.ingest.read_texts import read_file_texts

    training.require_training()
    if static == (options["layers"] is not None or options["base"] is not None):
        raise UsageError(
            "exactly one of --static and --layers or --base is required",
            "Use --layers N for fewer layers, --base MODEL for another transformer, or --static for none.",
        )
    found: list[str] = []
    if texts:
        read = read_file_texts(texts, **file_reading(options))
        for line in read.skipped.lines():
            print_message(line)
        found = read.texts
        if not found:
            raise UsageError(
                f"{', '.join(texts)} contain no text", "Pass files with texts, or set their field: --text-field."
            )
    began = time.monotonic()
    arguments = select_options(options, {*Student.model_fields, "device", "resume", "name"})
    student = training.distill_model(model, output, found, register=True, report=print_message, **arguments)
    if as_json:
        click.echo(json.dumps(asdict(student), indent=2, default=str))
    else:
        click.echo(distill_summary(model, student, time.monotonic() - began))


def distill_summary(teacher: str, student: Distillation, seconds: float) -> str:
    """Format a summary: the training texts, the similarity of the student to its teacher, the folder."""
    lines = []
    teacher = escape_unprintable(teacher)
    if not student.texts:
        lines.append("This student is untrained. Train it on your texts for better vectors: --texts FILE")
    elif student.cosine is not None and student.start_cosine is not None:
        lines.append(f"{pluralize(student.texts, 'text')}, {student.dev_texts:,} more to choose the checkpoint")
        gain = f"{student.start_cosine:.2f} → {student.cosine:.2f}"
        lines.append(f"mean cosine × 100 to {teacher} on the texts that chose the checkpoint: {gain}")
    lines.append(f"→ {escape_unprintable(str(student.folder))} (fingerprint {student.fingerprint}), {seconds:,.0f} s")
    return "\n".join(lines)
