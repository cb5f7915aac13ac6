"""Options that several commands share, and the engine settings made from them."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

import click
import cloup
from click.core import ParameterSource
from cloup import option_group
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from es_sbert.arguments import check_range, declared_settings
from es_sbert.bundle.variants import Precision, Runtime
from es_sbert.config import EngineSettings, split_addresses
from es_sbert.errors import UsageError
from es_sbert.lazy_names import hidden_modules
from es_sbert.settings import ModelName, RetryOptions, RunOptions, TextOptions, TrainingOptions, VectorFieldName

if TYPE_CHECKING:
    from es_sbert.engines.engine import Engine

FILE_TYPE = click.Path(path_type=Path)
OUTPUT_FILE_TYPE = click.Path(path_type=Path, dir_okay=False)

F = TypeVar("F", bound=Callable[..., Any])


class _CheckedRange:
    """A range of numbers whose bounds are checked, and explained, as by the library.

    Attributes:
        words: What may be given instead of a number.
    """

    number: ClassVar[click.ParamType[Any]]
    words: Container[object] = ()

    def convert(self: Any, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in self.words:
            return value
        number = self.number.convert(value, param, ctx)
        if not math.isfinite(number):  # `nan` passes any limit
            self.fail(f"{value} is not a finite number.", param, ctx)
        least, most = "gt" if self.min_open else "ge", "lt" if self.max_open else "le"
        check_range(str(param and param.name), number, {least: self.min, most: self.max})
        return number


class IntegerRange(_CheckedRange, click.IntRange):
    """A range of whole numbers."""

    number = click.INT


class FiniteFloatRange(_CheckedRange, click.FloatRange):
    """A range of finite numbers."""

    number = click.FLOAT


class _ChoiceOrAuto(click.Choice[str]):
    """A member of an enumeration, or `auto`, which becomes None."""

    def __init__(self, kind: type[StrEnum]) -> None:
        super().__init__(["auto", *map(str, kind)])
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        chosen = super().convert(value, param, ctx)
        return None if chosen == "auto" else self._kind(chosen)


class _Filter(click.ParamType[Any]):
    """A query of the engine, in JSON."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from es_sbert.search.vector_query import parse_filter

        return parse_filter(value)


class SettingOption(cloup.Option):
    """An option that sets a setting of the library.

    Attributes:
        owner: The class or function that declares the setting, under the name of the option's parameter.
    """

    def __init__(self, *declarations: Any, owner: type | Callable[..., Any], **settings: Any) -> None:
        self.owner = owner
        super().__init__(*declarations, **settings)


def combine_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Combine options into one decorator, in the order of the help."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def setting_options(owner: type | Callable[..., Any], *specs: str) -> Callable[[F], F]:
    """Return the options for settings that one class or function declares, see `setting_option`."""
    return combine_options(*(setting_option(owner, spec) for spec in specs))


def setting_option(owner: type | Callable[..., Any], spec: str, **given: Any) -> Callable[[F], F]:
    """Return the option for a setting. Its type, range and default are declared, and its help is in the docstring.

    Args:
        owner: The class or function that declares the setting (see `declared_settings`) and describes it under
            "Attributes" or "Args".
        spec: The name of the setting, and what differs from the usual: flags, a `$VARIABLE` of the environment, and the
            placeholder of the value, e.g. "output -o --output FOLDER".
        given: Arguments of `click.option` that replace those of the declaration.
    """
    name, *words = spec.split()
    fields = declared_settings(owner)
    field, many = fields[name], given.get("multiple", len(_value_types(fields[name])) > 1)
    settings: dict[str, Any] = {"help": _help(owner, name), "required": field.is_required(), "multiple": many}
    flags = [word for word in words if word.startswith("-")] or [_flag(name, field)]
    for word in words:
        if word.startswith("$"):
            settings |= {"envvar": word[1:], "show_envvar": True}
        elif not word.startswith("-"):
            settings["metavar"] = word
    if not many and field.default is not PydanticUndefined:
        settings["default"] = str(field.default) if isinstance(field.default, StrEnum) else field.default
    settings |= _type_settings(field)
    if isinstance(owner, type) and issubclass(owner, BaseSettings):
        settings.setdefault("envvar", f"{owner.model_config['env_prefix']}{name.upper()}")
    return click.option(*flags, name, cls=SettingOption, owner=owner, **settings | given)


def _value_types(field: FieldInfo) -> list[FieldInfo]:
    """Return the first type of a setting that is not None, and that of its elements, if it has several values."""
    is_union = get_origin(field.annotation) in (Union, UnionType)
    kinds: tuple[Any, ...] = get_args(field.annotation) if is_union else (field.annotation,)
    first = FieldInfo.from_annotation(next(kind for kind in kinds if kind is not NoneType))
    if get_origin(first.annotation) in (tuple, Sequence):
        return [first, FieldInfo.from_annotation(get_args(first.annotation)[0])]
    return [first]


def _flag(name: str, field: FieldInfo | None) -> str:
    shown = f"{'no-' if field and field.default is True else ''}{name.replace('_', '-')}"
    return f"--{shown.removesuffix('s') if field and len(_value_types(field)) > 1 else shown}"


