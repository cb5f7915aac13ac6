"""Options that several commands share, and the engine settings made from them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from cloup import option_group

from es_sbert.bundle.variants import Precision, Runtime
from es_sbert.config import (
    DEFAULT_MODEL,
    DEFAULT_URL,
    DEFAULT_VECTOR_FIELD,
    MAX_TIMEOUT,
    EngineSettings,
    split_addresses,
)
from es_sbert.errors import UsageError

if TYPE_CHECKING:
    from es_sbert.engines.engine import Engine

INDEX_TYPES_HELP = (
    "hnsw, int8_hnsw, int4_hnsw, bbq_hnsw, flat, int8_flat, int4_flat, bbq_flat; OpenSearch: hnsw, int8_hnsw, from "
    "3.0 on flat"
)

F = TypeVar("F", bound=Callable[..., Any])


class FiniteFloatRange(click.FloatRange):
    """A range of finite numbers. It refuses infinity, and `nan`, which passes any limit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def combine_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Combine options into one decorator, in the order of the help."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def engine_url_option(flag: str) -> Callable[[F], F]:
    """Return the option for the engine's address, stored as `url`."""
    return click.option(
        flag,
        "url",
        envvar="ES_SBERT_URL",
        default=DEFAULT_URL,
        show_envvar=True,
        callback=reject_password_in_url,
        help="Address of the engine; several nodes of one cluster are separated by commas.",
    )


def _connection_option(flag: str, help: str, **settings: Any) -> Callable[[F], F]:
    """Return an option that can also be set by the environment variable of its name."""
    variable = f"ES_SBERT_{flag.removeprefix('--').replace('-', '_').upper()}"
    return click.option(flag, envvar=variable, help=help, **settings)


FILE_TYPE = click.Path(path_type=Path)
OUTPUT_FILE_TYPE = click.Path(path_type=Path, dir_okay=False)
# Credentials for the engine. Options never hold the secrets themselves, because a command line is public.
credential_options = combine_options(
    _connection_option("--username", "User name; set its password in ES_SBERT_PASSWORD or a file."),
    _connection_option("--password-file", "File that holds the password.", type=FILE_TYPE),
    _connection_option("--api-key-file", "File that holds an API key.", type=FILE_TYPE),
    _connection_option("--token-file", "File that holds a bearer token.", type=FILE_TYPE),
    _connection_option("--ca-certs", "PEM file of a private CA.", type=FILE_TYPE),
    _connection_option(
        "--timeout",
        "Timeout of one request.",
        default=60.0,
        type=FiniteFloatRange(0, MAX_TIMEOUT, min_open=True),
        metavar="SECONDS",
    ),
)


def reject_password_in_url(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse a password on the command line, which any user of the machine can read. The environment may hold one."""
    name = parameter.name or "url"
    is_typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    if is_typed and any("@" in url.partition("://")[2].partition("/")[0] for url in split_addresses(value or "")):
        prefix = "ES_SBERT_KIBANA_" if name == "kibana" else "ES_SBERT_"
        raise UsageError(
            f"{parameter.opts[0]} contains a user name or a password, and a command line is public",
            f"Set {prefix}USERNAME and {prefix}PASSWORD instead. Anyone who could read this command line may know the "
            "password now.",
        )
    return value


def select_options(options: Mapping[str, Any], names: Container[str]) -> dict[str, Any]:
    """Select the options of a command that have one of these names, e.g. the fields of a settings class."""
    return {name: value for name, value in options.items() if name in names}


# elastic_transport imports each of these if it is installed, but the command line does not use the nodes for them.
_UNUSED_HTTP_LIBRARIES = ("aiohttp", "httpx", "requests")


def import_engine_transport() -> None:
    """Import `elastic_transport` without the HTTP libraries that it would import for its own nodes.

    These imports take more time than all others of a search. Do not call this in a process that opens an asynchronous
    client of elasticsearch-py: to such a client, aiohttp and httpx would seem to be missing.
    """
    if "elastic_transport" in sys.modules:
        return
    hidden = [name for name in _UNUSED_HTTP_LIBRARIES if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None makes an import fail
    try:
        import elastic_transport  # noqa: F401
    finally:
        for name in hidden:
            del sys.modules[name]


def engine_settings(options: Mapping[str, Any]) -> EngineSettings:
    """Convert the connection options of a command to settings. Secrets come from the environment or files.

    Args:
        options: All options of the command.

    Raises:
        UsageError: credentials conflict, a secret cannot be read, or an address has no scheme.
    """
    import_engine_transport()
    settings = select_options(options, EngineSettings.model_fields)
    return EngineSettings(**{name: value for name, value in settings.items() if value is not None})


@contextmanager
def open_engine(options: Mapping[str, Any]) -> Iterator[Engine]:
    """Open a client for the engine that a command's connection options name.

    Args:
        options: All options of the command.

    Raises:
        UsageError, EngineError: see `engine_settings` and `connect`.
    """
    from es_sbert.engines.connect import connect

    with closing(connect(engine_settings(options))) as engine:
        yield engine


def encoder_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Select the options that `encoder_options` defines, as arguments of `Encoder`."""
    return select_options(options, ("model", "device", "precision", "runtime", "threads"))


model_option = click.option(
    "--model",
    envvar="ES_SBERT_MODEL",
    show_envvar=True,
    help="Model folder, bundle, hub id, or installed or registered name; MODEL@N truncates vectors to N dimensions.  "
    f"[default: {DEFAULT_MODEL}, or the model of the index]",
)
device_option = click.option(
    "--device",
    envvar="ES_SBERT_DEVICE",
    show_envvar=True,
    default="auto",
    help="auto, cpu, cuda or cuda:N. cuda fails if CUDA is not available.",
)
threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="N",
    help="CPU threads; on CUDA, parallel batches.  [default: number of cores; 2 on CUDA]",
)


