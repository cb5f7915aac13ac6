"""Settings of a new index or vector field, checked against each other and against the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from es_sbert.arguments import spell_out
from es_sbert.config import DEFAULT_MODEL, DEFAULT_VECTOR_FIELD
from es_sbert.errors import UsageError
from es_sbert.index.mapping import ChunkRules
from es_sbert.index.text_template import check_name_conflicts, parse_text_options
from es_sbert.index.vector_field import FieldRequest

if TYPE_CHECKING:
    from es_sbert.encoder.encoder import Encoder


class IndexOptions(TypedDict, total=False):
    """Keyword arguments of a new index or vector field; all are optional.

    Attributes:
        text_fields: Fields whose text is embedded; several, and the values of a list, are joined with line feeds.
        text_template: Template of the text, instead of `text_fields`, e.g. `{title}. {body}`.
        index_type: `hnsw` (default), `int8_hnsw`, `int4_hnsw`, `bbq_hnsw` or `flat`.
        passages: Split texts into passages of this many tokens, each with an embedding.
        passage_overlap: Tokens that neighboring passages share; by default an eighth of a passage.
        shards, replicas: Numbers of shards and replicas of a new index, for `ensure_vector_field`.
    """

    text_fields: Sequence[str]
    text_template: str | None
    index_type: str | None
    passages: int | None
    passage_overlap: int | None
    shards: int | None
    replicas: int | None


INDEX_DEFAULTS: dict[str, object] = dict.fromkeys(IndexOptions.__annotations__) | {"text_fields": ()}


@spell_out(IndexOptions, INDEX_DEFAULTS)
def request_vector_field(
    model: str | Path | Encoder | None = None, vector_field: str = DEFAULT_VECTOR_FIELD, **options: Unpack[IndexOptions]
) -> FieldRequest:
    """Make the request for a vector field of a model and check it before an engine is contacted.

    Args:
        model: A loaded encoder, or a model's folder, bundle, hub id, installed or registered name.

    Raises:
        UsageError: the settings conflict, or passages are longer than the model reads.
        ModelError: the model cannot be found or is broken.
    """
    from es_sbert.bundle.model_lookup import resolve_model
    from es_sbert.bundle.sentence_model import read_sentence_model
    from es_sbert.runtime.tokenizer import SentenceTokenizer

    text = parse_text_options(options.get("text_fields", ()), options.get("text_template"))
    if text is not None:
        check_name_conflicts({vector_field: text})
    if model is None or isinstance(model, str | Path):
        name = str(model or DEFAULT_MODEL)
        loaded = read_sentence_model(resolve_model(name), name)
        identity = (loaded.fingerprint, loaded.name, loaded.dimensions)
    else:
        identity = (model.info.fingerprint, model.info.model, model.info.dimensions)
    tokens, overlap = options.get("passages"), options.get("passage_overlap")
    if tokens is None and overlap is not None:
        raise UsageError("`passage_overlap` requires `passages`", "Set `passages=TOKENS` too.")
    rules = None if tokens is None else ChunkRules.from_tokens(tokens, overlap)
    if rules is not None:
        # `make_chunker` rejects passages that are longer than the model reads.
        tokenizer = SentenceTokenizer(loaded) if model is None or isinstance(model, str | Path) else model
        tokenizer.make_chunker(rules.tokens, rules.overlap, "document")
    return FieldRequest(
        vector_field,
        *identity,
        index_type=options.get("index_type"),
        text=None if text is None else text.template,
        passages=rules,
    )
