"""OpenAI-compatible API: `POST /v1/embeddings` and `GET /v1/models`.

OpenAI's API does not distinguish queries from documents, but models with prompts encode them differently. `input_type`
selects the prompt, as in the APIs of Cohere and Voyage. Without it, the model's default prompt (if any) is used.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Literal, cast

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from es_sbert.arguments import as_text
from es_sbert.bundle.modules import PromptKind
from es_sbert.encoder.text_pipeline import EncodeResult
from es_sbert.engines.rest import Json
from es_sbert.errors import EsSbertError, Overloaded, UsageError
from es_sbert.gateway.admission import AdmissionControl, RequestSlot, has_bearer_key
from es_sbert.gateway.errors import error_text, http_status
from es_sbert.gateway.incoming_request import IncomingRequest, is_uncompressed_json
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.model_registry import ModelRegistry
from es_sbert.gateway.settings import GatewaySettings, Limits, ModelNotServed
from es_sbert.messages import pluralize, shorten
from es_sbert.vectors import Vectors

Handler = Callable[[Request, RequestSlot], Awaitable[Response]]


class OpenAIApi:
    """Endpoints of the embeddings API.

    Args:
        models: Models that clients may name.
        settings: Settings of the gateway.
        metrics: Counts requests.
        admission: Limits requests.
    """

    def __init__(
        self, models: ModelRegistry, settings: GatewaySettings, metrics: GatewayMetrics, admission: AdmissionControl
    ) -> None:
        self._models = models
        self._key = settings.embeddings_key
        self._limits = settings.limits.model_copy(update={"body_bytes": settings.limits.embeddings_bytes})
        self._metrics = metrics
        self._admission = admission
        self._started = int(time.time())

    def routes(self) -> list[Route]:
        """The routes of the API."""
        return [
            Route("/v1/embeddings", self._endpoint("embeddings", self._embeddings), methods=["POST"]),
            Route("/v1/models", self._endpoint("models", self._list_models), methods=["GET"]),
            Route("/v1/models/{model:path}", self._endpoint("models", self._get_model), methods=["GET"]),
            Route("/v1/openapi.json", lambda _: error_response(404, _NO_DESCRIPTION), methods=["GET"]),
        ]

    def _endpoint(self, kind: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Add metrics, admission control, authentication and error responses to a handler."""

        async def endpoint(request: Request) -> Response:
            with self._metrics.request(kind) as outcome, self._admission.slot() as slot:
                try:
                    if has_bearer_key(request, self._key):
                        response = await handler(request, slot)
                    else:
                        response = error_response(401, _WRONG_KEY, code="invalid_api_key")
                except ClientDisconnect:
                    return Response(status_code=outcome.status)
                except Exception as error:
                    response = exception_response(error)
                outcome.status = response.status_code
                return response

        return endpoint

    async def _embeddings(self, request: Request, slot: RequestSlot) -> Response:
        if not is_uncompressed_json(request):
            return error_response(415, "The body is not uncompressed JSON. Send it as Content-Type: application/json.")
        incoming = IncomingRequest.from_scope(request.scope, request.receive, self._limits, slot)
        parsed = parse_embeddings_request(await incoming.body(), self._limits)
        return await incoming.cancel_on_disconnect(self._embed(parsed))

    async def _embed(self, request: EmbeddingsRequest) -> Response:
        embedder = await self._models.get(request.model)
        name = request.model or self._models.settings.public_names[0]
        dimensions = request.dimensions or embedder.info.dimensions
        if dimensions > embedder.info.dimensions:
            raise UsageError(
                f"the vectors of {name} have {embedder.info.dimensions} dimensions, not {dimensions}",
                f"Leave 'dimensions' out, or set it to at most {embedder.info.dimensions}.",
            ).about("dimensions", dimensions)
        encoded = await embedder.embed(request.texts, request.kind)
        encoded = replace(encoded, vectors=cut_vectors(encoded.vectors, dimensions))
        body = embeddings_response(encoded, name, embedder.input_limit(request.kind), request.encoding_format)
        return Response(body, media_type="application/json")

    async def _list_models(self, request: Request, slot: RequestSlot) -> Response:
        names = self._models.settings.public_names
        return JSONResponse({"object": "list", "data": [self._model_object(name) for name in names]})

    async def _get_model(self, request: Request, slot: RequestSlot) -> Response:
        name = request.path_params["model"]
        self._models.settings.find(name)
        return JSONResponse(self._model_object(name))

    def _model_object(self, name: str) -> Json:
        # OpenAI's clients expect a time.
        return {"id": name, "object": "model", "created": self._started, "owned_by": "es-sbert"}


