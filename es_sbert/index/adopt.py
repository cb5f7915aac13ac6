"""Adopt the vectors of a known model without embedding the documents again (`es-sbert index adopt`)."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.protocol import Engine, Json
from es_sbert.engines.retry import RetryPolicy
from es_sbert.errors import AccessDenied, IndexMismatch
from es_sbert.index.adopt_field import AdoptableField
from es_sbert.index.adopt_metadata import MetadataCounts, MetadataWriter
from es_sbert.index.adopt_sample import (
    MAX_FAILING_SHOWN,
    ComparedDocument,
    SampleCheck,
    TextVariant,
    compare_vectors,
    find_variant,
    read_sample,
    without_metadata_query,
)
from es_sbert.index.mapping import VectorFieldMeta
from es_sbert.index.text_template import fields_hint, format_vector_field_option, mapping_field_names
from es_sbert.messages import escape_unprintable, pluralize


@dataclass(frozen=True)
class AdoptionSettings:
    """What is checked, and how strictly.

    Attributes:
        sample: Documents that are embedded and compared before anything is written.
        seed: Which documents those are.
        min_cosine: Cosine from which on a vector counts as the model's.
        share: Share of the sample that must have such a vector.
        all_documents: Whether the other documents are compared too, each before it is adopted.
        dry_run: Whether nothing is written.
        retry_seconds: How long an engine that is overloaded or does not answer is waited for.
    """

    sample: int = 300
    seed: int = 0
    min_cosine: float = 0.999
    share: float = 0.99
    all_documents: bool = False
    dry_run: bool = False
    retry_seconds: float = 300.0


@dataclass(frozen=True)
class AdoptionReport:
    """What was checked and written.

    Attributes:
        index, field: The vectors' index and field.
        meta: What the mapping says of the field, or would.
        documents: Documents of the index.
        with_vector: Documents with a vector.
        without_metadata: Of these, documents that were to be adopted.
        check: The sample.
        variant: Another text that the vectors were made from; None where the sample passed or nothing was found.
        written: What became of the documents; None where nothing was written.
    """

    index: str
    field: str
    meta: VectorFieldMeta
    documents: int
    with_vector: int
    without_metadata: int
    check: SampleCheck
    variant: TextVariant | None = None
    written: MetadataCounts | None = None

    @property
    def exit_code(self) -> int:
        """1 where the vectors are not the model's, or the engine refused updates."""
        return int(not self.check.is_accepted or bool(self.written and self.written.refused))

    def as_json(self) -> Json:
        return {
            "index": self.index,
            "field": self.field,
            "accepted": self.check.is_accepted,
            "meta": self.meta.model_dump(mode="json", exclude_none=True),
            "documents": self.documents,
            "with_vector": self.with_vector,
            "without_metadata": self.without_metadata,
            "sample": self.check.as_json(),
            "variant": None if self.variant is None else self.variant.as_json(),
            "written": None if self.written is None else self.written.as_json(),
        }


def adopt_vectors(
    engine: Engine,
    adoptable: AdoptableField,
    encoder: Encoder,
    settings: AdoptionSettings,
    *,
    report: Callable[[str], None] = lambda message: None,
) -> AdoptionReport:
    """Check a sample of the vectors and, where it passes, make the field es-sbert's.

    The mapping gets the field's metadata, and each document the metadata of its vector, so that later loads tell which
    texts have changed. The index should be at rest.

    Args:
        report: Told what is being done.

    Raises:
        IndexMismatch: other dimensions, another model, no vector that could be adopted, or no text.
        EngineError: the engine failed. What was written until then stays, and the same command resumes.
    """
    info = encoder.info
    adoptable.check_model(info.fingerprint, info.model, info.dimensions)
    name = adoptable.state.name
    with suppress(AccessDenied):
        # Documents that were written since the last refresh count too, where this user may refresh.
        engine.refresh(name)
    documents = engine.count(name)
    with_vector = engine.count(name, {"exists": {"field": adoptable.name}})
    waiting = engine.count(name, without_metadata_query(adoptable.name))
    if not waiting:
        raise _nothing_to_adopt_error(adoptable, with_vector)
    report(f"comparing {min(settings.sample, waiting):,} of {waiting:,} vectors with those of {info.model}")
    check = check_sample(engine, adoptable, encoder, settings)
    found = AdoptionReport(
        name, adoptable.name, adoptable.meta(info.fingerprint, info.model), documents, with_vector, waiting, check
    )
    if not check.is_accepted:
        report("looking for another text that the vectors were made from")
        variant = find_variant(engine, adoptable, encoder, check)
        return replace(found, variant=variant)
    if settings.dry_run:
        return found
    # Read again: an update replaces `_meta` as a whole.
    state = engine.get_index(name)
    existing: Json = adoptable.state.mappings if state is None else state.mappings
    engine.put_mapping(name, adoptable.mapping_change(engine.info, found.meta, existing.get("_meta", {})))
    writer = MetadataWriter(
        engine,
        adoptable,
        found.meta,
        encoder,
        policy=RetryPolicy(settings.retry_seconds),
        on_wait=lambda reason: report(f"waiting for the engine: {reason}"),
    )
    report(f"writing the metadata of {waiting:,} vectors")
    tenths = 0

    def progress(read: int) -> None:
        nonlocal tenths
        if read < waiting and 10 * read // waiting > tenths:
            tenths = 10 * read // waiting
            report(f"{read:,} of {waiting:,}")

    written = writer.write(check.failing, settings.min_cosine, all_documents=settings.all_documents, progress=progress)
    return replace(found, written=written)


