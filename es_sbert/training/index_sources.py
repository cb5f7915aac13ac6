"""Write the documents of a recipe's indices to files in the run's folder, from which training reads them.

A run trains on the documents as they were when it started: an index changes while a run lasts, and a resumed run, or
another process of the same run, would otherwise see other examples. Sources with the same selection share a file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from es_sbert.config import EngineSettings
from es_sbert.errors import SourceError
from es_sbert.index.text_template import MISSING, TextFieldError, TextTemplate, find_field
from es_sbert.messages import pluralize
from es_sbert.training.recipe import DevSpec, Recipe, SourceSpec, StageSpec
from es_sbert.training.training_errors import translate_disk_errors

if TYPE_CHECKING:
    from es_sbert.engines.engine import Engine
    from es_sbert.engines.rest import Json
    from es_sbert.index.document_sample import DocumentSelection

_RETRY_SECONDS = 300.0
# The roles that do not hold text.
_LABELS = frozenset({"score", "class"})


def has_index_sources(recipe: Recipe) -> bool:
    """Whether a recipe reads documents of an index."""
    return any(source.index is not None for source in recipe.sources)


def source_file(source: SourceSpec) -> str:
    """Name of the file that holds the documents of an index source."""
    selection = _selection(source)
    digest = hashlib.sha256(orjson.dumps(asdict(selection), option=orjson.OPT_SORT_KEYS)).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', selection.index)}-{digest[:12]}.jsonl"


def with_files(recipe: Recipe, folder: Path) -> Recipe:
    """Return the recipe with the files of `read_index_sources` in place of its indices."""

    def replace(source: Any) -> Any:
        if source.index is None:
            return source
        path = str((folder / source_file(source)).absolute())
        changes: dict[str, Any] = {"path": path, "index": None, "filter": None, "sample": None}
        return source.model_copy(update=changes if isinstance(source, DevSpec) else changes | {"name": _name(source)})

    def replace_all(stage: StageSpec) -> StageSpec:
        changes = {"data": tuple(map(replace, stage.data)), "dev": stage.dev and replace(stage.dev)}
        return stage.model_copy(update=changes)

    stages = tuple(map(replace_all, recipe.stages))
    return recipe.model_copy(update={"stages": stages, "test": recipe.test and replace(recipe.test)})


def _name(source: Any) -> str:
    return source.name or str(source.index)


def read_index_sources(
    recipe: Recipe, folder: Path, engine: EngineSettings | None, report: Callable[[str], None]
) -> None:
    """Write the documents of each index of a recipe to a file of the folder, one JSON object per line.

    Args:
        recipe: The recipe.
        folder: Folder of the files; created if it is missing.
        engine: The engine of the indices; None uses the settings of the environment.
        report: Called with progress messages.

    Raises:
        IndexMissing, IndexMismatch: an index does not exist, or its name is an alias of several.
        SourceError: no document has text in all columns.
        UsageError: a column is neither a field nor a template.
        EngineError: the engine failed.
        OutputError: the folder cannot be written to.
    """
    from es_sbert.engines.connect import connect  # training on files needs no client of an engine

    with translate_disk_errors(folder), closing(connect(engine or EngineSettings())) as opened:
        folder.mkdir(parents=True, exist_ok=True)
        for name, sources in _by_file(recipe.sources).items():
            rows = _read_rows(opened, sources, report)
            partial = folder / f"{name}.partial"
            partial.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
            partial.replace(folder / name)


def _by_file(sources: Iterable[SourceSpec]) -> Mapping[str, list[SourceSpec]]:
    """Group index sources by the file that they share."""
    groups: dict[str, list[SourceSpec]] = {}
    for source in sources:
        if source.index is not None:
            groups.setdefault(source_file(source), []).append(source)
    return groups


def _selection(source: SourceSpec) -> DocumentSelection:
    from es_sbert.index.document_sample import DocumentSelection

    assert source.index is not None, "only of an index"
    return DocumentSelection(source.index, source.filter, source.sample, source.sample_seed)


def _read_rows(engine: Engine, sources: list[SourceSpec], report: Callable[[str], None]) -> list[Json]:
    """Read the documents of one selection that have all columns, each with its id and these columns."""
    from es_sbert.engines.retry import RetryPolicy, make_retrier
    from es_sbert.index.document_sample import read_documents

    texts: dict[str, TextTemplate] = {}
    labels: dict[str, None] = {}
    for source in sources:
        columns: Mapping[str, str | tuple[str, ...]] = source.columns  # type: ignore[attr-defined]
        for role, names in columns.items():
            for column in (names,) if isinstance(names, str) else names:
                if role in _LABELS:
                    labels[column] = None
                else:
                    texts[column] = column_template(column)
    fields = dict.fromkeys([*(field for template in texts.values() for field in template.fields), *labels])
    selection = _selection(sources[0])
    retrying = make_retrier(RetryPolicy(_RETRY_SECONDS), lambda reason: report(f"waiting for the engine: {reason}"))
    documents = read_documents(engine, selection, list(fields), retrying=retrying)
    rows = []
    for document in documents:
        row: Json = {column: text for column, template in texts.items() if (text := _text(template, document.source))}
        row |= {column: value for column in labels if (value := find_field(document.source, column)) is not MISSING}
        if len(row) == len({*texts, *labels}):
            rows.append({"_id": document.key[0]} | row)
    described = ", ".join([*texts, *labels])
    if not rows:
        raise SourceError(
            f"none of the {pluralize(len(documents), 'document')} of index {selection.index} has text in {described}",
            "Use other fields in the columns of the recipe (`es-sbert index show` lists them), or another filter.",
        )
    left_out = len(documents) - len(rows)
    without = f"; {left_out:,} others lack text in one of {described}" if left_out else ""
    report(f"Read {pluralize(len(rows), 'document')} of index {selection.index}{without}")
    return rows


def column_template(column: str) -> TextTemplate:
    """Return the template for the text of a column: the column itself if it has braces, else that of a field.

    Raises:
        UsageError: the template or the field name is invalid.
    """
    return TextTemplate.parse(column) if "{" in column else TextTemplate.from_fields((column,))


def _text(template: TextTemplate, source: Json) -> str | None:
    """Return the text of a document; None if the document has none."""
    try:
        text = template.text_of(source)
    except TextFieldError:
        return None
    return str(text) if text and not text.isspace() else None
