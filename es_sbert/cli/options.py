"""Options that several commands share, and how they become settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from es_sbert.config import DEFAULT_MODEL, DEFAULT_URL, DEFAULT_VECTOR_FIELD, EngineSettings

F = TypeVar("F", bound=Callable[..., Any])


def _stack(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def connection_options(function: F) -> F:
    """--url, --api-key, --username, --password, --ca-certs, --timeout; collect them with `engine_settings`."""
    return _stack(
        click.option("--url", envvar="ES_SBERT_URL", default=DEFAULT_URL, show_default=True, show_envvar=True,
                     help="Address of the engine."),
        click.option("--api-key", envvar="ES_SBERT_API_KEY", show_envvar=True,
                     help="API key. Prefer the environment variable: a command line is public."),
        click.option("--username", envvar="ES_SBERT_USERNAME", show_envvar=True, help="User name."),
        click.option("--password", envvar="ES_SBERT_PASSWORD", show_envvar=True,
                     help="Password. Prefer the environment variable."),
        click.option("--ca-certs", envvar="ES_SBERT_CA_CERTS", show_envvar=True,
                     type=click.Path(path_type=Path),
                     help="PEM file of the authority that signed the server's certificate."),
        click.option("--timeout", envvar="ES_SBERT_TIMEOUT", type=click.FloatRange(min=0, min_open=True), default=60.0,
                     show_default=True, help="Seconds to wait for one request."),
    )(function)  # fmt: skip


def engine_settings(*, url: str, api_key: str | None, username: str | None, password: str | None,
                    ca_certs: Path | None, timeout: float) -> EngineSettings:  # fmt: skip
    """The connection options of one call as settings.

    Raises:
        UsageError: contradictory ways to sign in, or an address without a scheme.
    """
    given: dict[str, Any] = {
        "url": url,
        "api_key": api_key,
        "username": username,
        "password": password,
        "ca_certs": ca_certs,
    }
    return EngineSettings(timeout=timeout, **{k: v for k, v in given.items() if v is not None})


def encoder_options(function: F) -> F:
    """--model, --device, --precision, --threads."""
    return _stack(
        click.option("--model", envvar="ES_SBERT_MODEL", show_envvar=True,
                     help=f"Model folder, bundle, hub id or installed name.  [default: {DEFAULT_MODEL}, or the "
                          "model of the index]"),
        click.option("--device", default="auto", show_default=True,
                     help="auto, cpu, cuda or cuda:N. Asking for cuda fails where it would not run."),
        click.option("--precision", type=click.Choice(["auto", "fp32", "int8", "fp16"]), default="auto",
                     show_default=True,
                     help="auto: fp16 on CUDA; on a CPU int8 where it has VNNI, else fp32."),
        click.option("--threads", type=click.IntRange(min=1), help="CPU threads.  [default: the physical cores]"),
    )(function)  # fmt: skip


def vector_field_option(function: F) -> F:
    """--vector-field."""
    return click.option("--vector-field", default=DEFAULT_VECTOR_FIELD, show_default=True,
                        help="Field that holds the vector.")(function)  # fmt: skip
