"""The plan of a run of `es-sbert adapt`: its settings, the fields and model that it chooses, and its recipe."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
from transformers.utils import logging as transformers_logging

from es_sbert.bundle.model_lookup import find_index_model, resolve_model
from es_sbert.bundle.modules import PromptKind
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.config import DEFAULT_MODEL
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import Retrier, without_retries
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.evaluation.judgement_files import LabeledQuery
from es_sbert.index.derived_fields import mapped_fields
from es_sbert.index.document_sample import DocumentSelection, read_documents
from es_sbert.index.mapping import document_meta_field, vector_fields
from es_sbert.index.text_template import TITLE_FIELDS, TextTemplate, mapping_field_names
from es_sbert.messages import pluralize, setting
from es_sbert.runtime.siamese_encoder import open_siamese_encoder
from es_sbert.runtime.tokenizer import SentenceTokenizer
from es_sbert.settings import AdaptSettings
from es_sbert.training.pair_corpus import FieldChoice, document_text, sentence_problem
from es_sbert.training.recipe import Recipe
from es_sbert.training.run_folder import hash_model

# Number of sampled documents that the choice of the fields is based on.
_LOOKED_AT = 500
_CHECKPOINTS_PER_EPOCH = 4
# Of titles and bodies.
_TITLE_WORDS = (2, 20)  # median number of words
_BODY_WORDS = 8
# Minimum share of documents with text in the field, and of distinct texts among them.
_MIN_SHARE, _MIN_DISTINCT = 0.5, 0.5


@dataclass(frozen=True)
class AdaptInputs:
    """Queries that do not come from the index.

    Attributes:
        evaluated: Labeled queries to compare the models with, instead of held-out titles or sentences.
        trained: Labeled queries to train on, such as those of a search log with the documents that were opened.
    """

    evaluated: Sequence[LabeledQuery] | None = None
    trained: Sequence[LabeledQuery] = ()

    def document_ids(self) -> set[str]:
        """The ids of all relevant documents."""
        return {id for query in (*(self.evaluated or ()), *self.trained) for id in query.ids}

    def digest(self) -> str:
        """Compute the SHA-256 of all these queries."""
        lists = [
            None if own is None else [[one.text, *one.ids] for one in own] for own in (self.evaluated, self.trained)
        ]
        return hashlib.sha256(orjson.dumps(lists)).hexdigest()


@dataclass(frozen=True)
class AdaptPlan:
    """The choices of a run, based on the mapping and a sample of the documents.

    Attributes:
        model: Folder of the model to start from.
        model_name: Its name.
        model_hash: Hash of its files.
        fields: Title and body.
        embedded: Template of the text that the index embeds.
    """

    model: str
    model_name: str
    model_hash: str
    fields: FieldChoice
    embedded: str

    def describe(self) -> str:
        """Describe the choices in one line."""
        body = ", ".join(self.fields.body)
        queries = f"field {self.fields.title}" if self.fields.title else f"first sentence of {body}"
        return f"Model: {self.model_name}. Queries: {queries}. Texts: {body}"


def make_plan(
    engine: Engine,
    state: IndexState,
    settings: AdaptSettings,
    report: Callable[[str], None],
    retrying: Retrier = without_retries,
) -> AdaptPlan:
    """Choose model and fields, based on the mapping and a sample of documents, and report the fields.

    Raises:
        ModelNotFound: the model of the index is not on this machine.
        UnsupportedArchitecture: es-sbert does not support training of the model.
        IndexMismatch: no field is suitable.
        UsageError: a title is needed, but no field looks like one; or a title was chosen that nothing uses.
    """
    index = settings.index
    if settings.title_field is not None and settings.pairs == "sentence":
        raise UsageError(
            f"{setting('pairs', settings.pairs)} does not use titles", f"Omit it or {setting('title_field')}."
        ).about("pairs", settings.pairs)
    metas = vector_fields(state.mappings, state.name)
    meta = metas.get(settings.vector_field)
    if settings.model is not None or meta is None:
        name = settings.model or DEFAULT_MODEL
        folder = resolve_model(name)
    else:
        located = find_index_model(index, meta.model, meta.fingerprint)
        name, folder = located.name, Path(located.folder)
    transformers_logging.disable_progress_bar()
    open_siamese_encoder(folder, name=name)  # refuses a model that cannot be trained, before documents are read
    embedded = None if meta is None or meta.text is None else TextTemplate.parse(meta.text)
    ours = {used for field in metas for used in (field, document_meta_field(field))}
    named = [*(embedded.fields if embedded else ()), settings.title_field, *settings.body_fields]
    names = list(dict.fromkeys([*filter(None, named), *text_fields(state.mappings.get("properties", {}), ours)]))
    selection = DocumentSelection(index, settings.filter, _LOOKED_AT, settings.seed)
    looked_at = read_documents(engine, selection, names, retrying=retrying)
    fields = field_statistics([document.source for document in looked_at], names, embedded)
    report(f"Fields with text, by {pluralize(len(looked_at), 'document')}: {', '.join(map(str, fields)) or 'none'}")
    use_title = settings.pairs != "sentence"
    choice = choose_fields(fields, embedded, title=settings.title_field, body=settings.body_fields, use_title=use_title)
    if settings.pairs == "title" and choice.title is None:
        raise UsageError(
            "no field looks like a title", f"Set {setting('title_field')} or {setting('pairs', 'sentence')}."
        ).about("title_field")
    template = embedded or TextTemplate.from_fields(choice.body)
    if choice.title is None:
        body = template.of_fields(choice.body)
        unfit = sentence_problem([text for document in looked_at if (text := document_text(body, document))])
        if unfit is not None:
            report(f"First sentences are unfit for queries: {unfit}. {setting('train_queries')} may work better.")
    return AdaptPlan(str(folder), name, hash_model(folder), choice, template.template)


@dataclass(frozen=True)
class FieldStatistics:
    """Statistics of a field in a sample of documents.

    Attributes:
        name: The field, dotted if it is nested.
        share: Share of the documents that have text in it.
        words: Median number of words of these texts.
        distinct: Number of different texts divided by the number of texts.
    """

    name: str
    share: float
    words: float
    distinct: float

    def __str__(self) -> str:
        return f"{self.name} ({self.words:,.0f} words, in {self.share:.0%} of the documents)"


def field_statistics(
    documents: Sequence[Json], names: Sequence[str], embedded: TextTemplate | None = None
) -> list[FieldStatistics]:
    """Compute statistics of the text fields in a sample of documents; fields without text are left out.

    Args:
        documents: The documents.
        names: The fields.
        embedded: The text that the index embeds, whose filters apply to its fields; None if that is not known.
    """
    found = []
    for name in names:
        template = (embedded or TextTemplate("", ())).of_fields([name])
        texts = [text for document in documents if (text := template.readable_text(document).strip())]
        if texts:
            words = statistics.median(len(text.split()) for text in texts)
            found.append(FieldStatistics(name, len(texts) / len(documents), words, len(set(texts)) / len(texts)))
    return found


def choose_fields(
    fields: Sequence[FieldStatistics],
    embedded: TextTemplate | None,
    *,
    title: str | None = None,
    body: Sequence[str] = (),
    use_title: bool = True,
) -> FieldChoice:
    """Choose title and body.

    The body is the text that the index embeds, or else the field with the longest texts. The title is a field with
    short texts that differ between documents. It is not in the body, or is one of several fields of the embedded text.
    Among several such fields, a common name such as `title` decides.

    Args:
        fields: Text fields of the index.
        embedded: The text that the index embeds, if that is known.
        title, body: Fields that the user has chosen.
        use_title: Whether a title may be chosen; otherwise it is None.

    Raises:
        IndexMismatch: a field that was chosen has no text, or no field has texts long enough for a body.
    """
    by_name = {field.name: field for field in fields}
    missing = [name for name in (*body, *([title] if title else [])) if name not in by_name]
    if missing:
        raise IndexMismatch(
            f"no document of the sample has text in {', '.join(missing)}",
            f"Use one of the fields with text: {', '.join(by_name) or 'there is none'}.",
        )
    texts = list(body) or ([name for name in embedded.fields if name in by_name] if embedded else [])
    if not texts:
        long = [field for field in fields if field.words >= _BODY_WORDS and field.share >= _MIN_SHARE]
        if not long:
            raise IndexMismatch(
                f"no field holds texts of {_BODY_WORDS} words or more in at least {_MIN_SHARE:.0%} of the documents",
                f"Set {setting('body_fields')} to the field of the text.",
            )
        texts = [max(long, key=lambda field: field.words).name]
    if title is None and use_title:
        title = _choose_title(by_name, texts, keep=bool(body))
    body_fields = tuple(name for name in texts if name != title)
    if not body_fields:
        raise IndexMismatch(
            f"{title} is both title and body", f"Set another {setting('title_field')} or {setting('body_fields')}."
        )
    return FieldChoice(title, body_fields)


def _choose_title(by_name: Mapping[str, FieldStatistics], texts: Sequence[str], *, keep: bool) -> str | None:
    """Find the field of titles, or None; a body field only if another one remains and the body may change."""
    longest = max(by_name[name].words for name in texts)  # median number of words
    may_lose = len(texts) > 1 and not keep
    fitting = [
        field
        for field in by_name.values()
        if (field.name not in texts or may_lose)
        and _TITLE_WORDS[0] <= field.words <= min(_TITLE_WORDS[1], longest / 2)
        and field.share >= _MIN_SHARE
        and field.distinct >= _MIN_DISTINCT
    ]

    def preference(field: FieldStatistics) -> tuple[int, bool, float]:
        last = field.name.rpartition(".")[2].lower()
        named = TITLE_FIELDS.index(last) if last in TITLE_FIELDS else len(TITLE_FIELDS)
        return named, field.name not in texts, -field.distinct

    return min(fitting, key=preference).name if fitting else None


# Types of fields that may hold words; dates and addresses are strings too.
_WORD_TYPES = frozenset({"text", "match_only_text", "annotated_text", "search_as_you_type", "keyword", "wildcard"})


def text_fields(properties: Json, ours: Collection[str]) -> list[str]:
    """List the dotted names of the fields that may hold words, without those that es-sbert adds.

    Args:
        properties: `properties` of a mapping.
        ours: Vector fields and their metadata, which are left out.
    """
    types = {name: field.get("type") for name, field in mapped_fields(properties)}
    names = (name for name in mapping_field_names(properties) if name.partition(".")[0] not in ours)
    return [name for name in names if types.get(name) in _WORD_TYPES]


def training_recipe(settings: AdaptSettings, plan: AdaptPlan) -> Recipe:
    """Create the recipe of the training; its data are `train.jsonl` and `dev.jsonl` in the run's folder."""
    model = read_sentence_model(Path(plan.model), plan.model_name)
    kinds: dict[str, PromptKind] = {"anchor": "query", "positive": "document", "negative": "document"}
    negatives = [f"negative{number}" for number in range(1, settings.negatives + 1)]
    columns = {"anchor": "query", "positive": "text"}
    data = {
        "path": "train.jsonl",
        "columns": columns | ({"negative": negatives} if negatives else {}),
        # An empty prompt needs no name; it hides the prompts of other names (see `SentenceModel.prompt_name`).
        "prompts": {role: model.prompt_name(kind) for role, kind in kinds.items() if model.prompt(kind)},
    }
    stage = {
        "name": "pairs",
        "data": [data],
        "objective": {"kind": "in-batch"},
        "epochs": settings.epochs,
        "batch": settings.batch,
        "learning_rate": settings.learning_rate,
        "dev": {
            "task": "pairs",
            "path": "dev.jsonl",
            "columns": columns,
            "prompts": {role: kinds[role] for role in columns},
        },
        "checkpoints_per_epoch": _CHECKPOINTS_PER_EPOCH,
    }
    return Recipe.model_validate(
        {
            "name": settings.name,
            "description": f"{plan.model_name}, adapted to the documents of the index {settings.index}",
            "model": {"base": plan.model},
            "stages": [stage],
            "seed": settings.seed,
        }
    )


def first_passages(texts: Sequence[str], plan: AdaptPlan, tokens: int) -> list[str]:
    """Return the first passage of each text: its beginning, up to the end of a paragraph or sentence.

    Args:
        texts: The texts.
        plan: The plan with the model whose tokens are counted.
        tokens: Maximum tokens of a passage; fewer if the model reads fewer.
    """
    model = read_sentence_model(Path(plan.model), plan.model_name)
    split = SentenceTokenizer(model).make_chunker(min(tokens, model.input_limit("document")), 0, "document")
    return [text[spans[0][0] : spans[0][1]] if spans else text for text, spans in zip(texts, split(texts), strict=True)]
