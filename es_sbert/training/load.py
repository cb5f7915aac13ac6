"""Recipes from YAML files, and the ones that come with es-sbert."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from es_sbert.errors import RecipeInvalid, first_line
from es_sbert.training.recipe import Recipe

_SHIPPED = resources.files("es_sbert.training.recipes")
_SEE = "docs/commands/train.md describes every setting; `es-sbert train --list` names recipes to start from."


def shipped_recipes() -> dict[str, str]:
    """Name → description of the recipes that come with es-sbert."""
    names = sorted(entry.name.removesuffix(".yaml") for entry in _SHIPPED.iterdir() if entry.name.endswith(".yaml"))
    return {name: load_recipe(name).description for name in names}


def load_recipe(name: str, overrides: Mapping[str, str] | None = None) -> Recipe:
    """Read and check a recipe.

    Args:
        name: Path of a YAML file, or the name of a shipped recipe.
        overrides: Dotted path of a setting → its value in YAML, such as `stages.0.batch` → `32`.

    Raises:
        RecipeInvalid: no such recipe, no YAML, or settings that are unknown, missing or contradict each other.
    """
    source, text = _read(name)
    try:
        settings = yaml.load(text, _UniqueKeys)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or first_line(error)
        raise RecipeInvalid(f"{source}{where}: {problem}", "Mend the YAML there.") from error
    if not isinstance(settings, dict):
        raise RecipeInvalid(f"{source} does not hold settings (key: value)", _SEE)
    for path, value in (overrides or {}).items():
        _override(settings, path, value)
    try:
        return Recipe.model_validate(settings)
    except ValidationError as error:
        raise RecipeInvalid(f"{source}: {_problems(error)}", _SEE) from error


def _read(name: str) -> tuple[str, str]:
    """(what to call it, text)."""
    path = Path(name)
    shipped = _SHIPPED / f"{name}.yaml"
    if not path.is_file() and "/" not in name and shipped.is_file():
        return f"recipe {name}", shipped.read_text(encoding="utf-8")
    try:
        return name, path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RecipeInvalid(
            f"there is no recipe {name!r}", "Give a YAML file, or a name that `es-sbert train --list` shows."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeInvalid(f"{name} cannot be read: {first_line(error)}", "Give a YAML file in UTF-8.") from error


class _UniqueKeys(yaml.SafeLoader):
    """YAML without keys that stand twice: PyYAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _override(settings: dict[str, Any], path: str, value: str) -> None:
    *way, last = path.split(".")
    place: Any = settings
    try:
        for part in way:
            place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
        place[int(last) if isinstance(place, list) else last] = yaml.safe_load(value)
    except (ValueError, IndexError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise RecipeInvalid(
            f"--set {path}={value} does not fit the recipe: {first_line(error)}",
            "Write the way to the setting with dots, lists by number: --set stages.0.batch=32",
        ) from error


def _problems(error: ValidationError) -> str:
    """Every problem with its place, in one line."""
    problems = []
    places = [entry["loc"] for entry in error.errors()]
    for entry in error.errors():
        loc = entry["loc"]
        if entry["type"] == "too_short" and any(other[: len(loc)] == loc != other for other in places):
            continue  # pydantic counts stages without the broken ones, and complains of their number as well
        place = ".".join(map(str, entry["loc"])) or "the recipe"
        unknown = entry["type"] == "extra_forbidden"
        problems.append(f"{place}: {'no such setting' if unknown else entry['msg'].removeprefix('Value error, ')}")
    return "; ".join(problems)


def parse_overrides(pairs: Sequence[str]) -> dict[str, str]:
    """`KEY=VALUE` options as a mapping.

    Raises:
        RecipeInvalid: one has no `=`.
    """
    parsed = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise RecipeInvalid(f"--set {pair!r} is not KEY=VALUE", "Write for instance --set stages.0.batch=32")
        parsed[key] = value
    return parsed
