"""The gateway's own paths alone, without an engine behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import SecretStr
from starlette.applications import Starlette

from es_sbert.config import EngineSettings
from es_sbert.gateway.admission import AdmissionControl, ConnectionLimiter
from es_sbert.gateway.app import health_routes
from es_sbert.gateway.metrics import GatewayMetrics, metrics_routes
from es_sbert.gateway.model_registry import ModelRegistry
from es_sbert.gateway.openai_api import OpenAIApi
from es_sbert.gateway.settings import GatewaySettings, Limits, ModelSettings
from es_sbert.gateway.upstream import Upstream


def embedding_app(
    settings: ModelSettings,
    *,
    key: SecretStr | None = None,
    load: bool = True,
    engine_problem: str | None = None,
    limits: Limits | None = None,
    metrics_key: SecretStr | None = None,
) -> Starlette:
    """An application of the routes.

    Args:
        key: Asked for at `/v1/`.
        load: Whether the default model is loaded before the first request.
        engine_problem: What the readiness check hears of the engine.
        limits: Of the gateway.
        metrics_key: Asked for at `/metrics`.
    """
    metrics = GatewayMetrics(settings.public_names)
    gateway = GatewaySettings(upstream=EngineSettings(), embeddings_key=key, limits=limits or Limits())
    admission = AdmissionControl(gateway.limits)
    models = ModelRegistry(settings, gateway.limits, metrics)

    class NoUpstream(Upstream):
        async def health_problem(self) -> str | None:
            return engine_problem

    upstream = NoUpstream(gateway.upstream, gateway.limits)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if load:
            await models.get()
        yield
        await models.close()

    return Starlette(
        routes=[
            *OpenAIApi(models, gateway, metrics, admission).routes(),
            *health_routes(models, upstream, admission, ConnectionLimiter(gateway.limits)),
            *metrics_routes(metrics, metrics_key),
        ],
        lifespan=lifespan,
    )
