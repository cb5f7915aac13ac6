"""Resolve a field name in a query to a vector field of the searched indices."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from es_sbert.config import DEFAULT_VECTOR_FIELD
from es_sbert.errors import IndexMismatch
from es_sbert.gateway.index_lookup import ResolvedIndices
from es_sbert.index.derived_fields import source_names
from es_sbert.index.text_template import TextTemplate
from es_sbert.index.vector_field import VectorField
from es_sbert.search.search_scope import SearchScope, find_incompatible

T = TypeVar("T")


class FieldResolver:
    """Resolves field names in queries to vector fields.

    Args:
        searched: The indices of the request.
        virtual_field: Name of an index's first vector field in queries; `VIRTUAL.NAME` is any other.
        defined: Fields that the request itself defines, which are never vector fields.
        lenient: Whether the virtual field counts as unknown, and so matches nothing, if no index has vectors.
    """

    def __init__(
        self, searched: ResolvedIndices, virtual_field: str, defined: Collection[str] = (), *, lenient: bool = False
    ) -> None:
        self._searched = searched
        self._virtual = virtual_field
        self._defined = defined
        self._lenient = lenient
        self._cache: dict[tuple[str, str], Any] = {}

    @property
    def has_chunks(self) -> bool:
        """Whether any vector field holds one vector per chunk."""
        fields = self._searched.fields.values()
        return any(meta.passages is not None for by_name in fields for meta in by_name.values())

    def virtual(self, name: str) -> SearchScope | None:
        """Resolve a virtual name; None if the name is an ordinary field of the searched indices.

        Raises:
            IndexMismatch: no index has this vector field, or any (unless `lenient`), or the models differ, or a
                searched index is remote.
        """
        return self._cached("virtual", name, self._resolve_virtual)

    def virtual_only(self, name: str, *, mixed: bool = False) -> SearchScope | None:
        """Like `virtual`, but None if no index has vectors.

        Args:
            mixed: Whether it is virtual even if another index has an ordinary field of that name.

        Raises:
            IndexMismatch: no index has this vector field, or the models differ, or a searched index is remote.
        """
        has_answer = self._searched or self._searched.remote
        return self.virtual(name) if has_answer and (mixed or not self._searched.ordinary) else None

    def named(self, name: str) -> SearchScope | None:
        """The vector field of that name (`NAME.vector` for a field of chunks) or alias; None if no index has it.

        Raises:
            IndexMismatch: the models differ, or a searched index is remote.
        """
        self.check_local(name, "off")
        return self._cached("named", name, self._resolve_name)

    def for_text(self, field: str) -> SearchScope | None:
        """The vector field whose text contains this field; None if there is none.

        An alias and a multi-field count as their field, the target of a `copy_to` as the fields that are copied to it.

        Raises:
            IndexMismatch: the models differ.
        """
        return self._cached("for_text", field, self._resolve_text)

    def texts(self) -> list[str]:
        """The fields that are embedded, then those that are filled from them."""
        return self._cached("texts", "", self._text_fields)

    def check_local(self, name: str, mode: str) -> None:
        """Refuse a semantic query if a searched index is remote: its response would lack documents of that index.

        Args:
            name: The field of the query.
            mode: Value of X-Es-Sbert with which the request passes through.

        Raises:
            IndexMismatch: a searched index is remote.
        """
        if self._searched.remote:
            raise IndexMismatch(
                f"{name} cannot be searched semantically in {self._searched.remote}: the gateway does not know the "
                "vectors of remote clusters",
                "Send a semantic query to a gateway of each cluster, without remote indices. The header X-Es-Sbert: "
                f"{mode} passes the query through unchanged.",
            )

    def _cached(self, kind: str, name: str, compute: Callable[[str], T]) -> T:
        # Not cachetools' decorator: its reference cycle would keep the request in memory until garbage collection.
        key = kind, name
        if key not in self._cache:
            self._cache[key] = compute(name)
        value: T = self._cache[key]
        return value

    def _resolve_virtual(self, name: str) -> SearchScope | None:
        if name in self._defined:
            return None
        if not (name == self._virtual or name.startswith(f"{self._virtual}.")):
            return None
        if not self._searched and self._searched.ordinary:
            return None
        self.check_local(name, "off")
        if not self._searched and self._lenient:
            return None
        if not self._searched:
            raise IndexMismatch(
                f"{name} cannot be used: the searched indices have no vector field",
                "Embed the documents of an index: es-sbert ingest --index INDEX.",
            )
        fields = self._searched.fields
        if name == self._virtual:
            return self._resolve({index: self._default_field(index) for index in fields}, name)
        field = self.named(name.removeprefix(f"{self._virtual}."))
        if field is None and not self._searched.ordinary:
            names = sorted({field for by_name in fields.values() for field in by_name})
            raise IndexMismatch(
                f"{name} is not a vector field of the searched indices, which have {', '.join(names)}",
                f"Write {self._virtual} for the first of them, or {self._virtual}.NAME.",
            )
        return field

    def _default_field(self, index: str) -> str:
        """The vector field of an index that queries use by default."""
        fields = self._searched.fields[index]
        return DEFAULT_VECTOR_FIELD if DEFAULT_VECTOR_FIELD in fields else next(iter(fields))

    def _resolve_name(self, name: str) -> SearchScope | None:
        field_by_index: dict[str, str] = {}
        for index, fields in self._searched.fields.items():
            derived = self._searched.derived.get(index, {})
            meant = [name, *(derived[name].sources if name in derived else ())]
            found = next((plain for each in meant if (plain := each.removesuffix(".vector")) in fields), None)
            if found is not None:
                field_by_index[index] = found
        return self._resolve(field_by_index, name) if field_by_index else None

    def _resolve_text(self, text_field: str) -> SearchScope | None:
        target, outer = self._resolve_embedded(text_field), text_field.rpartition(".")[0]
        # Multi-fields are not read from the mappings: `title.en` may be one of `title`.
        return self._resolve_embedded(outer) if target is None and outer else target

    def _resolve_embedded(self, text_field: str) -> SearchScope | None:
        field_by_index: dict[str, str] = {}
        for index, fields in self._searched.fields.items():
            default = self._default_field(index)
            texts = {
                name: TextTemplate.parse(text).fields
                for name in sorted(fields, key=lambda name: name != default)
                if (text := fields[name].text) is not None
            }
            meant = source_names(self._searched.derived.get(index, {}), text_field)
            # Vector fields whose text contains this field itself come first: the text of others may be copied to it.
            matches = [name for name, embedded in texts.items() if text_field in embedded]
            matches += [name for name, embedded in texts.items() if not meant.isdisjoint(embedded)]
            if matches:
                field_by_index[index] = matches[0]
        return self._resolve(field_by_index, text_field) if field_by_index else None

    def _text_fields(self, _: str) -> list[str]:
        templates = {meta.text for fields in self._searched.fields.values() for meta in fields.values()}
        texts = {field for text in templates if text is not None for field in TextTemplate.parse(text).fields}
        filled = {
            name
            for derived in self._searched.derived.values()
            for name in derived
            if not texts.isdisjoint(source_names(derived, name))
        }
        return [*sorted(texts), *sorted(filled - texts)]

    def _resolve(self, field_by_index: dict[str, str], query_name: str) -> SearchScope:
        """Return the field in all its indices, sorted by name.

        Args:
            field_by_index: Index → its vector field.
            query_name: The field's name in the query.

        Raises:
            IndexMismatch: the fields differ in name, model or chunking, or one cannot be searched as it is mapped. The
                message names no models, because only callers who may read the mapping may know them.
        """
        searched = self._searched
        fields = [VectorField(index, name, searched.fields[index][name]) for index, name in field_by_index.items()]
        for field in fields:
            if field.meta.problem is not None:
                raise IndexMismatch(*field.meta.problem)
        first = fields[0]
        other = next((field for field in fields if field.name != first.name), None) or find_incompatible(fields)
        if other is not None and (other.name, other.meta.fingerprint) != (first.name, first.meta.fingerprint):
            difference = f"the field {other.name}" if other.name != first.name else "that field with another model"
            raise IndexMismatch(
                f"{query_name} is the field {first.name} in {first.index}, and {difference} in {other.index}",
                "Search these indices separately, or migrate them to one model: "
                "es-sbert index migrate INDEX --model MODEL.",
            )
        if other is not None:
            whole, chunked = (first, other) if first.meta.passages is None else (other, first)
            raise IndexMismatch(
                f"{first.name} has one vector per document in {whole.index}, and one per chunk in {chunked.index}",
                "Search these indices separately, as two searches of one _msearch.",
            )
        shards = sum(searched.shards[index] for index in field_by_index)
        fields.sort(key=lambda field: field.index)
        return SearchScope(tuple(fields), searched.filters, shards=shards)
