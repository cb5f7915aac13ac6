"""The report of an adoption of vectors, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from statistics import median
from typing import NamedTuple

from es_sbert.engines.engine import DocumentKey
from es_sbert.engines.rest import Json
from es_sbert.index.mapping import VectorFieldMeta
from es_sbert.index.text_template import format_vector_field_option
from es_sbert.messages import escape_unprintable, pluralize

# Share of the sample that must have a vector of the model.
REQUIRED_SHARE = 0.99
# Maximum number of documents that are shown.
_MAX_SHOWN = 10


class ComparedDocument(NamedTuple):
    """A document whose vector was compared.

    Attributes:
        key: Its id and routing.
        cosine: Cosine of the stored vector and the model's; 0 if one of them is zero or not finite.
        is_truncated: Whether its text is longer than the model reads.
    """

    key: DocumentKey
    cosine: float
    is_truncated: bool

    def as_json(self) -> Json:
        document_id, routing = self.key
        named: Json = {"id": document_id} if routing is None else {"id": document_id, "routing": routing}
        return named | {"cosine": round(self.cosine, 6), "truncated": self.is_truncated}


@dataclass
class TextCounts:
    """Documents with a vector that cannot be compared and get no metadata.

    Attributes:
        without_text: Documents whose text is empty or missing.
        unreadable: Documents with a value other than a string in a field of the text.
    """

    without_text: int = 0
    unreadable: int = 0


@dataclass
class SampleCheck(TextCounts):
    """The agreement of the vectors of a sample with a model.

    Attributes:
        documents: The compared documents, at least one.
        min_cosine: Lowest cosine at which a vector counts as the model's.
    """

    documents: Sequence[ComparedDocument] = ()
    min_cosine: float = 0.0

    @cached_property
    def failing(self) -> list[ComparedDocument]:
        """Documents whose vector is not the model's, the most distant first."""
        return sorted((one for one in self.documents if one.cosine < self.min_cosine), key=lambda one: one.cosine)

    @property
    def matching(self) -> int:
        """Number of documents whose vector is the model's."""
        return len(self.documents) - len(self.failing)

    @property
    def is_accepted(self) -> bool:
        """Whether enough documents have a vector of the model."""
        return self.matching >= REQUIRED_SHARE * len(self.documents)

    def as_json(self) -> Json:
        cosines = [one.cosine for one in self.documents]
        return {
            "compared": len(self.documents),
            "matching": self.matching,
            "share": round(self.matching / len(self.documents), 6),
            "required_share": REQUIRED_SHARE,
            "min_cosine": self.min_cosine,
            "lowest_cosine": round(min(cosines), 6),
            "median_cosine": round(median(cosines), 6),
            "without_text": self.without_text,
            "unreadable": self.unreadable,
            "failing": [one.as_json() for one in self.failing],
        }


@dataclass
class MetadataCounts(TextCounts):
    """Results for the documents that had a vector but no metadata.

    Attributes:
        adopted: Documents whose metadata now names the model.
        failing: Documents whose metadata says that the vector is not the model's, the most distant first.
        changed: Ids of documents that were written after they were read.
        deleted: Documents that were deleted after they were read.
        refused: Id → the engine's reason for rejecting the update.
    """

    adopted: int = 0
    failing: list[ComparedDocument] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    deleted: int = 0
    refused: dict[str, str] = field(default_factory=dict)


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
        written = self.written
        return {
            "index": self.index,
            "field": self.field,
            "accepted": self.check.is_accepted,
            "meta": self.meta.model_dump(mode="json", exclude_none=True),
            "documents": self.documents,
            "with_vector": self.with_vector,
            "without_metadata": self.without_metadata,
            "sample": self.check.as_json(),
            "written": written and asdict(written) | {"failing": [one.as_json() for one in written.failing]},
        }


def adoption_lines(report: AdoptionReport, name: str) -> Iterator[str]:
    """Format the report: the comparison, the result, the failing documents and what to do next.

    Args:
        name: The index or alias as the user gave it.
    """
    check, written, of_sample = report.check, report.written, report.check.as_json()
    adopted = report.with_vector - report.without_metadata
    yield (
        f"{report.index}.{report.field}: {pluralize(report.documents, 'document')}, {report.with_vector:,} with a "
        f"vector{f'; {adopted:,} already have metadata' if adopted else ''}"
    )
    yield (
        f"compared with {escape_unprintable(report.meta.model)}, text {escape_unprintable(repr(report.meta.text))}: "
        f"{pluralize(len(check.documents), 'sampled document')}"
    )
    yield (
        f"cosine: lowest {of_sample['lowest_cosine']:.4f}, median {of_sample['median_cosine']:.4f}; at least "
        f"{check.min_cosine:g} in {check.matching:,} ({of_sample['share']:.1%})"
    )
    if check.without_text or check.unreadable:
        yield (
            f"left out of the sample: {pluralize(check.without_text, 'document')} without a text, "
            f"{check.unreadable:,} whose text is not a string"
        )
    failing = check.failing if written is None else written.failing
    if failing:
        more = f", of which the {_MAX_SHOWN} most distant are:" if len(failing) > _MAX_SHOWN else ""
        yield f"Documents whose vector is not the model's: {len(failing):,}{more}"
    for one in failing[:_MAX_SHOWN]:
        cut = ", longer than the model reads" if one.is_truncated else ""
        yield f"  {one.cosine:7.4f}  {escape_unprintable(one.key[0])}{cut}"
    if not check.is_accepted:
        yield (
            f"Not adopted: {of_sample['share']:.1%} of the vectors are the model's, but {REQUIRED_SHARE:.0%} have to "
            "be. Nothing was written. Try other values of `model`, `text_template` or `precision`; if only long texts "
            "fail, a copy of the model with another `max_seq_length`. If the vectors cannot be explained, embed the "
            "documents into another field: "
            f"`es-sbert ingest --index {name} --vector-field OTHER --text-field FIELD`."
        )
    elif written is None:
        yield "The vectors are the model's. Nothing was written (`dry_run`)."
    else:
        yield from _written_lines(report, written, name)


def _written_lines(report: AdoptionReport, written: MetadataCounts, name: str) -> Iterator[str]:
    ingest = f"`es-sbert ingest --index {name}{format_vector_field_option(report.field)}`"
    yield f"Adopted: {pluralize(written.adopted, 'vector')} of {report.index}.{report.field}."
    changed = f"changed during the adoption, such as {escape_unprintable(''.join(written.changed[:1]))}"
    for count, which, result in (
        (len(written.failing), "with a vector that is not the model's", f"marked; {ingest} embeds them again"),
        (written.without_text, "with a vector but without a text", f"not adopted; {ingest} removes their vectors"),
        (written.unreadable, "whose text is not a string", "not adopted"),
        (len(written.changed), changed, f"not adopted; {ingest} embeds them"),
        (written.deleted, "deleted during the adoption", "not adopted"),
        (report.documents - report.with_vector, "without a vector", f"{ingest} embeds them"),
    ):
        if count:
            yield f"{pluralize(count, 'document')} {which}: {result}."
    for document_id, reason in list(written.refused.items())[:_MAX_SHOWN]:
        yield f"the update of {escape_unprintable(document_id)} was refused: {escape_unprintable(reason)}"
    if len(written.refused) > _MAX_SHOWN:
        yield f"{len(written.refused) - _MAX_SHOWN:,} more updates were refused"
