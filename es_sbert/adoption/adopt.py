"""`es-sbert index adopt`: vectors of a known model become vectors of es-sbert, without embedding them again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from es_sbert.adoption.comparison import SampleCheck
from es_sbert.adoption.metadata import MetadataCounts, MetadataWriter
from es_sbert.adoption.plain_field import AdoptableField
from es_sbert.adoption.sample import compare, read_sample, without_metadata
from es_sbert.adoption.variants import TextVariant, find_variant
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.protocol import Engine, Json
from es_sbert.errors import AccessDenied, IndexMismatch
from es_sbert.index.field_names import fields_hint, mapped_names
from es_sbert.index.meta import VectorFieldMeta
from es_sbert.ingest.retry import RetryPolicy


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
        index, field: Whose vectors.
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


def adopt(engine: Engine, adoptable: AdoptableField, encoder: Encoder, settings: AdoptionSettings, *,
          report: Callable[[str], None] = lambda message: None) -> AdoptionReport:  # fmt: skip
    """Check a sample of the vectors and, where it passes, make the field es-sbert's.

    The mapping gets the field's metadata, and each document the metadata of its vector, so that later loads tell which
    texts have changed. The index should be at rest.

    Args:
        report: Told what is being done.

    Raises:
        IndexMismatch: other dimensions, another model, no vector that could be adopted, or no text.
        EngineError: the engine failed. What was written until then stays, and the same command goes on.
    """
    info = encoder.info
    adoptable.check_model(info.fingerprint, info.model, info.dimensions)
    name = adoptable.state.name
    with suppress(AccessDenied):
        # Documents that were written since the last refresh count too, where this user may refresh.
        engine.refresh(name)
    documents = engine.count(name)
    with_vector = engine.count(name, {"exists": {"field": adoptable.name}})
    waiting = engine.count(name, without_metadata(adoptable.name))
    if not waiting:
        raise _nothing_to_adopt(adoptable, with_vector)
    report(f"comparing {min(settings.sample, waiting):,} of {waiting:,} vectors with those of {info.model}")
    check = check_sample(engine, adoptable, encoder, settings)
    found = AdoptionReport(
        name, adoptable.name, adoptable.meta(info.fingerprint, info.model), documents, with_vector, waiting, check
    )  # fmt: skip
    if not check.is_accepted:
        report("looking for another text that the vectors were made from")
        variant = find_variant(engine, adoptable, encoder, check)
        return replace(found, variant=variant)
    if settings.dry_run:
        return found
    # As it is now: an update replaces `_meta` whole.
    state = engine.get_index(name)
    existing: Json = adoptable.state.mappings if state is None else state.mappings
    engine.put_mapping(name, adoptable.mapping_change(engine.info, found.meta, existing.get("_meta", {})))
    writer = MetadataWriter(
        engine, adoptable, found.meta, encoder, policy=RetryPolicy(settings.retry_seconds),
        on_wait=lambda reason: report(f"waiting for the engine: {reason}"),
    )  # fmt: skip
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
        raise _no_text(adoptable, sample.without_text, sample.unreadable)
    compared = list(compare(encoder, sample.documents, adoptable.name))
    return SampleCheck(
        compared, settings.min_cosine, settings.share, sample.without_text, sample.unreadable, encoder.info.max_tokens
    )


def _nothing_to_adopt(adoptable: AdoptableField, with_vector: int) -> IndexMismatch:
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


def _no_text(adoptable: AdoptableField, without_text: int, unreadable: int) -> IndexMismatch:
    template, name = adoptable.template, adoptable.state.name
    names = mapped_names(adoptable.state.mappings.get("properties", {}))
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
