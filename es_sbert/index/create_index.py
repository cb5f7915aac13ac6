"""Create an index with a vector field for a model, or add the field to an index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, Unpack

from es_sbert.config import DEFAULT_MODEL, DEFAULT_VECTOR_FIELD
from es_sbert.engines.protocol import Engine
from es_sbert.errors import UsageError
from es_sbert.index.mapping import ChunkRules
from es_sbert.index.text_template import TextTemplate, check_name_conflicts, format_text_options, parse_text_options
from es_sbert.index.vector_field import FieldRequest, VectorField, ensure_vector_field

if TYPE_CHECKING:
    from es_sbert.encoder.encoder import Encoder


class IndexOptions(TypedDict, total=False):
    """Keyword arguments of a new index or vector field; all may be left out.

    Attributes:
        text_fields: Fields whose text is embedded, joined with line feeds.
        text_template: Template of the text in their place, e.g. `{title}. {body}`.
        index_type: `hnsw` (default), `int8_hnsw`, `int4_hnsw`, `bbq_hnsw` or `flat`.
        passages: Split texts into passages of this many tokens, each with an embedding.
        passage_overlap: Tokens that neighbouring passages share; by default an eighth of a passage.
        shards, replicas: Of a new index.
    """

    text_fields: Sequence[str]
    text_template: str | None
    index_type: str | None
    passages: int | None
    passage_overlap: int | None
    shards: int | None
    replicas: int | None


@dataclass(frozen=True)
class VectorFieldPlan:
    """A vector field for a model, checked before an engine is contacted.

    Attributes:
        vector_field: Name of the field.
        fingerprint, model_name, dimensions: Of the model.
        text: Template of the embedded text; None leaves it to the first load.
        chunk_rules: How texts are split; None for one vector per document.
        options: As given.
    """

    vector_field: str
    fingerprint: str
    model_name: str
    dimensions: int
    text: TextTemplate | None
    chunk_rules: ChunkRules | None
    options: IndexOptions

    @classmethod
    def of(
        cls,
        model: str | Encoder | None = None,
        vector_field: str = DEFAULT_VECTOR_FIELD,
        **options: Unpack[IndexOptions],
    ) -> VectorFieldPlan:
        """Check the options against each other and against the model.

        Args:
            model: A loaded encoder, or a model's folder, bundle, hub id, installed or registered name.

        Raises:
            UsageError: options that contradict each other, or passages that are longer than the model reads.
            ModelError: the model is not found or broken.
        """
        from es_sbert.bundle.model_lookup import resolve_model
        from es_sbert.bundle.sentence_model import read_sentence_model
        from es_sbert.encoder.tokenizer import SentenceTokenizer

        text = parse_text_options(options.get("text_fields", ()), options.get("text_template"))
        if text is not None:
            check_name_conflicts({vector_field: text})
        if model is None or isinstance(model, str):
            name = model or DEFAULT_MODEL
            loaded = read_sentence_model(resolve_model(name), name)
            identity = (loaded.fingerprint, loaded.name, loaded.dimensions)
        else:
            identity = (model.info.fingerprint, model.info.model, model.info.dimensions)
        tokens, overlap = options.get("passages"), options.get("passage_overlap")
        if tokens is None:
            if overlap is not None:
                raise UsageError("--passage-overlap is for passages", "Give --passages TOKENS too.")
            return cls(vector_field, *identity, text, None, options)
        rules = ChunkRules.of(tokens, overlap)
        # Rejects passages that are longer than the model reads.
        splitter = SentenceTokenizer(loaded).splitter if model is None or isinstance(model, str) else model.splitter
        splitter(rules.tokens, rules.overlap, "document")
        return cls(vector_field, *identity, text, rules, options)

    def ensure(self, engine: Engine, index: str) -> VectorField:
        """Create the index or the field where they are missing; see `ensure_vector_field`.

        Raises:
            IndexMismatch, UsageError, EngineError: see `ensure_vector_field`.
        """
        text_fields, text_template = self.options.get("text_fields", ()), self.options.get("text_template")
        return ensure_vector_field(
            engine,
            index,
            FieldRequest(
                name=self.vector_field,
                fingerprint=self.fingerprint,
                model_name=self.model_name,
                dimensions=self.dimensions,
                index_type=self.options.get("index_type"),
                text=None if self.text is None else self.text.template,
                passages=self.chunk_rules,
                text_options=format_text_options(self.vector_field, text_fields, text_template),
            ),
            shards=self.options.get("shards"),
            replicas=self.options.get("replicas"),
        )
