"""`es-sbert duplicates`: groups of near-duplicates."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from es_sbert.cli.collections import (
    check_two_texts,
    output_options,
    read_collections,
    shown_text,
    source_options,
    write_found,
)
from es_sbert.cli.logs import log_format_option
from es_sbert.cli.options import Number
from es_sbert.errors import UsageError
from es_sbert.events import say

if TYPE_CHECKING:
    from es_sbert.analysis import DuplicateGroup, TextCollection
    from es_sbert.engines.protocol import Json


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", nargs=-1)
@click.option(
    "--min-cosine",
    type=Number(-1, 1),
    default=0.95,
    show_default=True,
    help="Texts with at least this cosine are near-duplicates.",
)
@click.option(
    "--keep",
    type=click.Choice(["first", "longest"]),
    default="first",
    show_default=True,
    help="Which text of a group is kept: the first of the files (of an index, the lowest id), or the longest.",
)
@output_options
@source_options
@log_format_option
def duplicates(files: tuple[str, ...], index: str | None, min_cosine: float, keep: str, as_json: bool,
               output: Path | None, **reading: Any) -> None:  # fmt: skip
    """Find groups of near-duplicates.

    The texts come from FILES, which are embedded first, or from an index, whose vectors are read. All pairs are
    compared: the result is exact. A group holds all texts that a chain of near-duplicates connects. One text of each
    group is kept; each other text is shown with its cosine with that one.

    Documents without text or vector are left out and counted. Nothing is written to the index.

    \b
    Examples:
      es-sbert duplicates tickets.jsonl --text-field title --id-field id
      es-sbert duplicates --index docs --min-cosine 0.98 --keep longest -o duplicates.jsonl
    """
    from es_sbert.analysis import duplicate_groups

    if bool(files) == (index is not None):
        raise UsageError(
            "texts come from FILES or from --index, and "
            f"{'both are' if files else 'neither is'} given",
            "Name one of them, e.g. `es-sbert duplicates --index docs`.",
        )  # fmt: skip
    [texts] = read_collections([files], index=index, **reading)
    check_two_texts(texts)
    begin = time.perf_counter()
    priority = [len(text) for text in texts.texts] if keep == "longest" else None
    groups = duplicate_groups(texts.vectors, min_cosine, starts=texts.starts, priority=priority)
    seconds = time.perf_counter() - begin
    write_found(_objects(groups, texts), _lines(groups, texts), output, as_json=as_json)
    extra = sum(len(group.members) - 1 for group in groups)
    say(f"{extra:,} near-duplicates of {len(groups):,} texts among {len(texts):,}, compared in {seconds:.1f} s")


def _objects(groups: Sequence[DuplicateGroup], texts: TextCollection) -> Iterator[Json]:
    for number, group in enumerate(groups, 1):
        for member, cosine in zip(group.members, group.cosines, strict=True):
            yield {
                "group": number, "id": texts.ids[member], "cosine": cosine, "kept": member == group.kept,
                "text": texts.texts[member],
            }  # fmt: skip


def _lines(groups: Sequence[DuplicateGroup], texts: TextCollection) -> Iterator[str]:
    for number, group in enumerate(groups, 1):
        yield f"group {number}: {len(group.members):,} texts"
        yield f"  kept     {shown_text(texts, group.kept)}"
        for member, cosine in zip(group.members, group.cosines, strict=True):
            if member != group.kept:
                yield f"  {cosine:.5f}  {shown_text(texts, member)}"
