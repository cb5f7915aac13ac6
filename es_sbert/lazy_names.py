"""Imports that are put off until a name is first used, or left out, so that importing a package stays fast."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module


def lazy_names(
    package: str, names: Mapping[str, str], before: Callable[[], None] = lambda: None
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Make a package's `__getattr__` and `__dir__`.

    Args:
        package: The package's `__name__`.
        names: Module → its public names, separated by blanks.
        before: Called before a name is imported.
    """
    members = vars(sys.modules[package])
    modules = {name: module for module, found in names.items() for name in found.split()}

    def get_name(name: str) -> object:
        """Import a public name when it is first used."""
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        before()
        value = members[name] = getattr(import_module(modules[name]), name)
        return value

    def list_names() -> list[str]:
        return sorted({*members, *modules})

    return get_name, list_names


@contextmanager
def hidden_modules(*names: str) -> Iterator[None]:
    """Let imports of these modules fail within the block, unless the process has already imported them."""
    hidden = set(names) - sys.modules.keys()
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None makes an import fail
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
