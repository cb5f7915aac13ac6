"""`es-sbert model rotate`: rotate the vectors of a model, so that truncation to fewer dimensions loses less."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.analysis_input import file_reading, progress_meter
from es_sbert.cli.output import align_columns, print_message, print_report
from es_sbert.messages import escape_unprintable, pluralize

if TYPE_CHECKING:
    from es_sbert.analysis.dimension_reduction import Rotation
    from es_sbert.encoder.encoder import Encoder
    from es_sbert.vectors import Vectors


@cloup.command()
@click.argument("model")
@click.argument("files", nargs=-1, required=True)
@option_group(
    "Options",
    click.option(
        "--output", "-o", type=shared.FILE_TYPE, required=True, metavar="FOLDER", help="New folder of the model."
    ),
    click.option(
        "--sample",
        type=click.IntRange(min=100),
        default=20_000,
        help="Maximum number of texts to use, chosen at random.",
    ),
    shared.seed_option,
    click.option(
        "--measure",
        "lengths",
        type=click.IntRange(min=1),
        multiple=True,
        metavar="N",
        help="Measure vectors truncated to N dimensions. Repeatable.  [default: 32, 64, 96, 128, 192, 256, …]",
    ),
    shared.json_option,
    shared.text_field_option("Field of the text", "text"),
    shared.text_template_option,
    shared.file_options,
)
@option_group("Model", shared.device_options)
def rotate(model: str, files: tuple[str, ...], output: Path, as_json: bool, **options: Any) -> None:
    """Write a copy of MODEL whose vectors can be truncated to fewer dimensions with less loss.

    The vectors of the texts in FILES are analyzed (principal component analysis), and a rotation is appended to the
    model, so that the first dimensions hold the most information. Cosines of full-length vectors do not change. To
    truncate the vectors, use --dimensions or the model name FOLDER@N. This needs no labels and no training, only texts
    like those that you will search; ten thousand are enough.

    The table shows the recall of truncated vectors with and without the rotation: the share of a text's ten nearest
    neighbors that they still find. For the table, the rotation is computed from three quarters of the texts and
    measured on the last quarter.

    \b
    Examples:
      es-sbert model rotate all-MiniLM-L6-v2 docs.jsonl --text-field body -o minilm-rotated
      es-sbert ingest --index docs --model minilm-rotated@128 docs.jsonl
    """
    from es_sbert.analysis.dimension_reduction import fit_rotation
    from es_sbert.bundle.local_registry import try_register_model
    from es_sbert.bundle.model_lookup import resolve_model
    from es_sbert.bundle.rotated_model import check_new_folder, write_rotated_model
    from es_sbert.bundle.sentence_model import read_sentence_model
    from es_sbert.encoder.encoder import Encoder, report_warnings

    check_new_folder(output)
    source = read_sentence_model(resolve_model(model), model)
    texts = _sample_texts(files, options)
    with Encoder(model, report=print_message, **shared.encoder_arguments(options)) as encoder:
        report_warnings(encoder, print_message)
        vectors = _embed(texts, encoder)
    found = fit_rotation(vectors, options["seed"], sorted(options["lengths"]))
    written = write_rotated_model(source, found.axes, output)
    try_register_model(output, written.fingerprint)
    report = {"model": source.name, "folder": str(output), "fingerprint": written.fingerprint, **found.as_json()}
    print_report(report, _report_lines(source.name, output, written.fingerprint, found), as_json=as_json)


def _sample_texts(files: tuple[str, ...], options: dict[str, Any]) -> list[str]:
    """Read distinct texts, a random sample if there are more than --sample."""
    import numpy as np

    from es_sbert.analysis.text_collection import read_file_texts

    read = read_file_texts(files, **file_reading(options))
    for line in read.skipped.lines():
        print_message(line)
    distinct = list(dict.fromkeys(read.texts))
    if len(distinct) <= options["sample"]:
        return distinct
    chosen = np.random.default_rng(options["seed"]).choice(len(distinct), options["sample"], replace=False)
    return [distinct[place] for place in np.sort(chosen)]


def _embed(texts: list[str], encoder: Encoder) -> Vectors:
    """Embed texts. *Shape:* ``(texts with tokens, dimensions)``."""
    import numpy as np

    vectors, done = np.empty((len(texts), encoder.info.dimensions), np.float32), 0
    with progress_meter() as show:
        for part in encoder.encode_stream(texts, "document"):
            begin, done = done, done + len(part.vectors)
            vectors[begin:done] = part.vectors
            show(done, len(texts))
    # Drop texts without tokens, whose vectors are zero.
    return vectors[vectors.any(axis=1)]


def _report_lines(name: str, output: Path, fingerprint: str, found: Rotation) -> list[str]:
    rows = [("dimensions", "recall@10 truncated", "rotated and truncated")]
    rows += [(str(one.dimensions), f"{one.recall:.4f}", f"{one.rotated_recall:.4f}") for one in found.quality]
    return [
        escape_unprintable(f"{name} → {output} (fingerprint {fingerprint})"),
        f"rotation computed from {pluralize(found.texts, 'text')}; for the table, it is computed without "
        f"{found.held_out:,} of them and measured on those",
        *align_columns(rows),
        escape_unprintable(f"To truncate its vectors: --model {output}@N"),
    ]
