"""Whether an index is fit to be loaded and searched by a model."""

from __future__ import annotations

from collections.abc import Iterator

from es_sbert.doctor.findings import Finding, failure, ok, warning
from es_sbert.encoder.types import EncoderInfo
from es_sbert.engines.protocol import Engine, IndexState
from es_sbert.errors import EsSbertError
from es_sbert.index.describe import FieldSummary, describe_state
from es_sbert.index.load_settings import left_behind

_BLOCKS = {
    "index.blocks.read_only": "Set it to null: `PUT {index}/_settings`.",
    "index.blocks.read_only_allow_delete": "A disk was full: free space, then set it to null.",
    "index.blocks.write": "Set it to null: `PUT {index}/_settings`.",
    "index.blocks.read": "Set it to null: `PUT {index}/_settings`.",
    "index.blocks.metadata": "Set it to null: `PUT {index}/_settings`.",
}


def check_index(engine: Engine, name: str, model: EncoderInfo | None) -> list[Finding]:
    """Blocks, settings left behind, and vectors that are not of the model.

    Args:
        engine: Where it is.
        name: Index or alias.
        model: What it is to be searched with; None where no model could be opened.
    """
    try:
        state = engine.get_index(name)
        if state is None:
            return [
                warning("index", f"there is no index {name}", "`es-sbert ingest` creates it; check the name otherwise.")
            ]
        summary = describe_state(engine, state)
    except EsSbertError as error:
        return [Finding.of("index", error)]
    size = "" if summary.bytes is None else f", {summary.bytes / 1e6:,.1f} MB"
    findings = [ok("index", f"{summary.name}: {summary.documents:,} documents{size}")]
    findings += judge_settings(state)
    if not summary.fields:
        findings.append(
            warning(
                "index", f"{summary.name} has no vector field", f"`es-sbert ingest --index {summary.name}` adds it."
            )
        )
    for field in summary.fields:
        findings += judge_field(summary.name, field, summary.documents, model)
    return findings


def judge_settings(state: IndexState) -> Iterator[Finding]:
    """Blocks, and what a load that was killed has left."""
    for setting, remedy in _BLOCKS.items():
        if state.settings.get(setting) == "true":
            yield failure("index", f"{state.name} has {setting}", remedy.format(index=state.name))
    before = left_behind(state)
    if before is not None:
        yield warning(
            "index", f"a load has changed {' and '.join(before)} of {state.name} and not put it back",
            f"If none is running now: `es-sbert index repair {state.name}`.",
        )  # fmt: skip


def judge_field(index: str, field: FieldSummary, documents: int, model: EncoderInfo | None) -> Iterator[Finding]:
    """How far a vector field is filled, by which model, and how many texts were cut."""
    about = f"field {field.name}"
    if model is not None and field.meta.fingerprint != model.fingerprint:
        yield warning(
            about, f"holds vectors of {field.meta.model} ({field.meta.fingerprint[:12]}), not of {model.model}",
            f"Search it with --model {field.meta.model}, or name another --vector-field.",
        )  # fmt: skip
    if field.current < field.vectors:
        yield failure(
            about, f"{field.vectors - field.current:,} of {field.vectors:,} vectors are of another model",
            f"Embed them anew: `es-sbert ingest --index {index} --vector-field {field.name}`.",
        )  # fmt: skip
    if field.vectors < documents:
        yield warning(
            about, f"{documents - field.vectors:,} of {documents:,} documents have no vector, so no search by meaning "
            "finds them", f"Embed them: `es-sbert ingest --index {index} --vector-field {field.name}`.",
        )  # fmt: skip
    else:
        yield ok(about, f"all {documents:,} documents have a vector, {field.meta.index_type}")
    if field.truncated:
        yield warning(
            about, f"{field.truncated:,} texts are longer than the model reads",
            "Their ends are not found. Load shorter texts, or use a model that reads more.",
        )  # fmt: skip
