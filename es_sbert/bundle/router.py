"""Read a Router: separate modules for queries and for documents, chosen by the kind of a text."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from es_sbert.bundle.known_settings import ROUTER, ROUTER_PARAMETERS, check_settings
from es_sbert.bundle.model_files import COPY_AGAIN, read_json
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture, error_summary

ROUTER_CLASSES = ("Router", "Asym")  # the second is its name in older releases
ModuleList = list[tuple[str, str]]


@dataclass(frozen=True)
class RouterModule:
    """The settings of a Router.

    Attributes:
        folder: The module's folder, relative to the model folder.
        routes: Maps the name of a route to the (class, folder) of each of its modules.
        default: Route of texts without a mapping for their kind or modality; None if there is no such route.
        mappings: Maps (kind, modality) to a route.
        module_folders: Folders of all its modules, including those that no route uses.
    """

    folder: str
    routes: dict[str, ModuleList]
    default: str | None
    mappings: Mapping[tuple[Any, Any], str]
    module_folders: tuple[str, ...]

    def resolve(self, kind: str | None, modality: str | None) -> str | None:
        """Find the route that sentence-transformers chooses for a text of this kind; None if it raises an error."""
        for key in ((kind, modality), (kind, None), (None, modality), (None, None)):
            if key in self.mappings:
                return self.mappings[key]
        if kind in self.routes:
            return kind
        if modality in self.routes:
            return modality
        return self.default if kind is None else None


def read_router(folder: Path, place: str, ignored: Collection[str] = ()) -> RouterModule:
    """Read the Router in a folder of a model folder.

    Raises:
        BundleInvalid: the Router's configuration is missing or broken, or names a folder outside the model folder.
        UnsupportedArchitecture: a module that is not one of sentence-transformers.
        UnsupportedSetting: a setting that es-sbert does not apply.
    """
    path = folder / place / "router_config.json"
    if not path.exists():
        path = folder / place / "config.json"  # written by older releases
    config = read_json(path)
    try:
        parameters = config["parameters"]
        check_settings(path, config, ROUTER, ignored)
        check_settings(path, parameters, ROUTER_PARAMETERS, ignored, "parameters.")
        types = {str(name): str(kind) for name, kind in config["types"].items()}
        routes = {
            str(route): [(types[name].rpartition(".")[2], _join(path, place, name)) for name in names]
            for route, names in config["structure"].items()
        }
        mappings = {
            ast.literal_eval(key): str(route) for key, route in (parameters.get("route_mappings") or {}).items()
        }
        if any(not isinstance(key, tuple) or len(key) != 2 for key in mappings):
            raise ValueError("a key of route_mappings is not a pair of a task and a modality")
        default = parameters.get("default_route")
        if unknown := ({default} - {None} | {*mappings.values()}) - routes.keys():
            raise ValueError(f"it has no route {sorted(map(str, unknown))[0]}")
        if default is None and parameters.get("allow_empty_key", True):
            default = next(iter(routes))
    except (KeyError, TypeError, AttributeError, ValueError, SyntaxError, StopIteration) as error:
        raise BundleInvalid(f"{path} is broken: {error_summary(error)}", COPY_AGAIN) from error
    foreign = [kind for kind in types.values() if not kind.startswith("sentence_transformers.")]
    if foreign:
        raise UnsupportedArchitecture(
            f"{path} has a module of the class {foreign[0]}, which is not one of sentence-transformers",
            "es-sbert does not run code from a model; choose one with modules of sentence-transformers.",
        )
    if any(kind in ROUTER_CLASSES for modules in routes.values() for kind, _ in modules):
        raise UnsupportedArchitecture(f"{path} has a Router in a Router", "Save the model with one Router.")
    folders = tuple(_join(path, place, name) for name in types)
    return RouterModule(place, routes, default, mappings, folders)


def _join(path: Path, place: str, name: str) -> str:
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise BundleInvalid(f"{path} names {name!r}, which is outside the folder", "Do not use this model.")
    return (Path(place) / name).as_posix()
