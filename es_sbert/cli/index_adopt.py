"""`es-sbert index adopt`: use vectors that another program wrote, without embedding the documents again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli.options import (
    FiniteFloatRange,
    connection_options,
    device_option,
    engine_settings,
    model_option,
    retry_seconds_option,
    threads_option,
    vector_field_option,
)
from es_sbert.config import DEFAULT_MODEL

if TYPE_CHECKING:
    from es_sbert.index.adopt_sample import ComparedDocument


@cloup.command()
@click.argument("name")
@option_group(
    "Options",
    vector_field_option,
    click.option(
        "--text-field",
        "text_fields",
        multiple=True,
        help="Field of the text that was embedded, dotted for nested ones; several are joined, each on its own lines.  "
        "[default: text]",
    ),
    click.option("--text-template", help="Text that was made of several fields, e.g. '{title}. {body}'."),
    click.option("--dry-run", is_flag=True, help="Check the sample and write nothing to the index."),
    click.option(
        "--failed",
        type=click.Path(path_type=Path),
        help='Write the failing documents here, as JSON Lines: {"id": …, "cosine": …}.',
    ),
    click.option("--json", "as_json", is_flag=True, help="One JSON object."),
    retry_seconds_option,
)
@option_group(
    "Comparison",
    click.option(
        "--sample",
        type=click.IntRange(min=1, max=10_000),
        default=300,
        show_default=True,
        help="Documents to embed and compare before anything is written.",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Which documents those are."),
    click.option(
        "--min-cosine",
        type=FiniteFloatRange(min=0, max=1, min_open=True),
        default=0.999,
        show_default=True,
        help="Cosine with the model's own vector from which on a stored vector counts as the model's.",
    ),
    click.option(
        "--share",
        type=FiniteFloatRange(min=0, max=1, min_open=True),
        default=0.99,
        show_default=True,
        help="Share of the sampled documents that must have such a vector.",
    ),
    click.option(
        "--all",
        "all_documents",
        is_flag=True,
        help="Once the sample has passed, compare every other document too before it is adopted.",
    ),
)
@connection_options
@option_group(
    "Model",
    model_option,
    device_option,
    click.option(
        "--precision",
        type=click.Choice(["auto", "fp32", "int8", "fp16"]),
        default="fp32",
        show_default=True,
        help="What to compare with. int8 may differ from fp32 by more than --min-cosine allows.",
    ),
    threads_option,
)
def adopt(
    name: str,
    vector_field: str,
    model: str | None,
    text_fields: tuple[str, ...],
    text_template: str | None,
    sample: int,
    seed: int,
    all_documents: bool,
    min_cosine: float,
    share: float,
    failed: Path | None,
    dry_run: bool,
    as_json: bool,
    retry_seconds: float,
    device: str,
    precision: str,
    threads: int | None,
    **connection: Any,
) -> None:
    """Take over the vectors that another program wrote to the index NAME, without embedding its documents again.

    The command embeds the texts of a random sample of documents and compares the result with the stored vectors.
    If enough of them agree, it writes the model and the text into the mapping, and into each document the metadata
    of its vector (model, hash of the text). From then on es-sbert treats the index as its own: searches, the
    gateway, and loads, which embed a document again when its text changes. Otherwise it writes nothing, shows how
    far the vectors are from the model's, and exits with 1.

    Documents that fail are listed and marked: `es-sbert ingest --index NAME` embeds them again. Documents outside
    the sample are adopted unseen, unless --all is given. Run the command again to go on after an interruption, or
    to adopt documents that were written since. The index should be at rest.

    \b
    Examples:
      es-sbert index adopt docs --model all-MiniLM-L6-v2 --text-field body --dry-run
      es-sbert index adopt docs --vector-field vector --text-template '{title} {body}'
      es-sbert index adopt docs --text-field body --all --failed failed.jsonl
    """
    import orjson

    from es_sbert.bundle.model_lookup import resolve_model
    from es_sbert.bundle.sentence_model import read_sentence_model
    from es_sbert.encoder.encoder import Encoder, report_warnings
    from es_sbert.engines.connect import connect
    from es_sbert.index.adopt import AdoptionSettings, adopt_vectors, adoption_lines
    from es_sbert.index.adopt_field import read_adoptable_field
    from es_sbert.index.privileges import ADOPT, SEARCH, require_privileges
    from es_sbert.index.text_template import check_name_conflicts, parse_text_options

    def say(message: str) -> None:
        click.echo(message, err=True)

    settings = AdoptionSettings(
        sample=sample,
        seed=seed,
        min_cosine=min_cosine,
        share=share,
        all_documents=all_documents,
        dry_run=dry_run,
        retry_seconds=retry_seconds,
    )
    text = parse_text_options(text_fields, text_template)
    if failed is not None:
        _check_failed_file(failed)
    with closing(connect(engine_settings(**connection))) as engine:
        field = read_adoptable_field(engine, name, vector_field, text)
        check_name_conflicts({vector_field: field.template})
        require_privileges(engine, field.state.name, SEARCH if dry_run else ADOPT)
        of_field = None if field.stored is None else field.stored.model
        model_name = model or of_field or DEFAULT_MODEL
        # Before the model is loaded, and perhaps exported, which takes a while.
        read = read_sentence_model(resolve_model(model_name), model_name)
        field.check_model(read.fingerprint, read.name, read.dimensions)
        with Encoder(model_name, device=device, precision=precision, threads=threads, report=say) as encoder:
            report_warnings(encoder, say)
            report = adopt_vectors(engine, field, encoder, settings, report=say)
    if failed is not None:
        _write_failed_file(failed, report.check.failing if report.written is None else report.written.failing)
    click.echo(orjson.dumps(report.as_json()) if as_json else "\n".join(adoption_lines(report, name)))
    if report.exit_code:
        raise SystemExit(report.exit_code)


def _check_failed_file(path: Path) -> None:
    """Notice before hours of work that the file cannot be written.

    Raises:
        OutputError: its folder is missing or not writable.
    """
    import os

    from es_sbert.errors import OutputError
    from es_sbert.filesystem import is_stream

    folder = path.resolve().parent
    if is_stream(path) or (folder.is_dir() and os.access(folder, os.W_OK) and not path.is_dir()):
        return
    raise OutputError(
        f"{path} cannot be written", "Give --failed a file in a folder that exists and that you may write to."
    )


def _write_failed_file(path: Path, failing: Sequence[ComparedDocument]) -> None:
    """One object a line, the most distant vector first.

    Raises:
        OutputError: the file cannot be written.
    """
    import orjson

    from es_sbert.errors import OutputError
    from es_sbert.filesystem import open_output

    try:
        with open_output(path) as file:
            file.writelines(orjson.dumps(one.as_json()) + b"\n" for one in failing)
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {error.strerror}", "Give --failed a file in a folder that you may write to."
        ) from error