def _help(owner: type | Callable[..., Any], name: str) -> str | None:
    """Return the description of a setting in the docstring of its owner, in which `name` is another setting.

    Without docstrings (`python -OO`), there is no help.
    """
    sections = re.split(r"^(?:Args|Attributes):$", inspect.cleandoc(owner.__doc__ or ""), flags=re.MULTILINE)
    section = sections[-1].partition("\n\n")[0]
    described = re.search(rf"^    (?:\w+, )*{name}(?:, \w+)*: (.*(?:\n {{8}}.*)*)", section, re.MULTILINE)
    if described is None:
        return None
    fields, text = declared_settings(owner), " ".join(described[1].split()).replace(" [default:", "  [default:")
    return re.sub(r"`([a-z]\w*)`", lambda other: _flag(other[1], fields.get(other[1])), text)


def _type_settings(field: FieldInfo) -> dict[str, Any]:
    """Return the arguments of `click.option` for the type of a setting."""
    inner = _value_types(field)[-1]
    kind: Any = inner.annotation
    bounds = {
        bound: getattr(each, bound)
        for each in (*field.metadata, *inner.metadata)
        for bound in ("ge", "gt", "le", "lt")
        if hasattr(each, bound)
    }
    if kind is bool:
        negated = {"flag_value": False, "show_default": False} if field.default is True else {}
        return {"is_flag": True} | negated
    if kind in (int, float) and bounds:
        least, most = bounds.get("ge", bounds.get("gt")), bounds.get("le", bounds.get("lt"))
        number_range = IntegerRange if kind is int else FiniteFloatRange
        checked = number_range(least, most, min_open="gt" in bounds, max_open="lt" in bounds)
        literals = [each for each in get_args(field.annotation) if get_origin(each) is Literal]
        checked.words = [word for each in literals for word in get_args(each)]
        return {"type": checked}
    if kind is Path:
        return {"type": FILE_TYPE}
    if get_origin(kind) is Literal:
        return {"type": click.Choice(get_args(kind))}
    if get_origin(kind) is dict:
        return {"type": _Filter()}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if field.default is None:
            return {"type": _ChoiceOrAuto(kind), "default": "auto"}
        return {"type": click.Choice([str(each) for each in kind])}
    return {"type": kind if kind in (int, float) else None}


def engine_url_option(flag: str) -> Callable[[F], F]:
    """Return the option for the engine's address, stored as `url`."""
    return setting_option(EngineSettings, f"url {flag} $ES_SBERT_URL", callback=reject_password_in_url)


# Credentials for the engine. Options never hold the secrets themselves, because a command line is public.
credential_options = setting_options(
    EngineSettings, "username", "password_file", "api_key_file", "token_file", "ca_certs", "timeout SECONDS"
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
    with hidden_modules(*_UNUSED_HTTP_LIBRARIES):
        import elastic_transport  # noqa: F401


def engine_settings(options: Mapping[str, Any]) -> EngineSettings:
    """Convert the connection options of a command to settings. Secrets come from the environment or files.

    Args:
        options: All options of the command.

    Raises:
        UsageError: credentials conflict, a secret cannot be read, or an address has no scheme.
    """
    import_engine_transport()
    names = EngineSettings.model_fields
    return EngineSettings(**{name: value for name, value in options.items() if name in names and value is not None})


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
    return select_options(options, {"model"} | RunOptions.__annotations__.keys())


model_option = setting_option(ModelName, "model $ES_SBERT_MODEL")
device_option = setting_option(RunOptions, "device $ES_SBERT_DEVICE")
training_options = setting_options(TrainingOptions, "device $ES_SBERT_DEVICE", "resume")
threads_option = setting_option(RunOptions, "threads N")
_PRECISIONS = click.Choice(["auto", *map(str, Precision)])


def precision_option(owner: type = RunOptions) -> Callable[[F], F]:
    """--precision."""
    return setting_option(owner, "precision", type=_PRECISIONS)


runtime_option = setting_option(
    RunOptions, "runtime $ES_SBERT_RUNTIME", type=click.Choice(["auto", *map(str, Runtime)])
)
device_options = combine_options(device_option, precision_option(), runtime_option, threads_option)


def file_options() -> Callable[[F], F]:
    """Return the options for reading files."""
    from es_sbert.io.file_formats import FileOptions

    return setting_options(FileOptions, "format", "delimiter CHARACTER", "encoding NAME")


def json_option(help: str = "Print one JSON object.") -> Callable[[F], F]:
    """--json."""
    return click.option("--json", "as_json", is_flag=True, help=help)


vector_field_option = setting_option(VectorFieldName, "vector_field")
text_options = setting_options(TextOptions, "text_fields", "text_template")
retry_seconds_option = setting_option(RetryOptions, "retry_seconds SECONDS")

quiet_option = click.option("--quiet", is_flag=True, help="Show no progress and no summary; errors are still shown.")
url_option = engine_url_option("--url")

connection_help = (
    "Each option can also be set as an environment variable, such as ES_SBERT_USERNAME; secrets as ES_SBERT_PASSWORD, "
    "ES_SBERT_API_KEY or ES_SBERT_TOKEN."
)
connection_options = option_group("Connection", url_option, credential_options, help=connection_help)
encoder_options = option_group("Model", model_option, device_options)
