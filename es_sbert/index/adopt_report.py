"""The report of an adoption of vectors, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

from es_sbert.engines.rest import Json
from es_sbert.index.adopt_sample import ComparedDocument, SampleCheck
from es_sbert.index.mapping import VectorFieldMeta
from es_sbert.index.text_template import format_vector_field_option
from es_sbert.messages import escape_unprintable, pluralize

# Maximum number of failing documents that are shown.
MAX_FAILING_SHOWN = 10


@dataclass
class MetadataCounts:
    """Results for the documents that had a vector but no metadata.

    Attributes:
        adopted: Documents whose metadata now names the model.
        failing: Documents whose metadata says that the vector is not the model's, the most distant first.
        without_text: Documents with a vector whose text is empty or missing; they get no metadata.
        unreadable: Documents with a value other than a string in a field of the text; they get no metadata.
        changed: Ids of documents that were written after they were read.
        deleted: Documents that were deleted after they were read.
        refused: Id → the engine's reason for rejecting the update.
    """

    adopted: int = 0
    failing: list[ComparedDocument] = field(default_factory=list)
    without_text: int = 0
    unreadable: int = 0
    changed: list[str] = field(default_factory=list)
    deleted: int = 0
    refused: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> Json:
        return asdict(self) | {"failing": [one.as_json() for one in self.failing]}


@dataclass(frozen=True)
class AdoptionReport:
    """The results of an adoption.

    Attributes:
        index, field: The index and the vector field.
        meta: The field's metadata for the mapping.
        documents: Documents of the index.
        with_vector: Documents with a vector.
        without_metadata: Documents with a vector but no metadata: those to adopt.
        check: The comparison of the sample.
        written: Results for the documents; None if nothing was written.
    """

    index: str
    field: str
    meta: VectorFieldMeta
    documents: int
    with_vector: int
    without_metadata: int
    check: SampleCheck
    written: MetadataCounts | None = None

    @property
    def exit_code(self) -> int:
        """1 if the vectors are not the model's, or documents were not adopted that could be; otherwise 0."""
        written = self.written
        return int(not self.check.is_accepted or bool(written and (written.refused or written.changed)))

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
            "written": None if self.written is None else self.written.as_json(),
        }


# Vectors of other texts or models do not reach this median cosine; quantized vectors of the same model exceed it.
_CLOSE_MEDIAN_COSINE = 0.98


def adoption_lines(report: AdoptionReport, name: str) -> list[str]:
    """Format the report: the comparison, the result, the failing documents and what to do next.

    Args:
        name: The index or alias as the user gave it.
    """
    check = report.check
    without, adopted = report.documents - report.with_vector, report.with_vector - report.without_metadata
    lines = [
        f"{report.index}.{report.field}: {pluralize(report.documents, 'document')}, "
        f"{report.with_vector:,} with a vector"
        + (f", {without:,} without" if without else "")
        + (f"; {adopted:,} already have metadata" if adopted else ""),
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
        return [*lines, "The vectors are the model's. Nothing was written (`dry_run`)."]
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
        f"Not adopted: {check.matching_share:.1%} of the vectors are the model's, but `share` requires "
        f"{check.share:.1%}. Nothing was written."
    )
    ingest = f"`es-sbert ingest --index {name}{format_vector_field_option(report.field)}`"
    if check.fails_only_where_truncated:
        yield (
            f"Only documents longer than the model reads ({pluralize(check.max_tokens, 'token')}) fail: "
            "their vectors were made "
            "with a different `max_seq_length`. Set `model` to a copy of the model with that maximum in "
            "sentence_bert_config.json. Or adopt the others (`all_documents` and a lower `share`), and embed these "
            f"again: {ingest}."
        )
    elif check.matching_share >= 0.5:
        yield (
            "Most vectors are the model's. The others were probably made from earlier versions of their texts. To "
            "adopt those that match, run the same command with `all_documents` and a lower `share`. Then embed the "
            f"others: {ingest}."
        )
    elif check.median >= _CLOSE_MEDIAN_COSINE:
        yield (
            "The vectors are close to the model's but not the same: they were probably made in a different precision, "
            "or by another version of the model. Compare with another `precision`. If slightly different vectors may "
            "share a field, set a lower `min_cosine`."
        )
    else:
        yield (
            "Probable reasons: another model (or another version of it), another text, or another prompt. Try other "
            "values of `model` and `text_template`. If the vectors cannot be explained, embed the documents into "
            f"another field: `es-sbert ingest --index {name} --vector-field OTHER --text-field FIELD`."
        )


def _written_lines(report: AdoptionReport, written: MetadataCounts, name: str) -> Iterator[str]:
    ingest = f"`es-sbert ingest --index {name}{format_vector_field_option(report.field)}`"
    yield f"Adopted: {pluralize(written.adopted, 'vector')} of {report.index}.{report.field}."
    if written.failing:
        yield f"Embed the {pluralize(len(written.failing), 'failing document')} again: {ingest}."
    if written.without_text:
        yield (
            f"{pluralize(written.without_text, 'document')} with a vector but without a text: not adopted; {ingest} "
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
        yield f"the update of {escape_unprintable(document_id)} was refused: {escape_unprintable(reason)}"
    if report.with_vector < report.documents:
        yield f"Documents without a vector: {report.documents - report.with_vector:,}. Embed them: {ingest}."
