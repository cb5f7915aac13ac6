"""`spell_out`: lists the keyword arguments of `**options: Unpack[…]` in the signature that Python shows.

Type checkers and editors read the TypedDict, but `help`, `inspect.signature` and the API reference would show
`**options`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_type_hints

F = TypeVar("F", bound=Callable[..., Any])


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
