"""Check the arguments of the public Python API where they enter, and show the options of `**options` in signatures.

An option is declared once, as an entry of a TypedDict or a field of a settings class: see `declared_settings`.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, ValuesView
from numbers import Real
from typing import Any, TypeVar, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from es_sbert.errors import UsageError, WrongArgument
from es_sbert.messages import setting

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

# Checked elsewhere: texts in any iterable (`as_texts`), query vectors and the rows of texts.
_CHECKED_ELSEWHERE = frozenset({"texts", "first", "second", "vector", "starts"})
# Bounds of numbers, by their names in annotations.
_BOUNDS = {
    "ge": (operator.ge, "at least"), "gt": (operator.gt, "more than"),
    "le": (operator.le, "at most"), "lt": (operator.lt, "less than"),
}  # fmt: skip
# Keywords of elasticsearch-py, sentence-transformers and other clients, and the names here.
_OTHER_KEYWORDS = """
size=k top_k=k query=text,filter queries=texts sentences=texts inputs=texts documents=texts hosts=engine url=engine
client=engine es=engine model_name=model model_name_or_path=model id=ids _source=source index=name index_name=index,name
precision=variants name=index text_field=text_fields timeout=request_timeout
"""
_OWN_NAMES = dict(pair.split("=") for pair in _OTHER_KEYWORDS.split())
_AT_CREATION = "The text is set where the index is created: SemanticIndex.create(…, text_fields=…). "
# What to do instead of keywords that have no other name here.
_INSTEAD = {
    **dict.fromkeys(("text_field", "text_fields", "text_template"), _AT_CREATION),
    "mappings": "Create the index with your client; SemanticIndex.create adds the vector field. ",
    "refresh": "Searches see all that was written when the call returns. ",
}
_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)


def check_arguments(function: F) -> F:
    """Decorator: an argument that does not fit its annotation raises a `UsageError`.

    It is a `WrongArgument`, which is also a TypeError, if its type does not fit or the keyword is unknown.

    Annotations with names that are only imported for type checkers are not checked, nor are the elements of an
    `Iterable`. Values of NumPy and pandas, views of a dict and sets of str become numbers and lists of Python where
    these are expected.
    """

    @functools.cache
    def checks() -> tuple[list[str], dict[str, TypeAdapter[Any]]]:
        hints, parameters = _resolved_hints(function), inspect.signature(function).parameters
        checked = [name for name in hints if name in parameters and name not in _CHECKED_ELSEWHERE]
        return list(parameters), {name: TypeAdapter(hints[name], config=_STRICT) for name in checked}

    def check(name: str, value: Any) -> Any:
        adapter = checks()[1].get(name)
        if adapter is not None and _problem(adapter, value) is not None:
            is_set = isinstance(value, set | frozenset) and all(isinstance(each, str) for each in value)
            # An order of numbers would be a guess: weights. So would one of texts in a list: pairs.
            value, given = sorted(value) if is_set else _to_python(value), value
            if (problem := _problem(adapter, value)) is not None:
                allowed, is_type, bounds, place, item = problem
                check_range(name, item, bounds)
                raise wrong_argument(f"{name}{place}", item if place else given, allowed, is_type=is_type)
        return value

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        positional = checks()[0]
        if kwargs:
            _check_names(positional, len(args), kwargs)
        python_args = [*map(check, positional, args), *args[len(positional) :]]
        return function(*python_args, **{name: check(name, value) for name, value in kwargs.items()})

    return cast("F", checked)


def _check_names(names: list[str], given: int, keywords: Mapping[str, Any]) -> None:
    """Check the names of keyword arguments.

    Args:
        names: Names of the parameters.
        given: Number of positional arguments.

    Raises:
        WrongArgument: a keyword is unknown, or also given by its position.
    """
    known = [name for name in names if name not in ("self", "cls", "others")]
    other = {name: _own_name(name, known) for name in keywords if name not in names}
    if any(other.values()) or (other and "others" not in names):
        hints = "".join(f"Use {new} instead of {old}. " if new else _INSTEAD.get(old, "") for old, new in other.items())
        message, remedy = f"unknown option: {', '.join(other)}", f"{hints}The options are {', '.join(known)}."
        raise WrongArgument(message, remedy).about(next(iter(other)), keywords[next(iter(other))])
    if twice := [name for name in names[:given] if name in keywords]:
        message, remedy = f"{setting(twice[0])} is given twice", f"The order is {', '.join(known)}."
        raise WrongArgument(message, remedy).about(twice[0], keywords[twice[0]])


def _own_name(name: str, known: Iterable[str]) -> str | None:
    return next((each for each in _OWN_NAMES.get(name, "").split(",") if each in known), None)


def other_names(names: str) -> Callable[[object, str], Any]:
    """Make a `__getattr__` that says what to use instead of names of other libraries.

    Args:
        names: Each as NAME=INSTEAD; {} is the class.
    """
    instead = dict(pair.split("=", 1) for pair in names.split())

    def refuse_name(self: object, name: str) -> Any:
        owner = type(self).__name__
        use = f"; use `{instead[name].format(owner)}`" if name in instead else ""
        raise AttributeError(f"{owner} has no `{name}`{use}", name=name, obj=self)

    return refuse_name


def check_range(name: str, value: float, bounds: Mapping[str, Any]) -> None:
    """Check a number against the bounds `ge`, `gt`, `le` and `lt`, as far as they are given.

    Raises:
        UsageError: the number is out of bounds.
    """
    for bound, (fits, words) in _BOUNDS.items():
        if bounds.get(bound) is not None and not fits(value, bounds[bound]):
            remedy = f"Set it to {words} {bounds[bound]:,.12g}."
            raise UsageError(f"{setting(name)} is {value}", remedy, setting=name, value=value)


def _problem(adapter: TypeAdapter[Any], value: Any) -> tuple[str, bool, Mapping[str, Any], str, Any] | None:
    """The allowed values, in pydantic's words, whether the type is wrong, and the bounds that the value is out of.

    Then the position of the wrong element of a list, and this element.

    None if this value is allowed.
    """
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        places = ["".join(f"[{step}]" for step in each["loc"] if isinstance(step, int)) for each in error.errors()]
        place = max(places, key=len)  # of a union, that of the member that fits best
        problems = [each for each, its_place in zip(error.errors(), places, strict=True) if its_place == place]
        allowed = " or ".join(dict.fromkeys(each["msg"].removeprefix("Input should be ") for each in problems))
        is_type = all(each["type"] != "literal_error" or not isinstance(value, str) for each in problems)
        bounds: dict[str, Any] = next((each["ctx"] for each in problems if each.get("ctx", {}).keys() & _BOUNDS), {})
        return allowed, is_type, bounds, place, problems[0]["input"]
    return None


def _to_python(value: Any) -> Any:
    """Convert numbers, arrays and columns of NumPy and pandas, and views of a dict."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, KeysView | ValuesView | list | tuple):
        converted = map(_to_python, value)
        return tuple(converted) if isinstance(value, tuple) else list(converted)
    return {key: _to_python(each) for key, each in value.items()} if isinstance(value, dict) else value


