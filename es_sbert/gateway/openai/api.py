"""`POST /v1/embeddings` and `GET /v1/models`, as OpenAI's API has them.

OpenAI's API does not say whether a text is a query or a document, and models with prompts encode the two differently.
`input_type` says it, as in the APIs of Cohere and Voyage; without it no prompt is put in front (or the model's default
one), which is right for models that have none.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from es_sbert.errors import ModelNotFound
from es_sbert.gateway.embedding.models import Models
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.openai.body import is_plain_json, read_body, while_connected
from es_sbert.gateway.openai.errors import describe, error_response, model_not_found
from es_sbert.gateway.openai.request import (
    EmbeddingsRequest,
    Limits,
    answer,
    check_dimensions,
    models_answer,
    read_request,
)
from es_sbert.gateway.own_key import may

if TYPE_CHECKING:
    from es_sbert.gateway.admission import Admission, Slot

Endpoint = Callable[[Request, "Slot"], Awaitable[Response]]


class EmbeddingsApiSettings(BaseModel):
    """Limits of the API, and who may use it.

    Attributes:
        max_texts: Most texts of a request.
        max_characters: Most characters of a request's texts together.
        max_body: Most bytes of a request.
        api_key: What callers must send as bearer token; None asks for nothing.
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    max_texts: int = Field(default=2048, ge=1)
    max_characters: int = Field(default=2_000_000, ge=1)
    max_body: int = Field(default=16 << 20, ge=1)
    api_key: SecretStr | None = None


def embedding_routes(
    models: Models, settings: EmbeddingsApiSettings, metrics: GatewayMetrics, admission: Admission
) -> list[Route]:
    """The routes of the API."""
    limits = Limits(settings.max_texts, settings.max_characters)
    listed = models_answer(models.settings.public_names, int(time.time()))

    async def embeddings(request: Request, slot: Slot) -> Response:
        if not is_plain_json(request):
            return error_response(
                415, "The body is not plain JSON. Send it uncompressed, as Content-Type: application/json.",
                kind="invalid_request_error",
            )  # fmt: skip
        asked = read_request(await read_body(request, settings.max_body, slot), limits)
        return await while_connected(request, embed(asked))

    async def embed(asked: EmbeddingsRequest) -> Response:
        try:
            models.settings.find(asked.model)
        except ModelNotFound as error:
            return model_not_found(error)
        embedder = await models.get(asked.model)
        info = embedder.info
        name = asked.model or models.settings.public_names[0]
        check_dimensions(asked.dimensions, info.dimensions, name)
        encoded = await embedder.embed(asked.texts, asked.kind)
        return Response(answer(encoded, name, info.max_tokens, asked.encoding), media_type="application/json")

    async def list_models(request: Request, slot: Slot) -> Response:
        return JSONResponse({"object": "list", "data": listed})

    async def one_model(request: Request, slot: Slot) -> Response:
        name = request.path_params["model"]
        for model in listed:
            if model["id"] == name:
                return JSONResponse(model)
        try:
            models.settings.find(name)
        except ModelNotFound as error:
            return model_not_found(error)
        return JSONResponse(models_answer([name], int(time.time()))[0])

    def guarded(kind: str, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def answered(request: Request) -> Response:
            with metrics.request(kind) as outcome, admission.slot() as slot:
                try:
                    response = await endpoint(request, slot) if may(request, settings.api_key) else _unauthorised()
                except ClientDisconnect:
                    return Response(status_code=outcome.status)  # nobody reads it
                except Exception as error:
                    response = describe(error)
                outcome.status = response.status_code
                return response

        return answered

    return [
        Route("/v1/embeddings", guarded("embeddings", embeddings), methods=["POST"]),
        Route("/v1/models", guarded("models", list_models), methods=["GET"]),
        Route("/v1/models/{model:path}", guarded("models", one_model), methods=["GET"]),
    ]


def _unauthorised() -> Response:
    return error_response(
        401, "The API key is missing or wrong. Send the gateway's own key as `Authorization: Bearer KEY`.",
        kind="invalid_request_error", code="invalid_api_key",
    )  # fmt: skip