def check_sample(
    engine: Engine, adoptable: AdoptableField, encoder: Encoder, settings: AdoptionSettings
) -> SampleCheck:
    """Compare documents taken at random.

    Raises:
        IndexMismatch: none of them has a text.
        EngineError: the engine failed.
    """
    sample = read_sample(engine, adoptable, settings.sample, settings.seed)
    if not sample.documents:
        raise _no_text_error(adoptable, sample.without_text, sample.unreadable)
    compared = list(compare_vectors(encoder, sample.documents, adoptable.name))
    return SampleCheck(
        compared, settings.min_cosine, settings.share, sample.without_text, sample.unreadable, encoder.info.max_tokens
    )


def _nothing_to_adopt_error(adoptable: AdoptableField, with_vector: int) -> IndexMismatch:
    name = adoptable.state.name
    if not with_vector:
        return IndexMismatch(
            f"no document of {name} has a vector in {adoptable.name}",
            f"Embed them: `es-sbert ingest --index {name} --text-field FIELD`.",
        )
    return IndexMismatch(
        f"{adoptable.where} is es-sbert's already: all {with_vector:,} vectors in it have metadata",
        f"`es-sbert index show {name}` tells the model; `es-sbert ingest --index {name}` embeds what is not current.",
    )


def _no_text_error(adoptable: AdoptableField, without_text: int, unreadable: int) -> IndexMismatch:
    template, name = adoptable.template, adoptable.state.name
    names = mapping_field_names(adoptable.state.mappings.get("properties", {}))
    missing = [field for field in template.fields if field not in names]
    reason = f"{without_text:,} have no text" + (
        f", and {unreadable:,} have something else than a string there" if unreadable else ""
    )
    own = [field for field in names if field.partition(".")[0] != adoptable.name]
    return IndexMismatch(
        f"no sampled document of {name} with a vector has a text for {template.template!r}: {reason}",
        "Give --text-field or --text-template as it was when the vectors were made. "
        + fields_hint(missing, own, "The index has"),
    )


# A median cosine that other texts or models do not reach: quantisation costs less than this.
_CLOSE_MEDIAN_COSINE = 0.98


def adoption_lines(report: AdoptionReport, name: str) -> list[str]:
    """What was compared, the verdict, the failing documents and what to do next, line by line.

    Args:
        name: The index or alias as the user calls it.
    """
    check = report.check
    without = report.documents - report.with_vector
    lines = [
        f"{report.index}.{report.field}: {pluralize(report.documents, 'document')}, {report.with_vector:,} "
        f"with a vector"
        + (f", {without:,} without" if without else "")
        + (
            ""
            if report.without_metadata == report.with_vector
            else f"; {report.with_vector - report.without_metadata:,} have metadata already"
        ),
        f"compared with {escape_unprintable(report.meta.model)}, text {escape_unprintable(repr(report.meta.text))}: "
        f"{pluralize(len(check.documents), 'sampled document')}",
        f"cosine: lowest {check.lowest:.4f}, median {check.median:.4f}; at least {check.min_cosine:g} in "
        f"{len(check.documents) - len(check.failing):,} ({check.matching_share:.1%})",
        *_skipped_lines(check),
    ]
    if not check.is_accepted:
        return [*lines, *_rejected_lines(report, name)]
    failing = check.failing if report.written is None else report.written.failing
    if failing:
        lines += _failing_lines(failing)
    if report.written is None:
        return [*lines, "The vectors are the model's. Nothing was written (--dry-run)."]
    return [*lines, *_written_lines(report, report.written, name)]


def _skipped_lines(check: SampleCheck) -> Iterator[str]:
    if check.without_text:
        yield f"left out of the sample: {pluralize(check.without_text, 'document')} without a text"
    if check.unreadable:
        yield f"left out of the sample: {pluralize(check.unreadable, 'document')} whose text is not a string"


