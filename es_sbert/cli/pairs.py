"""`es-sbert pairs`: the most similar pairs of texts."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click

from es_sbert.cli.logs import log_format_option
from es_sbert.cli.options import Number, connection_options, encoder_options, engine_settings, vector_field_option
from es_sbert.errors import OutputError, SourceError, UsageError
from es_sbert.events import say
from es_sbert.printable import printable

if TYPE_CHECKING:
    from es_sbert.analysis import TextCollection

# Characters of a text that are shown to people.
_SHOWN = 200


class _Found(NamedTuple):
    """A pair, as it is printed."""

    first: int
    second: int
    cosine: float
    margin: float | None


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", nargs=-1)
@click.option("--index", help="Compare the documents of this index or alias by the vectors that it holds.")
@click.option("--filter", "filter_text", metavar="JSON", help="With --index: query that every document must match.")
@click.option(
    "--between",
    nargs=2,
    metavar="FILE FILE",
    help="Align two collections, such as translations: each text is in one pair at most, ranked by margin.",
)
@click.option("-k", "k", type=click.IntRange(min=1), help="Number of pairs.  [default: 100; all with --between]")
@click.option("--min-cosine", type=Number(-1, 1), default=-1.0, help="Drop pairs whose cosine is below this value.")
@click.option(
    "--min-margin", type=Number(0), help="With --between: drop pairs whose margin is below this value.  [default: 0]"
)
@click.option(
    "--neighbors",
    "neighbours",
    type=click.IntRange(min=1),
    help="With --between: nearest texts that a margin is relative to.  [default: 4]",
)
@click.option("--distinct", is_flag=True, help="Compare texts that occur several times only once.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a pair.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the pairs to this file, as JSONL."
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice(["auto", "jsonl", "csv", "tsv", "lines", "parquet", "arrow"]),
    default="auto",
    show_default=True,
    help="Format inside the compression; auto goes by each file's name.",
)
@click.option(
    "--text-field",
    "text_fields",
    multiple=True,
    help="Field of the text; several are joined, each on its own lines.  [default: text]",
)
@click.option("--text-template", help="Text made of several fields, e.g. '{title}. {body}'.")
@click.option("--id-field", help="Field of the id.  [default: texts are named FILE:LINE]")
@vector_field_option
@connection_options
@encoder_options
@log_format_option
def pairs(files: tuple[str, ...], index: str | None, filter_text: str | None, between: tuple[str, str] | None,
          k: int | None, min_cosine: float, min_margin: float | None, neighbours: int | None, distinct: bool,
          as_json: bool, output: Path | None, format_name: str, text_fields: tuple[str, ...], text_template: str | None,
          id_field: str | None, vector_field: str, model: str | None, device: str, precision: str,
          threads: int | None, **connection: Any) -> None:  # fmt: skip
    """Find the most similar pairs of texts.

    The texts come from FILES, which are embedded first, or from an index, whose vectors are read. All pairs are
    compared: the result is exact. Cosines are rounded to five decimals, and pairs with equal cosines are ordered by
    the position of their first, then of their second text. A document that is split into chunks counts once, by its
    most similar chunks.

    Documents without text or vector are left out and counted.

    \b
    Examples:
      es-sbert pairs tickets.jsonl --text-field title --id-field id
      es-sbert pairs --index docs --min-cosine 0.9 -k 1000 --json
      es-sbert pairs --between english.txt french.txt --min-margin 1.05 -o aligned.jsonl
    """
    from es_sbert.analysis import margin_pairs, most_similar_pairs
    from es_sbert.analysis.similarity import DEFAULT_K

    _check_sources(files, index, between, filter_text, min_margin, neighbours)
    if index is not None and (text_fields or text_template or id_field or format_name != "auto" or model):
        raise UsageError(
            "with --index the vectors of the index are compared, which have a model, texts and ids already",
            "Leave --text-field, --text-template, --id-field, --format and --model out.",
        )
    if index is not None:
        collections = [_of_index(index, vector_field, filter_text, connection)]
    else:
        reading = {"format": format_name, "text_fields": text_fields, "template": text_template, "id_field": id_field}
        inputs = [list(files)] if between is None else [[one] for one in between]
        collections = _of_files(inputs, reading, model=model, device=device, precision=precision, threads=threads)
    if distinct:
        collections = [some.distinct() for some in collections]
    begin = time.perf_counter()
    if between is None:
        texts = collections[0]
        if len(texts) < 2:
            raise SourceError(f"a pair needs two texts, and there {_are(len(texts))}", "Give more texts.")
        found = [_Found(*pair, None) for pair in most_similar_pairs(
            texts.vectors, k or DEFAULT_K, min_cosine=min_cosine, starts=texts.starts,
        )]  # fmt: skip
        second = texts
    else:
        texts, second = collections
        for name, some in zip(between, collections, strict=True):
            if not len(some):
                raise SourceError(f"{printable(name)} holds no text", "Give two files with texts.")
        found = [_Found(one, two, cosine, margin) for one, two, margin, cosine in margin_pairs(
            texts.vectors, second.vectors, k, neighbours=neighbours or 4, min_cosine=min_cosine,
            min_margin=min_margin or 0.0,
        )]  # fmt: skip
    seconds = time.perf_counter() - begin
    _write(found, texts, second, output, as_json=as_json)
    for some in collections:
        for line in some.skipped.lines():
            say(line)
    compared = f"{len(texts):,} texts" if between is None else f"{len(texts):,} and {len(second):,} texts"
    say(f"{len(found):,} pairs of {compared}, compared in {seconds:.1f} s")


def _are(count: int) -> str:
    return "is one" if count == 1 else "is none"


def _check_sources(files: Sequence[str], index: str | None, between: tuple[str, str] | None,
                   filter_text: str | None, min_margin: float | None, neighbours: int | None) -> None:  # fmt: skip
    given = [bool(files), index is not None, between is not None]
    if sum(given) != 1:
        raise UsageError(
            "texts come from FILES, from --index or from --between, and "
            f"{'none of them is' if not any(given) else 'more than one of them is'} given",
            "Name one of them, e.g. `es-sbert pairs sentences.txt`.",
        )
    if filter_text is not None and index is None:
        raise UsageError("--filter is given without --index", "Leave it out, or name an index.")
    if between is None and (min_margin is not None or neighbours is not None):
        raise UsageError("a margin is measured between two collections", "Add --between FILE FILE.")


def _of_index(index: str, vector_field: str, filter_text: str | None, connection: dict[str, Any]) -> TextCollection:
    from es_sbert.analysis import read_index
    from es_sbert.engines.connect import connect
    from es_sbert.search.filters import parse_filter

    filter = None if filter_text is None else parse_filter(filter_text)
    with closing(connect(engine_settings(**connection))) as engine:
        return read_index(engine, index, vector_field, filter=filter)


def _of_files(inputs: Sequence[Sequence[str]], reading: dict[str, Any], **loading: Any) -> list[TextCollection]:
    from es_sbert.analysis import read_files
    from es_sbert.index.text import TextTemplate
    from es_sbert.ingest.sources.formats import Format
    from es_sbert.loading import load_encoder

    if reading["template"] is not None and reading["text_fields"]:
        raise UsageError("--text-field and --text-template are both given", "Give one of them.")
    if reading["template"] is not None:
        template = TextTemplate.parse(reading["template"])
    else:
        template = TextTemplate.of_fields(reading["text_fields"] or ("text",))
    format = None if reading["format"] == "auto" else Format(reading["format"])
    with load_encoder(loading.pop("model"), report=say, **loading) as encoder:
        return [
            read_files(files, encoder, template=template, id_field=reading["id_field"], format=format)
            for files in inputs
        ]


def _write(found: Sequence[_Found], first: TextCollection, second: TextCollection, output: Path | None, *,
           as_json: bool) -> None:  # fmt: skip
    from es_sbert.output import written

    if output is None and not as_json:
        for pair in found:
            click.echo("\n".join(_readable(pair, first, second)))
        return
    try:
        with nullcontext(sys.stdout.buffer) if output is None else written(output) as target:
            _write_lines(target, _json_lines(found, first, second))
    except BrokenPipeError:
        raise
    except OSError as error:
        if output is None:
            raise
        raise OutputError(
            f"{output} cannot be written: {error.strerror}", "Name another file with --output, or free space."
        ) from error


def _write_lines(target: BinaryIO, lines: Iterator[bytes]) -> None:
    target.writelines(lines)
    target.flush()


def _json_lines(found: Sequence[_Found], first: TextCollection, second: TextCollection) -> Iterator[bytes]:
    from es_sbert.streams.json_lines import object_bytes

    for pair in found:
        scores = {"cosine": pair.cosine} | ({} if pair.margin is None else {"margin": pair.margin})
        yield object_bytes({
            **scores,
            "first": {"id": first.ids[pair.first], "text": first.texts[pair.first]},
            "second": {"id": second.ids[pair.second], "text": second.texts[pair.second]},
        }) + b"\n"  # fmt: skip


def _readable(pair: _Found, first: TextCollection, second: TextCollection) -> list[str]:
    margin = "" if pair.margin is None else f"  margin {pair.margin:.5f}"
    lines = [f"{pair.cosine:.5f}{margin}"]
    for collection, place in ((first, pair.first), (second, pair.second)):
        text = printable(" ".join(collection.texts[place].split()))
        lines.append(f"  {printable(collection.ids[place])}  {text[:_SHOWN]}{'…' if len(text) > _SHOWN else ''}")
    return lines