def precision_option(default: str, help: str) -> Callable[[F], F]:
    """--precision."""
    return click.option("--precision", type=click.Choice(["auto", *map(str, Precision)]), default=default, help=help)


runtime_option = click.option(
    "--runtime",
    type=click.Choice(["auto", *map(str, Runtime)]),
    default="auto",
    envvar="ES_SBERT_RUNTIME",
    show_envvar=True,
    help="Runtime of the model. With --precision auto: usually the fastest on this kind of processor.",
)
device_options = combine_options(
    device_option,
    precision_option("auto", "auto: fp16 on CUDA; on a CPU usually the fastest of bf16, int8 and fp32."),
    runtime_option,
    threads_option,
)
format_option = click.option(
    "--format",
    type=click.Choice(["auto", "jsonl", "csv", "tsv", "lines", "parquet"]),
    default="auto",
    help="Format of the files after decompression; auto: by each file's name.",
)
file_options = combine_options(
    format_option,
    click.option(
        "--delimiter",
        metavar="CHARACTER",
        help="Delimiter of CSV files, or tab.  [default: comma, semicolon, tab or |, by each file's first rows]",
    ),
    click.option(
        "--encoding",
        metavar="NAME",
        help="Encoding of text files, such as windows-1252.  [default: UTF-8, or that of the byte order mark]",
    ),
)
vector_field_option = click.option("--vector-field", default=DEFAULT_VECTOR_FIELD, help="Field that holds the vector.")


def text_field_option(what: str, default: str) -> Callable[[F], F]:
    """--text-field, which may be repeated.

    Args:
        what, default: For the help: the purpose of the field, and the default.
    """
    rule = "dotted if nested; may be repeated. Several fields, and the values of a list, are joined by line feeds."
    return click.option("--text-field", "text_fields", multiple=True, help=f"{what}, {rule}  [default: {default}]")


text_template_option = click.option("--text-template", help="Text made of several fields, e.g. '{title}. {body}'.")
passage_overlap_option = click.option(
    "--passage-overlap",
    type=click.IntRange(min=0),
    metavar="TOKENS",
    help="Maximum tokens that a passage shares with the next.  [default: an eighth of --passages]",
)
retry_seconds_option = click.option(
    "--retry-seconds",
    type=FiniteFloatRange(min=0),
    metavar="SECONDS",
    default=300.0,
    help="Maximum time to retry while the engine is overloaded or does not respond.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
quiet_option = click.option("--quiet", is_flag=True, help="Show no progress and no summary; errors are still shown.")
url_option = engine_url_option("--url")

connection_help = (
    "Each option can also be set as an environment variable, such as ES_SBERT_USERNAME; secrets as ES_SBERT_PASSWORD, "
    "ES_SBERT_API_KEY or ES_SBERT_TOKEN."
)
connection_options = option_group("Connection", url_option, credential_options, help=connection_help)
encoder_options = option_group("Model", model_option, device_options)
