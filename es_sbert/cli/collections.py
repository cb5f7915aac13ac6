"""Where the commands that analyse a collection take its texts from, and how they write what they find."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from cloup import option_group

from es_sbert.cli.logs import is_json, log_format_option
from es_sbert.cli.options import (
    connection_options,
    encoder_options,
    engine_settings,
    format_option,
    stacked,
    text_template_option,
    vector_field_option,
)
from es_sbert.errors import OutputError, SourceError, UsageError
from es_sbert.events import say
from es_sbert.extras import require
from es_sbert.output import is_stream, written
from es_sbert.printable import printable

if TYPE_CHECKING:
    from es_sbert.analysis import TextCollection
    from es_sbert.analysis.collection import OnProgress
    from es_sbert.engines.protocol import Json

# Characters of a text that are shown to people.
_SHOWN = 200


# FILES or --index, and how texts are read; collect all but the files with `read_collection`.
source_options = stacked(
    option_group(
        "Texts",
        click.option("--index", help="Read documents and their vectors from this index or alias."),
        click.option(
            "--filter", "filter_text", metavar="JSON", help="With --index: query that every document must match."
        ),
        vector_field_option,
        click.option(
            "--text-field",
            "text_fields",
            multiple=True,
            help="Field of the text; several are joined, each on its own lines.  [default: text]",
        ),
        text_template_option,
        click.option("--id-field", help="Field of the id.  [default: texts are named FILE:LINE]"),
        click.option("--distinct", is_flag=True, help="Use identical texts only once."),
        format_option,
    ),
    encoder_options,
    connection_options,
)

_FILE = click.Path(path_type=Path, dir_okay=False)
# Check the files with `check_outputs`.
output_options = option_group(
    "Output",
    click.option("-o", "--output", type=_FILE, help="Write JSONL to this file instead of printing."),
    click.option("--json", "as_json", is_flag=True, help="Print JSONL: one JSON object a line."),
    click.option(
        "--html",
        type=_FILE,
        help="Write an HTML page with a map of the texts instead of printing; it works offline.",
    ),
    log_format_option,
)


def check_outputs(output: Path | None, html: Path | None) -> None:
    """Make sure that files can be written, before texts are read and embedded.

    Raises:
        OutputError: a folder is missing, or closed to this user.
        UsageError: what makes the page is not installed.
    """
    if html is not None:
        require("analysis", "sklearn")
    for path in (output, html):
        if path is None or is_stream(path):
            continue
        folder = path.resolve().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            reason = "this user may not write to its folder" if folder.is_dir() else "its folder does not exist"
            raise OutputError(f"{path} cannot be written: {reason}", "Name a file in another folder.")


def read_filter(filter_text: str | None) -> Json | None:
    """The query of --filter.

    Raises:
        UsageError: it is none.
    """
    from es_sbert.search.filters import parse_filter

    return None if filter_text is None else parse_filter(filter_text)


def read_collections(inputs: Sequence[Sequence[str]], *, index: str | None, filter_text: str | None, distinct: bool,
                     format: str, text_fields: Sequence[str], text_template: str | None, id_field: str | None,
                     vector_field: str, model: str | None, device: str, precision: str, threads: int | None,
                     fields: Sequence[str] = (), **connection: Any) -> list[TextCollection]:  # fmt: skip
    """The collection of an index, or one of each list of files; what was left out of them is told.

    Args:
        inputs: Lists of files.
        fields: Further fields to keep of each record or document.

    Raises:
        UsageError: options that do not go together.
        SourceError, ModelError, EngineError: the texts cannot be read or embedded.
    """
    check_source(index, filter_text, text_fields, text_template, id_field, format)
    if index is not None:
        found = [_of_index(index, vector_field, filter_text, fields, connection)]
    else:
        template = _template(text_fields, text_template)
        reading = {"template": template, "id_field": id_field, "format": format, "fields": fields}
        found = _of_files(inputs, reading, model=model, device=device, precision=precision, threads=threads)
    if distinct:
        found = [collection.distinct() for collection in found]
    for collection in found:
        for line in collection.skipped.lines():
            say(line)
    return found


@contextmanager
def shown_progress(before: int = 0) -> Iterator[OnProgress]:
    """A progress bar on a terminal, a line every few seconds elsewhere.

    Args:
        before: Documents that an earlier run has done.
    """
    from es_sbert.ingest.progress import ProgressTracker, meter_for

    tracker = ProgressTracker()
    with closing(meter_for(sys.stderr, quiet=False, events=is_json())) as meter:

        def show(done: int, total: int) -> None:
            fraction = (done - before) / (total - before) if total > before else None
            meter.show(tracker.snapshot(done - before, done - before, fraction))

        yield show


def check_files_or_index(files: Sequence[str], index: str | None) -> None:
    """Make sure that texts come from one kind of source.

    Raises:
        UsageError: neither is given, or both are.
    """
    if bool(files) == (index is not None):
        command = click.get_current_context().command_path
        raise UsageError(
            f"texts come from FILES or from --index, and {'both are' if files else 'neither is'} given",
            f"Give one of them, e.g. `{command} --index docs`.",
        )


def check_source(index: str | None, filter_text: str | None, text_fields: Sequence[str], text_template: str | None,
                 id_field: str | None, format: str) -> None:  # fmt: skip
    """Make sure that the options of an index and those of files are not mixed.

    Raises:
        UsageError: they are.
    """
    if filter_text is not None and index is None:
        raise UsageError("--filter is given without --index", "Leave it out, or name an index.")
    if index is not None and (text_fields or text_template or id_field or format != "auto" or _is_model_given()):
        raise UsageError(
            "with --index the vectors of the index are compared, which have a model, texts and ids already",
            "Leave --text-field, --text-template, --id-field, --format and --model out.",
        )


def _is_model_given() -> bool:
    """Whether --model is on the command line; ES_SBERT_MODEL in the environment is no contradiction."""
    return click.get_current_context().get_parameter_source("model") is ParameterSource.COMMANDLINE


def check_two_texts(count: int) -> None:
    """Make sure that there is anything to compare.

    Raises:
        SourceError: there are fewer than two texts.
    """
    if count < 2:
        of_index = click.get_current_context().params.get("index") is not None
        raise SourceError(
            f"a comparison needs two texts, and there is {'one' if count else 'none'}",
            "Check --vector-field and --filter, or load documents with `es-sbert ingest`."
            if of_index
            else "Give more texts.",
        )


def shown_text(collection: TextCollection, position: int) -> str:
    """Id and beginning of a text, for people."""
    text = printable(" ".join(collection.texts[position].split()))
    return f"{printable(collection.ids[position])}  {text[:_SHOWN]}{'…' if len(text) > _SHOWN else ''}"


def write_found(objects: Iterable[Json], lines: Iterable[str], output: Path | None, *, as_json: bool,
                html: Path | None = None, report: Callable[[], Iterable[bytes]] | None = None) -> None:  # fmt: skip
    """Write what was found.

    Args:
        objects: For machines: to the output, or with `as_json` to stdout.
        lines: For people, on stdout, where no other form is asked for.
        html: Gets the page that `report` makes.

    Raises:
        OutputError: a file cannot be written.
    """
    from es_sbert.streams.json_lines import object_bytes

    if html is not None and report is not None:
        _write_file(html, report())
    if output is None and not as_json:
        for line in lines if html is None else ():
            click.echo(line)
        return
    encoded = (object_bytes(one) + b"\n" for one in objects)
    if output is not None:
        _write_file(output, encoded)
        return
    sys.stdout.buffer.writelines(encoded)
    sys.stdout.buffer.flush()


def _write_file(path: Path, parts: Iterable[bytes]) -> None:
    try:
        with written(path) as target:
            target.writelines(parts)
            target.flush()
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {error.strerror}", "Name another file, or free disk space."
        ) from error


def _of_index(index: str, vector_field: str, filter_text: str | None, fields: Sequence[str],
              connection: dict[str, Any]) -> TextCollection:  # fmt: skip
    from es_sbert.analysis import read_index
    from es_sbert.engines.connect import connect

    filter = read_filter(filter_text)
    with closing(connect(engine_settings(**connection))) as engine, shown_progress() as show:
        return read_index(engine, index, vector_field, filter=filter, fields=fields, on_progress=show)


def _of_files(inputs: Sequence[Sequence[str]], reading: dict[str, Any], **loading: Any) -> list[TextCollection]:
    from es_sbert.analysis import read_files
    from es_sbert.ingest.sources.formats import Format
    from es_sbert.loading import load_encoder, report_warnings

    name = reading.pop("format")
    format = None if name == "auto" else Format(name)
    with load_encoder(loading.pop("model"), report=say, **loading) as encoder:
        report_warnings(encoder, say)
        found = []
        for files in inputs:
            with shown_progress() as show:
                found.append(read_files(files, encoder, format=format, on_progress=show, **reading))
        return found


def _template(text_fields: Sequence[str], text_template: str | None) -> Any:
    from es_sbert.index.text import TextTemplate

    if text_template is None:
        return TextTemplate.of_fields(text_fields or ("text",))
    if text_fields:
        raise UsageError("--text-field and --text-template are both given", "Give one of them.")
    return TextTemplate.parse(text_template)
