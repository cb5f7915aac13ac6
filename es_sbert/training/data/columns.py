"""Which column of a file is read as what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from es_sbert.errors import RecipeInvalid
from es_sbert.training.data.shape import LabelKind, Shape

# Labels have a role of their own; vectors come from a teacher, never from a file.
_LABEL_ROLES = {LabelKind.SCORE: "score", LabelKind.CLASS: "class"}


@dataclass(frozen=True)
class Columns:
    """Columns of a file by what they are for.

    Attributes:
        texts: In the order of the objective's roles.
        label: Scores or classes; None where the data has none.
    """

    texts: tuple[str, ...]
    label: str | None

    @property
    def all(self) -> tuple[str, ...]:
        """Every column that is read, each once."""
        return tuple(dict.fromkeys((*self.texts, *([self.label] if self.label else []))))


def assign_columns(name: str, columns: Mapping[str, str | tuple[str, ...]], shape: Shape) -> Columns:
    """Check a recipe's mapping of roles to columns against what an objective needs.

    Args:
        name: Of the data set, for messages.
        columns: Role → column; several for the last role of a shape that repeats it.
        shape: What the objective needs.

    Raises:
        RecipeInvalid: a role is unknown or lacks its column, or has several where one is needed.
    """
    label_role = None if shape.taught else _LABEL_ROLES.get(shape.label)
    roles = (*shape.roles, *([label_role] if label_role else []))
    optional = shape.roles[-1] if shape.repeats_last else None
    missing = [role for role in roles if role not in columns and role != optional]
    unknown = [role for role in columns if role not in roles]
    if missing or unknown:
        wrong = [f"no column for {', '.join(missing)}"] if missing else []
        wrong += [f"no such role as {', '.join(unknown)}"] if unknown else []
        needed = ", ".join(f"{role} (any number of columns)" if role == optional else role for role in roles)
        raise RecipeInvalid(f"{name}: {' and '.join(wrong)}", f"Its objective has these roles: {needed}.")
    several = [role for role, given in columns.items() if not isinstance(given, str) and role != optional]
    if several:
        raise RecipeInvalid(
            f"{name}: {', '.join(several)} has a list of columns", f"Name one column for {', '.join(several)}."
        )
    texts = [column for role in shape.roles for column in _as_tuple(columns.get(role, ()))]
    return Columns(tuple(texts), str(columns[label_role]) if label_role else None)


def _as_tuple(given: str | tuple[str, ...]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else given
