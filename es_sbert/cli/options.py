"""Options that several commands share, and how they become settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from es_sbert.config import DEFAULT_MODEL, DEFAULT_URL, DEFAULT_VECTOR_FIELD, LONGEST_TIMEOUT, EngineSettings
from es_sbert.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


class Number(click.FloatRange):
    """A range of numbers; `nan`, which no limit keeps out, and infinity are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


def stacked(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Options as one decorator, in the order in which the help shows them."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def connection_options(function: F) -> F:
    """Where the engine is and how to sign in; collect them with `engine_settings`."""
    return stacked(address_option("--url"), sign_in_options)(function)


def address_option(flag: str) -> Callable[[F], F]:
    """Where the engine is, as the setting `url`."""
    return click.option(flag, "url", envvar="ES_SBERT_URL", default=DEFAULT_URL, show_default=True, show_envvar=True,
                        callback=public_url, help="Address of the engine.")  # fmt: skip


def sign_in_options(function: F) -> F:
    """How to sign in to the engine. Secrets themselves are no options: a command line is public."""
    file = click.Path(path_type=Path)
    return stacked(
        click.option("--username", envvar="ES_SBERT_USERNAME", show_envvar=True,
                     help="User name; give its password in ES_SBERT_PASSWORD or a file."),
        click.option("--password-file", envvar="ES_SBERT_PASSWORD_FILE", type=file,
                     help="File that holds the password."),
        click.option("--api-key-file", envvar="ES_SBERT_API_KEY_FILE", type=file,
                     help="File that holds an API key (or ES_SBERT_API_KEY)."),
        click.option("--token-file", envvar="ES_SBERT_TOKEN_FILE", type=file,
                     help="File that holds a bearer token (or ES_SBERT_TOKEN)."),
        click.option("--keyring", envvar="ES_SBERT_KEYRING", metavar="SERVICE", show_envvar=True,
                     help="Take the user's password, or the API key, from this service of the system's keyring."),
        click.option("--ca-certs", envvar="ES_SBERT_CA_CERTS", show_envvar=True, type=file,
                     help="PEM file of the authority that signed the server's certificate."),
        click.option("--fingerprint", envvar="ES_SBERT_FINGERPRINT", show_envvar=True,
                     help="SHA-256 of the server's certificate, in place of an authority."),
        click.option("--timeout", envvar="ES_SBERT_TIMEOUT", type=Number(0, LONGEST_TIMEOUT, min_open=True),
                     default=60.0, show_default=True, help="Seconds to wait for one request."),
    )(function)  # fmt: skip


def public_url(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Refuse a password on the command line, which any user of the machine can read; the environment may hold one."""
    name = parameter.name or "url"
    if (
        context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        and "@" in value.partition("://")[2].partition("/")[0]
    ):
        # Kibana's credentials have names of their own.
        option, variable = ("--kibana-", "ES_SBERT_KIBANA_") if name == "kibana_url" else ("--", "ES_SBERT_")
        raise UsageError(
            f"the {parameter.opts[0]} holds a user name or a password, and a command line is public",
            f"Put the address into {variable}URL, or give {option}username with the password in {variable}PASSWORD or "
            f"a {option}password-file. Whoever could read this command line may know the password now.",
        )
    return value


def engine_settings(**given: Any) -> EngineSettings:
    """The connection options of one call as settings; secrets come from the environment, files or the keyring.

    Raises:
        UsageError: contradictory ways to sign in, a secret that cannot be read, or an address without a scheme.
    """
    return EngineSettings(**{name: value for name, value in given.items() if value is not None})


def encoder_options(function: F) -> F:
    """--model, --device, --precision, --threads."""
    return stacked(
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


def format_option(function: F) -> F:
    """--format of files."""
    return click.option("--format", type=click.Choice(["auto", "jsonl", "csv", "tsv", "lines", "parquet", "arrow"]),
                        default="auto", show_default=True,
                        help="Format inside the compression; auto goes by each file's name.")(function)  # fmt: skip


def vector_field_option(function: F) -> F:
    """--vector-field."""
    return click.option("--vector-field", default=DEFAULT_VECTOR_FIELD, show_default=True,
                        help="Field that holds the vector.")(function)  # fmt: skip
