"""Errors for answers that no engine gives, such as those of a web server that answers every path alike."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from es_sbert.errors import RequestFailed, UsageError

Class = TypeVar("Class", bound=type)

_BAD_GATEWAY = 502


def checks_answers(cls: Class) -> Class:
    """Class decorator: a method that cannot read the answer of the server raises `RequestFailed`.

    All public methods do nothing but send requests and read their answers. `info` of the class names the server.
    """
    for name, method in list(vars(cls).items()):
        if inspect.isfunction(method) and not name.startswith("_") and not inspect.isgeneratorfunction(method):
            setattr(cls, name, _checked(method))
    return cls


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except UsageError:  # a ValueError that is not about the answer
            raise
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise RequestFailed(
                f"{self.info.url} sent an answer that {self.info.label} does not give ({method.__name__}: "
                f"{type(error).__name__})",
                "Check the address, and any proxy in between: it must pass on all paths of the engine.",
                _BAD_GATEWAY,
            ) from error

    return checked
