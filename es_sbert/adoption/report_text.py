"""A report of `es-sbert index adopt` for people."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from es_sbert.adoption.adopt import AdoptionReport
from es_sbert.adoption.comparison import WORST, ComparedDocument, SampleCheck
from es_sbert.adoption.metadata import MetadataCounts
from es_sbert.adoption.variants import TextVariant
from es_sbert.index.text_options import vector_field_option
from es_sbert.printable import counted, printable

# A median cosine that other texts or models do not reach: quantisation costs less than this.
_CLOSE = 0.98


def adoption_lines(report: AdoptionReport, name: str) -> list[str]:
    """What was compared, the verdict, the failing documents and what to do next, line by line.

    Args:
        name: The index or alias as the user calls it.
    """
    check = report.check
    without = report.documents - report.with_vector
    lines = [
        f"{report.index}.{report.field}: {counted(report.documents, 'document')}, {report.with_vector:,} with a vector"
        + (f", {without:,} without" if without else "")
        + (
            ""
            if report.without_metadata == report.with_vector
            else f"; {report.with_vector - report.without_metadata:,} have metadata already"
        ),
        f"compared with {printable(report.meta.model)}, text {printable(repr(report.meta.text))}: "
        f"{counted(len(check.documents), 'sampled document')}",
        f"cosine: lowest {check.lowest:.4f}, median {check.median:.4f}; at least {check.min_cosine:g} in "
        f"{len(check.documents) - len(check.failing):,} ({check.matching_share:.1%})",
        *_left_out(check),
    ]
    if not check.is_accepted:
        return [*lines, *_refused(report, name)]
    failing = check.failing if report.written is None else report.written.failing
    if failing:
        lines += _worst(failing)
    if report.written is None:
        return [*lines, "The vectors are the model's. Nothing was written (--dry-run)."]
    return [*lines, *_written(report, report.written, name)]


def _left_out(check: SampleCheck) -> Iterator[str]:
    if check.without_text:
        yield f"left out of the sample: {counted(check.without_text, 'document')} without a text"
    if check.unreadable:
        yield f"left out of the sample: {counted(check.unreadable, 'document')} whose text is not a string"


def _worst(failing: Sequence[ComparedDocument]) -> Iterator[str]:
    yield f"Documents whose vector is not the model's: {len(failing):,}" + (
        f", of which the {WORST} most distant are:" if len(failing) > WORST else ""
    )
    for one in failing[:WORST]:
        cut = ", longer than the model reads" if one.is_truncated else ""
        yield f"  {one.cosine:7.4f}  {printable(one.key[0])}{cut}"


def _refused(report: AdoptionReport, name: str) -> Iterator[str]:
    check = report.check
    yield from _worst(check.failing)
    yield (
        f"Not adopted: {check.matching_share:.1%} of the vectors are the model's, and --share asks for "
        f"{check.share:.1%}. Nothing was written."
    )
    if report.variant is not None:
        yield _other_text(report, report.variant, name)
    elif check.fails_only_where_truncated:
        yield (
            f"Only documents longer than the model reads ({check.max_tokens:,} tokens) fail: their vectors were made "
            "with another `max_seq_length`. Give --model a copy of the model with that maximum in "
            "sentence_bert_config.json. Or adopt the others (--all and a lower --share), and embed these again: "
            f"`es-sbert ingest --index {name}{vector_field_option(report.field)}`."
        )
    elif check.matching_share >= 0.5:
        yield (
            "Most vectors are the model's. The others are probably of earlier versions of their texts. To adopt those "
            f"that match: the same command with --all and a lower --share. Then embed the others: "
            f"`es-sbert ingest --index {name}{vector_field_option(report.field)}`."
        )
    elif check.median >= _CLOSE:
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


def _other_text(report: AdoptionReport, variant: TextVariant, name: str) -> str:
    matches = f"The vectors match the text {printable(repr(variant.template))}"
    if variant.prompt is not None:
        put = f"with {printable(repr(variant.prompt))} in front" if variant.prompt else "without a prompt in front"
        return (
            f"{matches} {put} (median cosine {variant.median:.4f}), and es-sbert puts the model's own prompt for "
            "documents in front. Give --model a copy of the model whose config_sentence_transformers.json has the "
            'prompt that was used as `"prompts": {"document": …}`, or none.'
        )
    command = f"es-sbert index adopt {name}{vector_field_option(report.field)}"
    return (
        f"{matches} (median cosine {variant.median:.4f}). Run: `{command} --model {shlex.quote(report.meta.model)} "
        f"--text-template {_quoted(variant.template)}`"
    )


def _quoted(template: str) -> str:
    """A template as a word of a shell's command line."""
    if "\n" in template:
        escaped = template.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
        return f"$'{escaped}'"
    return shlex.quote(template)


def _written(report: AdoptionReport, written: MetadataCounts, name: str) -> Iterator[str]:
    ingest = f"`es-sbert ingest --index {name}{vector_field_option(report.field)}`"
    yield f"Adopted: {counted(written.adopted, 'vector')} of {report.index}.{report.field}."
    if written.failing:
        yield f"Embed the {counted(len(written.failing), 'failing document')} again: {ingest}."
    if written.without_text:
        yield (
            f"{counted(written.without_text, 'document')} with a vector and without a text: not adopted; {ingest} "
            "removes their vectors."
        )
    if written.unreadable:
        yield f"{counted(written.unreadable, 'document')} whose text is not a string: not adopted."
    if written.changed:
        yield (
            f"{counted(len(written.changed), 'document')} changed during the adoption and not adopted (first: "
            f"{printable(written.changed[0])}); {ingest} embeds them."
        )
    if written.deleted:
        yield f"{counted(written.deleted, 'document')} deleted during the adoption."
    for number, (document_id, reason) in enumerate(written.refused.items()):
        if number == WORST:
            yield f"{len(written.refused) - WORST:,} more updates were refused"
            break
        yield f"no update of {printable(document_id)}: {printable(reason)}"
    if report.with_vector < report.documents:
        yield f"Documents without a vector: {report.documents - report.with_vector:,}. Embed them: {ingest}."