def wrong_argument(name: str, value: object, allowed: str, *, is_type: bool = True) -> UsageError:
    """Return the error for an argument.

    Args:
        allowed: The allowed values.
        is_type: Whether its type is wrong.
    """
    error = WrongArgument if is_type else UsageError
    if name == "model" and hasattr(value, "encode"):
        allowed += f", or an opened Encoder as {setting('encoder')}"
    message = f"{setting(name)} is {repr(value)[:80]}, of type {type(value).__name__}"
    return error(message, f"Pass {allowed}.", setting=name.partition("[")[0], value=value)


def iterate_texts(texts: Iterable[T], name: str = "texts", allowed: str = "a list of str") -> Iterator[T]:
    """Return an iterator over texts, which it does not check.

    Raises:
        WrongArgument: it is a single str, not iterable or without an order.
    """
    # The letters of a str are texts too, and so are the names of a table's columns. The order of a set is arbitrary.
    is_table = isinstance(texts, Mapping) or getattr(texts, "ndim", 1) != 1
    if isinstance(texts, str | bytes | set | frozenset) or is_table or not isinstance(texts, Iterable):
        raise wrong_argument(name, texts, allowed)
    return iter(texts)


def as_texts(texts: Iterable[str], name: str = "texts", first: int = 0) -> list[str]:
    """Return texts as a list.

    Args:
        name: Name of the argument, for messages.
        first: Position of the first of these texts in the argument, for messages.

    Raises:
        WrongArgument: it is a single str, not iterable or without an order, or one of the texts is not a str.
        UsageError: one of the texts is not valid Unicode.
    """
    listed: list[Any] = list(iterate_texts(texts, name))
    # Tokenizers would read a tuple as a pair of texts.
    if not set(map(type, listed)) <= {str}:
        for number, text in enumerate(listed, first):
            if not isinstance(text, str):
                # pandas has NaN, NaT or NA for a missing text.
                is_missing = text is None or type(text).__name__ in ("NaTType", "NAType")
                is_missing = is_missing or (isinstance(text, Real) and text != text)
                allowed = f"a list of str{'; leave out missing values' if is_missing else ''}"
                raise wrong_argument(f"{name}[{number}]", text, allowed)
    for number, text in enumerate(listed, first):
        if not text.isascii():
            as_text(text, f"{name}[{number}]")
    return listed