VectorEncoding = Literal["float", "base64"]
_TOKEN_IDS_REMEDY = (
    "Send the texts themselves: token ids belong to the vocabulary of OpenAI's models. LangChain's OpenAIEmbeddings "
    "sends texts with check_embedding_ctx_length=False."
)


class EmbeddingsRequest(BaseModel):
    """A request for embeddings.

    Attributes:
        input: A text, or at least one; none is empty.
        model: Name of the model; None is the default.
        encoding_format: Format of the vectors.
        dimensions: Number of values to keep of each vector; None for all.
        input_type: The model's prompt for the texts, as in this API and in those of Cohere and Voyage.
        user: Ignored.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    input: str | list[str]
    model: str | None = None
    encoding_format: VectorEncoding | None = None
    dimensions: int | None = Field(default=None, ge=1)
    input_type: Literal["query", "document", "search_query", "search_document"] | None = None
    user: str | None = None

    @property
    def texts(self) -> list[str]:
        """The texts to embed."""
        return [self.input] if isinstance(self.input, str) else self.input

    @property
    def kind(self) -> PromptKind | None:
        """The prompt."""
        return None if self.input_type is None else cast(PromptKind, self.input_type.removeprefix("search_"))


def parse_embeddings_request(body: bytes, limits: Limits) -> EmbeddingsRequest:
    """Parse and check a request.

    Raises:
        UsageError: the body is not a JSON object; a field is invalid, missing or unknown; or there is too much text.
    """
    example = 'Send an object such as {"input": "text"}.'
    most, longest = limits.embeddings_texts, limits.embeddings_characters
    limit = f"Send at most {most:,} texts and {longest:,} characters in one request."
    try:
        parsed = orjson.loads(body)
        if isinstance(parsed, dict):
            # Before the validation, which creates an error for each unknown field and each wrong item.
            unknown = next((name for name in parsed if name not in EmbeddingsRequest.model_fields), None)
            if unknown is not None:
                raise UsageError(f"{unknown}: Extra inputs are not permitted", example, setting=shorten(unknown))
            items = parsed.get("input")
            if isinstance(items, list):
                _check_items(items, most, limit)
        request = EmbeddingsRequest.model_validate(parsed)
    except orjson.JSONDecodeError as error:
        _check_unicode(body)
        raise UsageError(f"the body is not JSON: {error}", example) from error
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = str(problem["loc"][0]) if problem["loc"] else None
        raise UsageError(f"{field or 'the body'}: {problem['msg']}", example, setting=field) from None
    texts = request.texts
    if not texts or not all(texts):
        raise UsageError("'input' is empty, or has an empty text", "Leave empty texts out.", setting="input")
    characters = sum(map(len, texts))
    if characters > longest:
        message = f"'input' holds {pluralize(len(texts), 'text')} of {characters:,} characters"
        raise UsageError(message, limit, setting="input")
    return request


def _check_items(items: list[object], most: int, limit: str) -> None:
    first = items[0] if items else None
    ids = first if isinstance(first, list) else [first]
    if ids and all(type(each) is int for each in ids):
        raise UsageError("'input' holds token ids", _TOKEN_IDS_REMEDY, setting="input")
    if isinstance(first, list):
        remedy = 'Send one list of texts: {"input": ["a", "b"]}.'
        raise UsageError("'input' holds a list of lists", remedy, setting="input")
    if len(items) > most:
        raise UsageError(f"'input' holds {pluralize(len(items), 'text')}", limit, setting="input")
    for position, item in enumerate(items):
        if not isinstance(item, str):
            shown = shorten(orjson.dumps(item).decode())
            remedy = "Send texts only, and leave out missing ones."
            raise UsageError(f"'input[{position}]' is {shown}, not a text", remedy).about("input", item)


def _check_unicode(body: bytes) -> None:
    """Refuse a text that was cut in a surrogate pair, as JavaScript does. It is JSON, but orjson refuses it."""
    with suppress(json.JSONDecodeError, UnicodeDecodeError, AttributeError, RecursionError):  # orjson's error remains
        for name, value in json.loads(body).items():
            for text in value if isinstance(value, list) else [value]:
                as_text(str(text), name)


def cut_vectors(vectors: Vectors, dimensions: int) -> Vectors:
    """Truncate vectors and scale them to length 1, as the model `NAME@DIMENSIONS` does.

    Vectors that are not longer are unchanged. A vector whose remaining values are all zero is not scaled.
    """
    if dimensions >= vectors.shape[1]:
        return vectors
    shortened = vectors[:, :dimensions]
    lengths = np.linalg.norm(shortened, axis=1, keepdims=True)  # (texts, 1)
    scaled: Vectors = np.divide(shortened, lengths, out=np.zeros_like(shortened), where=lengths > 0)
    return scaled


def embeddings_response(encoded: EncodeResult, model: str, max_tokens: int, encoding: VectorEncoding | None) -> bytes:
    """The body of the response.

    Args:
        encoded: Vectors of the texts, in order.
        model: The model's name for clients.
        max_tokens: Maximum tokens that the model reads of a text; truncated tokens do not count as used.
        encoding: Format of the vectors.
    """
    tokens = int(np.minimum(encoded.tokens, max_tokens).sum())
    data = []
    for index, (vector, truncated) in enumerate(zip(encoded.vectors, encoded.truncated.tolist(), strict=True)):
        is_text = encoding == "base64"
        embedding = (
            base64.b64encode(vector.astype("<f4").tobytes()).decode() if is_text else np.ascontiguousarray(vector)
        )
        entry = {"object": "embedding", "index": index, "embedding": embedding}
        # An extension: OpenAI's API rejects texts that are too long. Clients ignore unknown fields.
        data.append(entry | {"truncated": True} if truncated else entry)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    body = {"object": "list", "data": data, "model": model, "usage": usage}
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


logger = logging.getLogger(__name__)

_WRONG_KEY = "The API key is missing or wrong. Send the gateway's own key as `Authorization: Bearer KEY`."
_NO_DESCRIPTION = "The gateway has no OpenAPI description. Its API is that of OpenAI's embeddings."
_ERROR_HEADERS = {401: {"www-authenticate": "Bearer"}, 408: {"connection": "close"}, 429: {"retry-after": "1"}}


def error_response(
    status: int,
    message: str,
    *,
    kind: str = "invalid_request_error",
    param: str | None = None,
    code: str | None = None,
) -> Response:
    """Create an error response in OpenAI's format.

    Args:
        message: The problem and its remedy.
        kind: `type` of the error.
        param: The member of the request that is wrong.
        code: `code` of the error.
    """
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return JSONResponse(body, status, headers=_ERROR_HEADERS.get(status))


def exception_response(error: Exception) -> Response:
    """Convert an exception to the response to a failed request.

    Errors that are not the caller's fault are logged, and the caller gets no details.
    """
    match error:
        case UsageError():
            return error_response(http_status(error), error_text(error), param=error.setting, code=error.code)
        case ModelNotServed():
            return error_response(404, error_text(error), code="model_not_found")
        case Overloaded():
            return error_response(429, error_text(error), kind="requests", code="rate_limit_exceeded")
    is_expected = isinstance(error, EsSbertError)
    logged = error_text(error) if isinstance(error, EsSbertError) else error
    logger.error("an embeddings request failed: %s", logged, exc_info=None if is_expected else error)
    # Not the message: it may contain the path of a model, or a response of the hub.
    told = "The gateway cannot embed the texts; its log says why."
    return error_response(503 if is_expected else 500, told, kind="server_error")
