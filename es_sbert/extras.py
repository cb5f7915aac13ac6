"""Optional parts of the installation: what to say where one is missing."""

from __future__ import annotations

import importlib.util

from es_sbert.errors import UsageError


def require(extra: str, *modules: str) -> None:
    """Make sure that the modules of an extra are installed, before a command starts to need them.

    Args:
        extra: Name of the extra in pyproject.toml.
        modules: Top-level modules that it brings.

    Raises:
        UsageError: one of them is missing.
    """
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise UsageError(
            f"this needs {', '.join(missing)}, which a plain installation leaves out",
            f"Install it: pip install 'es-sbert[{extra}]'",
        )