def as_text(text: str, name: str = "") -> str:
    """Return a text.

    Args:
        name: Argument and position of the text, if they are known.

    Raises:
        UsageError: it has half of a surrogate pair, which no encoding can write.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        place = f" ({name})" if name else ""
        raise UsageError(
            f"the text {text[:80]!r}{place} is not valid Unicode: {error.reason} at character {error.start:,}",
            'Repair it where it is read, or drop such characters: text.encode("utf-8", "ignore").decode().',
        ).about(name.partition("[")[0] or None, text) from error
    return text


def _resolved_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function; those that are only imported for type checkers become `Any`."""
    unknown: dict[str, Any] = {}
    while True:
        try:
            return get_type_hints(function, localns=unknown, include_extras=True)
        except NameError as error:
            unknown[str(error.name)] = Any


@functools.cache
def declared_settings(owner: type | Callable[..., Any]) -> dict[str, FieldInfo]:
    """Return the settings that a class or function declares: name → type, bounds and default.

    Args:
        owner: A settings class of pydantic, a dataclass, a function with keywords, or a TypedDict, whose entries have
            the default of `Field(…)` in their annotation, or None.
    """
    if isinstance(owner, type) and issubclass(owner, BaseModel):
        return owner.model_fields
    fields = {name: FieldInfo.from_annotation(hint) for name, hint in _resolved_hints(owner).items()}
    parameters: Mapping[str, inspect.Parameter] = {} if isinstance(owner, type) else inspect.signature(owner).parameters
    for name, field in fields.items():
        default = parameters[name].default if name in parameters else getattr(owner, name, None)
        if field.is_required() and default is not inspect.Parameter.empty:
            field.default = default
    return fields


def with_defaults(owner: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a class, with their defaults where they are not given."""
    return {name: given.get(name, field.default) for name, field in declared_settings(owner).items()}


def spell_out(*owners: Any, defaults: Any = None) -> Callable[[F], F]:
    """Give a function a signature with the settings of classes instead of its last parameter, `**options`.

    Args:
        owners: TypedDicts or settings classes; what is a parameter already is left out.
        defaults: A settings class that has the defaults of the settings, and checks their ranges.
    """

    def decorate(function: F) -> F:
        signature, declared = inspect.signature(function), declared_settings(defaults) if defaults else {}
        *parameters, _ = signature.parameters.values()
        for owner in owners:
            shown, with_bounds = get_type_hints(owner), get_type_hints(owner, include_extras=True)
            for name, field in declared_settings(owner).items():
                if name not in signature.parameters:
                    option = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=shown[name])
                    parameters.append(option.replace(default=declared.get(name, field).default))
                    function.__annotations__[name] = with_bounds[name]  # for `check_arguments`
        vars(function)["__signature__"] = signature.replace(parameters=parameters)
        return function

    return decorate
