"""When imported, hides the modules of Python that only Unix-like systems have from this project's own modules.

Libraries keep them: they import what belongs to the system that `sys.platform` names, which is this one.
"""

from __future__ import annotations

import builtins
from typing import Any

from tests.posix_modules import POSIX_ONLY

_import = builtins.__import__


def _import_without_posix(name: str, globals: Any = None, *rest: Any, **named: Any) -> Any:
    importer = str((globals or {}).get("__name__"))
    if name in POSIX_ONLY and importer.startswith(("es_sbert.", "exporters.")):
        raise ModuleNotFoundError(f"{importer} imports {name}, which Windows does not have", name=name)
    return _import(name, globals, *rest, **named)


builtins.__import__ = _import_without_posix