def _failing_lines(failing: Sequence[ComparedDocument]) -> Iterator[str]:
    yield f"Documents whose vector is not the model's: {len(failing):,}" + (
        f", of which the {MAX_FAILING_SHOWN} most distant are:" if len(failing) > MAX_FAILING_SHOWN else ""
    )
    for one in failing[:MAX_FAILING_SHOWN]:
        cut = ", longer than the model reads" if one.is_truncated else ""
        yield f"  {one.cosine:7.4f}  {escape_unprintable(one.key[0])}{cut}"


def _rejected_lines(report: AdoptionReport, name: str) -> Iterator[str]:
    check = report.check
    yield from _failing_lines(check.failing)
    yield (
        f"Not adopted: {check.matching_share:.1%} of the vectors are the model's, and --share asks for "
        f"{check.share:.1%}. Nothing was written."
    )
    ingest = f"`es-sbert ingest --index {name}{format_vector_field_option(report.field)}`"
    if report.variant is not None:
        yield _variant_line(report, report.variant, name)
    elif check.fails_only_where_truncated:
        yield (
            f"Only documents longer than the model reads ({check.max_tokens:,} tokens) fail: their vectors were made "
            "with another `max_seq_length`. Give --model a copy of the model with that maximum in "
            "sentence_bert_config.json. Or adopt the others (--all and a lower --share), and embed these again: "
            f"{ingest}."
        )
    elif check.matching_share >= 0.5:
        yield (
            "Most vectors are the model's. The others are probably of earlier versions of their texts. To adopt those "
            f"that match: the same command with --all and a lower --share. Then embed the others: {ingest}."
        )
    elif check.median >= _CLOSE_MEDIAN_COSINE:
        yield (
            "The vectors are close to the model's, and not the same: they were probably made in another precision, or "
            "by another version of the model. Compare with another --precision. If slightly different vectors may "
            "share a field, give a lower --min-cosine."
        )
    else:
        yield (
            "Probable reasons: another model (or another version of it), or another text. Try other values of --model "
            "and --text-template. If the vectors cannot be explained, embed the documents into a field of their own: "
            f"`es-sbert ingest --index {name} --vector-field OTHER --text-field FIELD`."
        )


def _variant_line(report: AdoptionReport, variant: TextVariant, name: str) -> str:
    matches = f"The vectors match the text {escape_unprintable(repr(variant.template))}"
    if variant.prompt is not None:
        put = (
            f"with {escape_unprintable(repr(variant.prompt))} in front"
            if variant.prompt
            else "without a prompt in front"
        )
        return (
            f"{matches} {put} (median cosine {variant.median:.4f}), and es-sbert puts the model's own prompt for "
            "documents in front. Give --model a copy of the model whose config_sentence_transformers.json has the "
            'prompt that was used as `"prompts": {"document": …}`, or none.'
        )
    command = f"es-sbert index adopt {name}{format_vector_field_option(report.field)}"
    return (
        f"{matches} (median cosine {variant.median:.4f}). Run: `{command} --model {shlex.quote(report.meta.model)} "
        f"--text-template {_shell_quote(variant.template)}`"
    )


def _shell_quote(template: str) -> str:
    """A template as a word of a shell's command line."""
    if "\n" in template:
        escaped = template.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
        return f"$'{escaped}'"
    return shlex.quote(template)


def _written_lines(report: AdoptionReport, written: MetadataCounts, name: str) -> Iterator[str]:
    ingest = f"`es-sbert ingest --index {name}{format_vector_field_option(report.field)}`"
    yield f"Adopted: {pluralize(written.adopted, 'vector')} of {report.index}.{report.field}."
    if written.failing:
        yield f"Embed the {pluralize(len(written.failing), 'failing document')} again: {ingest}."
    if written.without_text:
        yield (
            f"{pluralize(written.without_text, 'document')} with a vector and without a text: not adopted; {ingest} "
            "removes their vectors."
        )
    if written.unreadable:
        yield f"{pluralize(written.unreadable, 'document')} whose text is not a string: not adopted."
    if written.changed:
        yield (
            f"{pluralize(len(written.changed), 'document')} changed during the adoption and not adopted (first: "
            f"{escape_unprintable(written.changed[0])}); {ingest} embeds them."
        )
    if written.deleted:
        yield f"{pluralize(written.deleted, 'document')} deleted during the adoption."
    for number, (document_id, reason) in enumerate(written.refused.items()):
        if number == MAX_FAILING_SHOWN:
            yield f"{len(written.refused) - MAX_FAILING_SHOWN:,} more updates were refused"
            break
        yield f"no update of {escape_unprintable(document_id)}: {escape_unprintable(reason)}"
    if report.with_vector < report.documents:
        yield f"Documents without a vector: {report.documents - report.with_vector:,}. Embed them: {ingest}."
