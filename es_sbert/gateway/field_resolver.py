"""Resolve a field name in a query to a vector field of the searched indices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import orjson

from es_sbert.config import DEFAULT_VECTOR_FIELD
from es_sbert.engines.protocol import Json
from es_sbert.errors import IndexMismatch
from es_sbert.gateway.index_lookup import ResolvedIndices
from es_sbert.index.mapping import VectorFieldMeta
from es_sbert.index.text_template import TextTemplate

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class IndexGroup:
    """Indices in which a vector field is searched in one way.

    Attributes:
        meta: What their mappings say of the field.
        indices: Their concrete names.
        filter: What the search itself must apply there because an alias says so.
    """

    meta: VectorFieldMeta
    indices: tuple[str, ...]
    filter: Json | None = None


@dataclass(frozen=True)
class ResolvedField:
    """A vector field and where it is searched.

    Attributes:
        name: The field.
        parts: Its indices by how they are searched: the model is the same in all, index types may differ.
        shards: Primary shards of all together.
    """

    name: str
    parts: tuple[IndexGroup, ...]
    shards: int

    @property
    def meta(self) -> VectorFieldMeta:
        """What the mappings say of it; the index type is that of the first part."""
        return self.parts[0].meta


def _cached(method: Callable[Concatenate[FieldResolver, P], T]) -> Callable[Concatenate[FieldResolver, P], T]:
    """What a method of `FieldResolver` gives, found out once for each argument.

    By hand, since cachetools' decorator makes a reference cycle, and what a search took would stay in memory until the
    next garbage collection.
    """

    @wraps(method)
    def known(self: FieldResolver, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = method.__name__, *args, *kwargs.items()
        if key not in self._cache:
            self._cache[key] = method(self, *args, **kwargs)
        found: T = self._cache[key]
        return found

    return known


class FieldResolver:
    """Names by which queries call vector fields.

    Args:
        searched: The indices of the request.
        virtual_field: Stands for an index's first vector field; `VIRTUAL.NAME` for any other.
        defined: Fields that the request itself defines, and means.
    """

    def __init__(self, searched: ResolvedIndices, virtual_field: str, defined: Collection[str] = ()) -> None:
        self._searched = searched
        self._virtual = virtual_field
        self._defined = defined
        # A request names few fields, and each of them often.
        self._cache: dict[Hashable, Any] = {}

    @_cached
    def virtual(self, name: str) -> ResolvedField | None:
        """The field that a virtual name stands for; None where the name is an ordinary one here.

        Raises:
            IndexMismatch: no such vector field, no vectors at all, or different models.
        """
        if name in self._defined:
            return None
        if not self._searched:
            if self._searched.ordinary or not (name == self._virtual or name.startswith(f"{self._virtual}.")):
                return None
            if self._searched.remote:
                raise IndexMismatch(
                    f"{name} means vectors, and those of remote clusters are not known here",
                    "Search a remote cluster by meaning through a gateway of its own.",
                )
            raise IndexMismatch(
                f"{name} means vectors, and the indices searched have none",
                "Make them: es-sbert ingest --index INDEX embeds the documents that an index holds.",
            )
        if name == self._virtual:
            return self._target(
                {index: _default_field(fields) for index, fields in self._searched.fields.items()}, name
            )
        prefix = f"{self._virtual}."
        if not name.startswith(prefix):
            return None
        target = self.named(name.removeprefix(prefix))
        if target is None and not self._searched.ordinary:
            raise self._no_such(name)
        return target

    def virtual_only(self, name: str) -> ResolvedField | None:
        """As `virtual`, for what may be asked of ordinary fields as well: None where an index has one of that name.

        Raises:
            IndexMismatch: no such vector field, or different models.
        """
        return self.virtual(name) if self._searched and not self._searched.ordinary else None

    @_cached
    def named(self, name: str) -> ResolvedField | None:
        """The vector field of that name (`NAME.vector` for one of passages); None where no index has it.

        Raises:
            IndexMismatch: it holds vectors of different models.
        """
        plain = name.removesuffix(".vector")
        holding = {index: plain for index, fields in self._searched.fields.items() if plain in fields}
        return self._target(holding, name) if holding else None

    @_cached
    def for_text(self, field: str) -> ResolvedField | None:
        """The vector field whose text holds this field; None where none does.

        Raises:
            IndexMismatch: different models.
        """
        holding: dict[str, str] = {}
        for index, fields in self._searched.fields.items():
            for name in sorted(fields, key=lambda name: name != _default_field(fields)):
                text = fields[name].text
                if text is not None and field in TextTemplate.parse(text).fields:
                    holding[index] = name
                    break
        return self._target(holding, field) if holding else None

    @_cached
    def texts(self) -> list[str]:
        """The fields of the indices' documents that are embedded."""
        templates = {meta.text for fields in self._searched.fields.values() for meta in fields.values()}
        return sorted({field for text in templates if text is not None for field in TextTemplate.parse(text).fields})

    def _target(self, holding: dict[str, str], called: str) -> ResolvedField:
        kinds = {index: (name, self._searched.fields[index][name]) for index, name in holding.items()}
        name, meta = next(iter(kinds.values()))
        for index, (other, its) in kinds.items():
            first = next(iter(kinds))
            if (other, its.fingerprint) != (name, meta.fingerprint):
                # Which models is not said: the mapping tells it to whoever may read that.
                other_field = f"the field {other}" if other != name else "that field with vectors of another model"
                raise IndexMismatch(
                    f"{called} means the field {name} in {first}, and {other_field} in {index}",
                    "Search these indices one by one, or bring them to one model: "
                    "es-sbert index migrate INDEX --model MODEL.",
                )
            if (its.passages is None) != (meta.passages is None):
                whole, cut = (first, index) if meta.passages is None else (index, first)
                raise IndexMismatch(
                    f"{name} holds whole texts in {whole}, passages in {cut}",
                    "Search these indices one by one, as two searches of one _msearch.",
                )
        metas = {index: meta for index, (_, meta) in kinds.items()}
        return ResolvedField(name, self._parts(metas), sum(self._searched.shards[index] for index in kinds))

    def _parts(self, metas: dict[str, VectorFieldMeta]) -> tuple[IndexGroup, ...]:
        alike: dict[tuple[str, bytes], list[str]] = {}
        for index in sorted(metas):
            way = metas[index].index_type, orjson.dumps(self._searched.filters.get(index))
            alike.setdefault(way, []).append(index)
        return tuple(self._part(metas, indices) for indices in alike.values())

    def _part(self, metas: dict[str, VectorFieldMeta], indices: Sequence[str]) -> IndexGroup:
        return IndexGroup(metas[indices[0]], tuple(indices), self._searched.filters.get(indices[0]))

    def _no_such(self, name: str) -> IndexMismatch:
        names = sorted({field for fields in self._searched.fields.values() for field in fields})
        return IndexMismatch(
            f"{name} is no vector field of the indices searched, which have {', '.join(names)}",
            f"Write {self._virtual} for the first of them, or {self._virtual}.NAME.",
        )


def _default_field(fields: dict[str, VectorFieldMeta]) -> str:
    """The vector field that is meant where none is named."""
    return DEFAULT_VECTOR_FIELD if DEFAULT_VECTOR_FIELD in fields else next(iter(fields))
