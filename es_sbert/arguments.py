"""Check the arguments of the public Python API where they enter, and show the options of `**options` in signatures."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Set, ValuesView
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from es_sbert.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

# Checked elsewhere: texts in any iterable (`as_texts`), and query vectors.
_OTHERS = frozenset({"texts", "first", "second", "vector"})
# The smallest value of arguments that are numbers.
_LEAST = {
    "budget": 1,
    "concurrency": 1,
    "overlap": 0,
    "passage_overlap": 0,
    "passages": 1,
    "replicas": 0,
    "retry_seconds": 0,
    "shards": 1,
    "threads": 1,
    "top_k": 1,
    "window": 1,
}
_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)
_NAMES = {int: "a whole number", float: "a number", bool: "True or False", NoneType: "None", Path: "a Path"}


def check_arguments(function: F) -> F:
    """Decorator: an argument that does not fit its annotation, or an unknown option, raises a `UsageError`.

    Annotations with names that are only imported for type checkers are not checked, nor are the elements of an
    `Iterable`. Values of NumPy and pandas, views of a dict and sets of str become numbers and lists of Python where
    these are expected.
    """

    @functools.cache
    def checks() -> tuple[list[str], dict[str, tuple[TypeAdapter[Any], Any]]]:
        hints = _resolved_hints(function)
        parameters = inspect.signature(function).parameters
        for name, parameter in parameters.items():
            if not isinstance(parameter.annotation, str) and parameter.annotation is not inspect.Parameter.empty:
                hints[name] = parameter.annotation  # of an option, see `spell_out`
        known = {name: (TypeAdapter(hint, config=_STRICT), hint) for name, hint in hints.items() if name in parameters}
        return list(parameters), {name: check for name, check in known.items() if name not in _OTHERS}

    def check(name: str, value: Any) -> Any:
        known = checks()[1]
        if name not in known:
            return value
        adapter, hint = known[name]
        if not _fits(adapter, value):
            value, given = _to_python(value), value
            if not _fits(adapter, value):
                raise wrong_argument(name, given, describe_hint(hint))
        if value is not None and name in _LEAST and not value >= _LEAST[name]:
            raise UsageError(f"`{name}` is {value}", f"Set it to at least {_LEAST[name]}.")
        return value

    def check_all(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        positional = checks()[0]
        options = vars(function).get("__signature__")  # spelled out, see `spell_out`
        if options is not None and (unknown := kwargs.keys() - options.parameters.keys()):
            known = [name for name, each in options.parameters.items() if each.kind is each.KEYWORD_ONLY]
            raise UsageError(f"unknown option: {', '.join(sorted(unknown))}", f"The options are {', '.join(known)}.")
        checked = list(map(check, positional, args))
        return [*checked, *args[len(positional) :]], {name: check(name, value) for name, value in kwargs.items()}

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        python_args, python_kwargs = check_all(args, kwargs)
        return function(*python_args, **python_kwargs)

    @functools.wraps(function)
    async def checked_coroutine(*args: Any, **kwargs: Any) -> Any:
        python_args, python_kwargs = check_all(args, kwargs)
        return await function(*python_args, **python_kwargs)

    return cast("F", checked_coroutine if inspect.iscoroutinefunction(function) else checked)


def _fits(adapter: TypeAdapter[Any], value: Any) -> bool:
    try:
        adapter.validate_python(value)
    except ValidationError:  # the caller names the value and what it may be
        return False
    return True


def _to_python(value: Any) -> Any:
    """Convert numbers, arrays and columns of NumPy and pandas, views of a dict and sets of str."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, KeysView | ValuesView | list | tuple):
        converted = map(_to_python, value)
        return tuple(converted) if isinstance(value, tuple) else list(converted)
    if isinstance(value, Set) and all(isinstance(each, str) for each in value):
        return sorted(value)  # an order of numbers would be a guess: weights
    return {key: _to_python(each) for key, each in value.items()} if isinstance(value, dict) else value


def wrong_argument(name: str, value: object, allowed: str) -> UsageError:
    """Return the error for an argument.

    Args:
        allowed: The allowed values.
    """
    return UsageError(f"`{name}` is {repr(value)[:80]}, of type {type(value).__name__}", f"Pass {allowed}.")


def iterate_texts(texts: Iterable[str], name: str = "texts") -> Iterator[str]:
    """Return an iterator over texts, which it does not check.

    Raises:
        UsageError: it is a single str or not iterable.
    """
    # The letters of a str are texts too, and so are the names of a table's columns.
    is_table = isinstance(texts, Mapping) or getattr(texts, "ndim", 1) != 1
    if isinstance(texts, str | bytes) or is_table or not isinstance(texts, Iterable):
        raise wrong_argument(name, texts, "a list of str")
    return iter(texts)


def as_texts(texts: Iterable[str], name: str = "texts", first: int = 0) -> list[str]:
    """Return texts as a list.

    Args:
        name: Name of the argument, for messages.
        first: Position of the first of these texts in the argument, for messages.

    Raises:
        UsageError: it is a single str or not iterable, or one of the texts is not a str.
    """
    listed: list[Any] = list(iterate_texts(texts, name))
    # Tokenizers would read a tuple as a pair of texts.
    if not set(map(type, listed)) <= {str}:
        for number, text in enumerate(listed, first):
            if not isinstance(text, str):
                is_missing = text is None or isinstance(text, float)  # pandas writes NaN for a missing text
                allowed = f"a list of str{'; leave out missing values' if is_missing else ''}"
                raise wrong_argument(f"{name}[{number}]", text, allowed)
    return listed


def describe_hint(hint: Any) -> str:
    """Describe the values that a type hint allows, for the remedy of an error."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        *first, last = [describe_hint(each) for each in arguments]
        return f"{', '.join(first)} or {last}"
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if isinstance(origin, type) and issubclass(origin, tuple):
        return f"a tuple of {len(arguments)}: {', '.join(describe_hint(each) for each in arguments)}"
    if isinstance(origin, type) and issubclass(origin, Iterable) and len(arguments) == 1:
        return f"a list, each {describe_hint(arguments[0])}"
    if origin is not None:
        return "a function" if origin is Callable else "a dict"
    return _NAMES.get(hint) or f"{'an' if hint.__name__[0] in 'AEIOU' else 'a'} {hint.__name__}"


def _resolved_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function; those that are only imported for type checkers become `Any`."""
    unknown: dict[str, Any] = {}
    while True:
        try:
            return get_type_hints(function, localns=unknown)
        except NameError as error:
            unknown[str(error.name)] = Any


def spell_out(options: Any, defaults: Mapping[str, object]) -> Callable[[F], F]:
    """Give a function a signature with the entries of a TypedDict instead of its last parameter, `**options`.

    Args:
        options: The TypedDict.
        defaults: Default value of each entry.
    """
    types = get_type_hints(options)
    if missing := types.keys() - defaults.keys():
        raise TypeError(f"there is no default for {', '.join(sorted(missing))}")

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        *parameters, last = signature.parameters.values()
        if last.kind is not inspect.Parameter.VAR_KEYWORD:
            raise TypeError(f"{function.__qualname__} does not end in **options")
        spelled = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=hint)
            for name, hint in types.items()
        ]
        vars(function)["__signature__"] = signature.replace(parameters=[*parameters, *spelled])
        return function

    return decorate
