"""The body of `POST /v1/embeddings`, read and checked; its answer. Pure."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import orjson

from es_sbert.bundle.model import PromptKind
from es_sbert.encoder.types import Encoded
from es_sbert.errors import UsageError

Encoding = Literal["float", "base64"]

# What other providers' APIs (Cohere, Voyage) call the kinds: OpenAI's own API does not tell queries from documents.
INPUT_TYPES: dict[str | None, PromptKind | None] = {
    None: None, "query": "query", "document": "document", "search_query": "query", "search_document": "document",
}  # fmt: skip
_FIELDS = ("input", "model", "encoding_format", "dimensions", "user", "input_type")
_TOKEN_IDS = (
    "Send the texts themselves: token ids belong to the vocabulary of OpenAI's models. LangChain's OpenAIEmbeddings "
    "sends texts with check_embedding_ctx_length=False."
)


@dataclass(frozen=True)
class Limits:
    """What one request may hold.

    Attributes:
        texts: Most texts (OpenAI takes 2,048).
        characters: Most characters of all texts together.
    """

    texts: int = 2048
    characters: int = 2_000_000


@dataclass(frozen=True)
class EmbeddingsRequest:
    """What a caller asks for.

    Attributes:
        texts: At least one.
        model: The name that the caller uses; None is the default model.
        encoding: How vectors are written.
        dimensions: Length of a vector that the caller expects; None takes the model's.
        kind: Which of the model's prompts stands in front of each text.
    """

    texts: list[str]
    model: str | None
    encoding: Encoding
    dimensions: int | None
    kind: PromptKind | None


def read_request(body: bytes, limits: Limits) -> EmbeddingsRequest:
    """A request from its body.

    Raises:
        UsageError: no JSON object, a field that is missing, unknown or of another type, or too much text.
    """
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"the body is not JSON: {error}", 'Send an object such as {"input": "text"}.') from error
    if not isinstance(fields, dict):
        raise UsageError("the body is not a JSON object", 'Send an object such as {"input": "text"}.')
    for name in fields:
        if name not in _FIELDS:
            raise UsageError(f"unknown field {name!r}", f"Use of {', '.join(_FIELDS)}.")
    for name in ("model", "user"):
        if not isinstance(fields.get(name), str | None):
            raise UsageError(f"{name!r} is not a string", "Give a string, or leave it out.")
    encoding = fields.get("encoding_format")
    if encoding is None:
        encoding = "float"
    if encoding not in ("float", "base64"):
        raise UsageError(f"'encoding_format' is {encoding!r}", "Give float or base64.")
    kind = fields.get("input_type")
    if not isinstance(kind, str | None) or kind not in INPUT_TYPES:
        raise UsageError(f"'input_type' is {kind!r}", "Give query or document, or leave it out.")
    dimensions = fields.get("dimensions")
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        raise UsageError("'dimensions' is not a positive whole number", "Leave it out: the model's own count is used.")
    return EmbeddingsRequest(
        _read_input(fields.get("input"), limits), fields.get("model"), cast(Encoding, encoding), dimensions,
        INPUT_TYPES[kind],
    )  # fmt: skip


def _read_input(value: Any, limits: Limits) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts:
        raise UsageError("'input' is neither a text nor a list of texts", 'Send e.g. {"input": ["one", "two"]}.')
    if all(type(text) is int or isinstance(text, list) for text in texts):
        raise UsageError("'input' holds token ids", _TOKEN_IDS)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UsageError(f"'input[{number}]' is not a text", "Send a list of strings.")
        if not text:
            raise UsageError(f"'input[{number}]' is empty", "Leave empty texts out: they mean nothing.")
    if len(texts) > limits.texts:
        raise UsageError(f"'input' holds {len(texts):,} texts", f"Send at most {limits.texts:,} in one request.")
    characters = sum(map(len, texts))
    if characters > limits.characters:
        raise UsageError(
            f"'input' holds {characters:,} characters", f"Send at most {limits.characters:,} in one request."
        )
    return texts


def check_dimensions(asked: int | None, dimensions: int, model: str) -> None:
    """Refuse vectors of another length than the model's.

    Vectors may be cut short only where the model was trained so that their beginning means the same; nothing in a model
    folder says so, and a cut vector of any other model is silently a worse one.

    Raises:
        UsageError: another length.
    """
    if asked not in (None, dimensions):
        raise UsageError(
            f"the vectors of {model} have {dimensions} dimensions, not {asked}",
            f"Leave 'dimensions' out, or give {dimensions}.",
        )


def answer(encoded: Encoded, model: str, max_tokens: int, encoding: Encoding) -> bytes:
    """The answer's body.

    Args:
        encoded: Of the texts, in their order.
        model: The name by which clients know the model.
        max_tokens: Of a text, all that the model reads; what was cut is not counted as used.
        encoding: How vectors are written.
    """
    tokens = int(np.minimum(encoded.tokens, max_tokens).sum())
    data = []
    for index, (vector, truncated) in enumerate(zip(encoded.vectors, encoded.truncated.tolist(), strict=True)):
        entry = {"object": "embedding", "index": index, "embedding": _written(vector, encoding)}
        # Not OpenAI's: its API refuses texts that are too long. Clients ignore what they do not know.
        data.append(entry | {"truncated": True} if truncated else entry)
    return orjson.dumps(
        {
            "object": "list",
            "data": data,
            "model": model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def _written(vector: np.ndarray[tuple[int], np.dtype[np.float32]], encoding: Encoding) -> object:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return np.ascontiguousarray(vector)


def models_answer(names: Sequence[str], created: int) -> list[dict[str, Any]]:
    """Models as `GET /v1/models` lists them.

    Args:
        created: Seconds since 1970, which OpenAI's clients want to see.
    """
    return [{"id": name, "object": "model", "created": created, "owned_by": "es-sbert"} for name in names]
